"""Section rendering of ``powerband doctor``: checks which backends render without a display, how fast and on which GPU.

Each backend runs in a subprocess, because a missing library breaks the import of mujoco and a driver may crash.
"""

from __future__ import annotations

import importlib.util
import os
from dataclasses import replace
from functools import partial
from typing import Any

from powerband.core.machine.egl import EglDevice, EglError, egl_devices, missing_library
from powerband.core.machine.rendering import (
    CONTAINER,
    DEVICE_VARIABLES,
    INSTALL,
    cuda_index_and_uuid,
    forced_software,
    has_display,
    query_egl,
    settings,
)
from powerband.doctor.check_result import CheckResult, fail, ok, skipped, warn
from powerband.doctor.checks.mujoco_rendering import SIZE
from powerband.doctor.context import Check, CheckContext
from powerband.doctor.subprocess_call import SubprocessResult, call_in_subprocess

TIMEOUT_S = 60.0
FUNCTION = "powerband.doctor.checks.mujoco_rendering:render"
SOFTWARE = ("llvmpipe", "softpipe", "swrast", "swr ", "software")
VARIABLES = {
    "MUJOCO_GL": "MuJoCo's backend",
    "PYOPENGL_PLATFORM": "PyOpenGL's backend; must agree with MUJOCO_GL",
    **dict.fromkeys(DEVICE_VARIABLES, "EGL device that renders, for all ranks"),
    "EGL_PLATFORM": "platform of Mesa's EGL; surfaceless needs no display",
    "LIBGL_ALWAYS_SOFTWARE": "1 makes Mesa render on the CPU",
    "GALLIUM_DRIVER": "Mesa's driver; llvmpipe is the CPU",
    "__EGL_VENDOR_LIBRARY_FILENAMES": "the only EGL drivers that are loaded",
    "MAGNUM_DEVICE": "EGL device of habitat-sim's renderer",
    "MAGNUM_LOG": "log level of habitat-sim's renderer",
    "HABITAT_SIM_LOG": "log level of habitat-sim",
    "NVIDIA_DRIVER_CAPABILITIES": "driver parts in a container; rendering needs graphics or all",
    "DISPLAY": "X server for windows",
}
"""Environment variable that changes rendering -> its effect."""


def checks(context: CheckContext) -> list[Check]:
    """Returns the checks of this section: each rendering backend, the EGL devices, and the variables of a run."""
    working: dict[str, bool] = {}
    return [
        ("egl", lambda: backend_row("egl", working)),
        ("osmesa", lambda: backend_row("osmesa", working)),
        ("glfw", lambda: glfw_row(working)),
        ("egl devices", lambda: devices_rows(context)),
        *((f"egl {gpu}", partial(gpu_rendering_row, gpu)) for gpu in context.devices[1:]),
        ("variables", variables_row),
        ("a run sets", lambda: run_variables_row(context)),
    ]


def backend_row(
    backend: str, working: dict[str, bool], function: str = FUNCTION, timeout_s: float = TIMEOUT_S
) -> CheckResult:
    """Checks whether a backend renders, with which renderer and how fast.

    Args:
        backend: ``egl``, ``osmesa`` or ``glfw``.
        working: Backend -> whether it rendered. This function adds its own result; if egl works, a failure of another
            backend is a warning.
        function: Function that the subprocess calls, as ``module:name``.
        timeout_s: Seconds after which the subprocess is killed.
    """
    if importlib.util.find_spec("mujoco") is None:
        return skipped(backend, "mujoco is not installed", "Install it with pip install 'powerband[gym]'.")
    # The check is about the backend, not about the device that the user chose.
    unset = dict.fromkeys((*DEVICE_VARIABLES, "EGL_PLATFORM"))
    environment = {**unset, "MUJOCO_GL": backend, "PYOPENGL_PLATFORM": None if backend == "glfw" else backend}
    outcome = call_in_subprocess(function, [], timeout_s=timeout_s, environment=environment)
    working[backend] = not outcome.problem
    if outcome.problem:
        cause, advice = explain_failure(backend, outcome)
        # One working backend is enough for rendering, and egl is tried first.
        make_row = warn if backend != "egl" and working.get("egl") else fail
        return make_row(backend, cause, advice)
    return _rendered_row(backend, outcome.value)


def _rendered_row(name: str, rendered: dict[str, Any]) -> CheckResult:
    rate, plain = rendered["frames_per_s"], rendered["plain_frames_per_s"]
    text = (
        f"{rendered['renderer']} ({rendered['vendor']}), {rate:.0f} frames/s at {SIZE} px, {plain:.0f} without shadows "
        f"and multisampling"
    )
    metrics = {
        "vendor": rendered["vendor"],
        "renderer": rendered["renderer"],
        "gl_version": rendered["version"],
        "frames_per_s": round(rate, 1),
        "plain_frames_per_s": round(plain, 1),
        "start_s": round(rendered["start_s"], 2),
        "software": is_software(rendered["renderer"]),
    }
    if rendered["blank"]:
        return fail(
            name,
            f"{text}; all pixels are equal, so nothing was drawn",
            "Update the graphics driver. Use another backend until then.",
            **metrics,
        )
    if metrics["software"]:
        advice = "The CPU renders. If this machine has a GPU, see row egl devices. Otherwise switch off shadows and "
        advice += "multisampling (offsamples=0), which are most of the cost."
        return warn(name, f"SOFTWARE RENDERING: {text}", advice, **metrics)
    return ok(name, text, **metrics)


def is_software(renderer: str) -> bool:
    """Returns whether the name of an OpenGL renderer is that of a software renderer on the CPU."""
    return any(name in f"{renderer.lower()} " for name in SOFTWARE)


def explain_failure(backend: str, outcome: SubprocessResult) -> tuple[str, str]:
    """Explains why a backend did not render.

    Args:
        backend: ``egl``, ``osmesa`` or ``glfw``.
        outcome: Result of the subprocess.

    Returns:
        (cause of the failure, advice on how to fix it).
    """
    text = f"{outcome.problem}\n{outcome.output}"
    reason = missing_library(backend) if backend in ("egl", "osmesa") else ""
    if reason:
        library = {"egl": "libEGL", "osmesa": "libOSMesa"}[backend]
        return f"{library} cannot be loaded ({reason}); error of mujoco: {outcome.problem}", f"Run {INSTALL}."
    if outcome.kind == "hang":
        return outcome.problem, "The driver hangs. Try another backend (MUJOCO_GL), and reinstall the GPU's driver."
    if outcome.kind == "crash":
        return outcome.problem, "The driver crashes. Try another backend (MUJOCO_GL), and reinstall the GPU's driver."
    if "glGetError" in text or "libGL" in text or "libOpenGL" in text:
        return f"libGL cannot be loaded; error of mujoco: {outcome.problem}", f"Run {INSTALL}."
    if backend == "egl" and ("EGL" in text or "display" in text):
        return _explain_egl(outcome)
    if "No module named" in text:
        return outcome.problem, "Run pip install PyOpenGL glfw; MuJoCo needs both for rendering."
    return outcome.problem, f"Run {INSTALL}. To see the full error, import mujoco with MUJOCO_GL={backend}."


def _explain_egl(outcome: SubprocessResult) -> tuple[str, str]:
    """Returns (cause, advice) for EGL: why MuJoCo could open no display although libEGL is installed."""
    try:
        devices = egl_devices(open_each=True)
    except EglError as error:
        return f"{error}; error of mujoco: {outcome.problem}", f"Run {INSTALL}, or install the GPU's driver."
    if not devices:
        return (
            "libEGL is installed without a driver: it lists no device",
            f"For software rendering, run apt-get install -y libegl-mesa0. For an NVIDIA GPU, {CONTAINER}.",
        )
    closed = [device for device in devices if device.error]
    if len(closed) == len(devices):
        names = ", ".join(f"{device.index} {device.error}" for device in closed)
        drivers = " Mesa's drivers are missing (libgl1-mesa-dri)." if "swrast" in outcome.output else ""
        return (
            f"none of the {len(devices)} EGL devices opens ({names}).{drivers}",
            "Run apt-get install -y libgl1-mesa-dri. Give this user access to the GPU: groups video and render, or "
            "/dev/dri in a container.",
        )
    return outcome.problem, f"Some EGL devices open. Choose one with MUJOCO_EGL_DEVICE_ID, or run {INSTALL}."


def glfw_row(working: dict[str, bool]) -> CheckResult:
    """Checks GLFW, which opens windows, if the machine has a display.

    Args:
        working: Backend -> whether it rendered.
    """
    if not has_display(os.environ):
        return skipped("glfw", "no display (DISPLAY and WAYLAND_DISPLAY are not set): windows cannot be opened")
    return backend_row("glfw", working)


def devices_rows(context: CheckContext) -> CheckResult | list[CheckResult]:
    """Lists the EGL devices, and the EGL device of each CUDA GPU, with which a rank renders on its own GPU.

    EGL is the interface through which OpenGL renders without a display.
    """
    if missing_library("egl"):
        return skipped("egl devices", "libEGL is missing: see row egl")
    try:
        devices = egl_devices(open_each=True)
    except EglError as error:
        return fail("egl devices", str(error), f"Run {INSTALL}, or reinstall the GPU's driver.")
    rows = [_device_row(device) for device in devices]
    gpus = len(context.devices) - 1
    mapped = sum(device.cuda is not None or bool(device.uuid) for device in devices)
    if gpus and not mapped:
        advice = f"In a container, {CONTAINER}. Otherwise install the OpenGL part of the driver (libnvidia-gl)."
        rows.append(fail("cuda to egl", f"EGL lists none of {gpus} CUDA GPU(s), so the CPU renders", advice))
    elif gpus:
        pairs = {str(device.cuda): device.index for device in devices if device.cuda is not None}
        text = ", ".join(f"cuda:{cuda} is EGL device {index}" for cuda, index in pairs.items()) or "matched by UUID"
        rows.append(ok("cuda to egl", text, cuda_to_egl=pairs))
    return rows or fail("egl devices", "EGL lists no device", f"Run {INSTALL}, or install the GPU's driver.")


def _device_row(device: EglDevice) -> CheckResult:
    name = f"egl device {device.index}"
    parts = [device.vendor, device.renderer, device.drm, "software" if device.software else ""]
    parts += [f"cuda:{device.cuda}"] if device.cuda is not None else []
    text, metrics = ", ".join(filter(None, parts)), device.__dict__
    if device.error:
        text = ", ".join(filter(None, (text, f"does not open: {device.error}")))
        return warn(
            name,
            text,
            "Give this user access to it: groups video and render, or /dev/dri in a container. Alternatively choose "
            "another device with MUJOCO_EGL_DEVICE_ID.",
            **metrics,
        )
    return ok(name, text, **metrics)


def gpu_rendering_row(gpu: Any, function: str = FUNCTION) -> CheckResult:
    """Checks whether a rank on `gpu` renders on that GPU with the environment variables that a training run sets.

    Args:
        gpu: CUDA device of the rank.
        function: Function that the subprocess calls, as ``module:name``.
    """
    name = f"egl {gpu}"
    no_egl, devices = query_egl()
    variables = settings({}, no_egl, "", *cuda_index_and_uuid(gpu), devices).variables
    if no_egl or "MUJOCO_EGL_DEVICE_ID" not in variables:
        return skipped(name, "EGL does not identify this GPU among its devices: see row cuda to egl")
    outcome = call_in_subprocess(function, [], timeout_s=TIMEOUT_S, environment={"EGL_PLATFORM": None, **variables})
    device = f"EGL device {variables['MUJOCO_EGL_DEVICE_ID']}"
    if outcome.problem:
        advice = "Give this user access to it: groups video and render, or /dev/dri in a container."
        return fail(name, f"{device}: {outcome.problem}", advice)
    row = _rendered_row(name, outcome.value)
    return replace(row, message=f"{device}: {row.message}")


def variables_row() -> CheckResult:
    """Lists those environment variables of this process that change rendering, with their effects."""
    values = {name: os.environ[name] for name in VARIABLES if os.environ.get(name)}
    text = "; ".join(f"{name}={value}: {VARIABLES[name]}" for name, value in values.items()) or "none is set"
    forced = forced_software(os.environ)
    if forced:
        return warn("variables", text, f"{forced} renders on the CPU: unset it if this machine has a GPU.", set=values)
    return ok("variables", text, set=values)


def run_variables_row(context: CheckContext) -> CheckResult:
    """Lists the environment variables that a training run sets for rendering, and conflicts with those of the user."""
    no_egl, devices = query_egl()
    plan = settings(os.environ, no_egl, missing_library("osmesa"), 0 if len(context.devices) > 1 else None, "", devices)
    sets = " ".join(f"{name}={value}" for name, value in plan.variables.items())
    text = f"{plan.line or 'nothing'}; sets {sets or 'nothing'}"
    if plan.notices:
        return warn("a run sets", text, " ".join(plan.notices), sets=plan.variables)
    if not plan.variables and plan.line.startswith("none"):
        return warn("a run sets", text, f"Run {INSTALL} before training anything that renders.", sets={})
    return ok("a run sets", text, sets=plan.variables)
