"""Section rendering: which backends render without a display, who really renders, how fast, and on which GPU.

Each backend starts in a process of its own: a missing library ends the import of mujoco, and a driver may crash.
"""

from __future__ import annotations

import importlib.util
import os
from dataclasses import replace
from typing import Any

from powerband.core.egl import EglDevice, EglError, egl_devices, missing
from powerband.core.rendering import (
    CONTAINER,
    DEVICE_VARIABLES,
    INSTALL,
    forced_software,
    has_display,
    identity,
    look_at_egl,
    settings,
)
from powerband.doctor.child import Outcome, ask
from powerband.doctor.frames import SIZE
from powerband.doctor.row import Row, fail, ok, skipped, warn
from powerband.doctor.scope import Check, Scope

TIMEOUT_S = 60.0
FUNCTION = "powerband.doctor.frames:render"
SOFTWARE = ("llvmpipe", "softpipe", "swrast", "swr ", "software")
VARIABLES = {
    "MUJOCO_GL": "MuJoCo's backend",
    "PYOPENGL_PLATFORM": "the same for PyOpenGL; must agree with MUJOCO_GL",
    **dict.fromkeys(DEVICE_VARIABLES, "EGL device that renders, for all ranks"),
    "EGL_PLATFORM": "how Mesa's EGL starts; surfaceless needs no display",
    "LIBGL_ALWAYS_SOFTWARE": "1 makes Mesa render on the CPU",
    "GALLIUM_DRIVER": "Mesa's driver; llvmpipe is the CPU",
    "__EGL_VENDOR_LIBRARY_FILENAMES": "the only EGL drivers that are looked at",
    "MAGNUM_DEVICE": "EGL device of habitat-sim's renderer",
    "MAGNUM_LOG": "what habitat-sim's renderer prints",
    "HABITAT_SIM_LOG": "what habitat-sim prints",
    "NVIDIA_DRIVER_CAPABILITIES": "what a container gets of the driver; rendering needs graphics in it, or all",
    "DISPLAY": "an X server for windows",
}
"""Variables that change rendering -> what each does."""


def checks(scope: Scope) -> list[Check]:
    """Each backend, the devices that EGL sees, and what a training run sets."""
    works: dict[str, bool] = {}
    return [
        ("egl", lambda: backend_row("egl", works)),
        ("osmesa", lambda: backend_row("osmesa", works)),
        ("glfw", lambda: glfw_row(works)),
        ("egl devices", lambda: devices_rows(scope)),
        *((f"egl {gpu}", lambda gpu=gpu: own_gpu_row(gpu)) for gpu in scope.devices[1:]),
        ("variables", variables_row),
        ("a run sets", lambda: run_row(scope)),
    ]


def backend_row(backend: str, works: dict[str, bool], function: str = FUNCTION, timeout_s: float = TIMEOUT_S) -> Row:
    """Whether a backend renders, with which device and how fast.

    Args:
        backend: egl, osmesa or glfw.
        works: Backend -> whether it rendered; read (osmesa is no loss where egl works) and written.
        function: What the child runs.
        timeout_s: Seconds that it has.
    """
    if importlib.util.find_spec("mujoco") is None:
        return skipped(backend, "mujoco is not installed", "pip install 'powerband[gym]' brings it.")
    unset = dict.fromkeys((*DEVICE_VARIABLES, "EGL_PLATFORM"))  # the row is about the backend, not about a choice
    environment = {**unset, "MUJOCO_GL": backend, "PYOPENGL_PLATFORM": None if backend == "glfw" else backend}
    outcome = ask(function, [], timeout_s=timeout_s, environment=environment)
    works[backend] = not outcome.problem
    if outcome.problem:
        cause, advice = explain(backend, outcome)
        # Any one backend is enough to render with; egl is tried first.
        bad = warn if backend != "egl" and works.get("egl") else fail
        return bad(backend, cause, advice)
    return _rendered(backend, outcome.value)


def _rendered(backend: str, found: dict[str, Any]) -> Row:
    rate, plain = found["frames_per_s"], found["plain_frames_per_s"]
    text = (
        f"{found['renderer']} ({found['vendor']}), {rate:.0f} frames/s at {SIZE} px, {plain:.0f} without shadows and "
        f"multisampling"
    )
    figures = {
        "vendor": found["vendor"],
        "renderer": found["renderer"],
        "gl_version": found["version"],
        "frames_per_s": round(rate, 1),
        "plain_frames_per_s": round(plain, 1),
        "start_s": round(found["start_s"], 2),
        "software": is_software(found["renderer"]),
    }
    if found["blank"]:
        return fail(
            backend,
            f"{text}; every pixel is the same: nothing is drawn",
            "Update the graphics driver, and use the other backend until then.",
            **figures,
        )
    if figures["software"]:
        advice = "Pictures are drawn by the CPU: on a machine with a GPU, see row egl devices; without one, switch off "
        advice += "shadows and multisampling (offsamples=0), which is most of the cost."
        return warn(backend, f"SOFTWARE RENDERING: {text}", advice, **figures)
    return ok(backend, text, **figures)


def is_software(renderer: str) -> bool:
    """Whether OpenGL's name for its renderer is that of a program on the CPU."""
    return any(word in f"{renderer.lower()} " for word in SOFTWARE)


def explain(backend: str, outcome: Outcome) -> tuple[str, str]:
    """(true cause, what to do) of a backend that did not render, in words."""
    text = f"{outcome.problem}\n{outcome.output}"
    reason = missing(backend) if backend in ("egl", "osmesa") else ""
    if reason:
        library = {"egl": "libEGL", "osmesa": "libOSMesa"}[backend]
        return f"{library} cannot be loaded ({reason}); mujoco says: {outcome.problem}", f"Run {INSTALL}."
    if outcome.kind == "hang":
        return outcome.problem, "The driver hangs: try the other backend (MUJOCO_GL), and reinstall the GPU's driver."
    if outcome.kind == "crash":
        return outcome.problem, "The driver crashes: try the other backend (MUJOCO_GL), and reinstall the GPU's driver."
    if "glGetError" in text or "libGL" in text or "libOpenGL" in text:
        return f"libGL cannot be loaded; mujoco says: {outcome.problem}", f"Run {INSTALL}."
    if backend == "egl" and ("EGL" in text or "display" in text):
        return _explain_egl(outcome)
    if "No module named" in text:
        return outcome.problem, "Run pip install PyOpenGL glfw: MuJoCo renders with them."
    return outcome.problem, f"Run {INSTALL}, and look at the whole message with MUJOCO_GL={backend}."


def _explain_egl(outcome: Outcome) -> tuple[str, str]:
    """libEGL is there and mujoco got no display out of it: its devices say why."""
    try:
        devices = egl_devices(open_each=True)
    except EglError as error:
        return f"{error}; mujoco says: {outcome.problem}", f"Run {INSTALL}, or install the GPU's driver."
    if not devices:
        return (
            "libEGL is here and no driver behind it: it lists no device",
            f"Run apt-get install -y libegl-mesa0 for software, or, for an NVIDIA GPU, {CONTAINER}.",
        )
    closed = [device for device in devices if device.error]
    if len(closed) == len(devices):
        names = ", ".join(f"{device.index} {device.error}" for device in closed)
        drivers = " Mesa's drivers are missing (libgl1-mesa-dri)." if "swrast" in outcome.output else ""
        return (
            f"none of the {len(devices)} EGL devices opens ({names}).{drivers}",
            "Run apt-get install -y libgl1-mesa-dri, and give this user access to the GPU (groups video and render, "
            "/dev/dri in a container).",
        )
    return outcome.problem, f"Some EGL devices open: choose one with MUJOCO_EGL_DEVICE_ID, or run {INSTALL}."


def glfw_row(works: dict[str, bool]) -> Row:
    """GLFW opens windows, so it is looked at only where there is a display."""
    if not has_display(os.environ):
        return skipped("glfw", "no display here (DISPLAY and WAYLAND_DISPLAY are not set): windows cannot be opened")
    return backend_row("glfw", works)


def devices_rows(scope: Scope) -> Row | list[Row]:
    """The devices in EGL's order, with CUDA's number for each: the map that ranks are put on GPUs by."""
    if missing("egl"):
        return skipped("egl devices", "no libEGL: see row egl")
    try:
        devices = egl_devices(open_each=True)
    except EglError as error:
        return fail("egl devices", str(error), f"Run {INSTALL}, or reinstall the GPU's driver.")
    rows = [_device_row(device) for device in devices]
    gpus = len(scope.devices) - 1
    mapped = sum(device.cuda is not None or bool(device.uuid) for device in devices)
    if gpus and not mapped:
        advice = f"For a container {CONTAINER}; elsewhere install the driver's GL part (libnvidia-gl)."
        rows.append(
            fail("cuda to egl", f"{gpus} CUDA GPU(s), and EGL sees none of them: pictures are drawn by the CPU", advice)
        )
    elif gpus:
        pairs = {str(device.cuda): device.index for device in devices if device.cuda is not None}
        text = ", ".join(f"cuda:{cuda} is EGL device {index}" for cuda, index in pairs.items()) or "by identity (uuid)"
        rows.append(ok("cuda to egl", text, cuda_to_egl=pairs))
    return rows or fail("egl devices", "EGL lists no device", f"Run {INSTALL}, or install the GPU's driver.")


def _device_row(device: EglDevice) -> Row:
    name = f"egl device {device.index}"
    parts = [device.vendor, device.renderer, device.drm, "software" if device.software else ""]
    parts += [f"cuda:{device.cuda}"] if device.cuda is not None else []
    text, figures = ", ".join(filter(None, parts)), device.__dict__
    if device.error:
        text = ", ".join(filter(None, (text, f"does not open: {device.error}")))
        return warn(
            name,
            text,
            "Give this user access to it (groups video and render; /dev/dri in a container), or "
            "name another in MUJOCO_EGL_DEVICE_ID.",
            **figures,
        )
    return ok(name, text, **figures)


def own_gpu_row(gpu: Any, function: str = FUNCTION) -> Row:
    """Whether a rank on `gpu` renders on it, with the variables that a run sets for that rank."""
    name = f"egl {gpu}"
    no_egl, devices = look_at_egl()
    variables = settings({}, no_egl, "", *identity(gpu), devices).variables
    if no_egl or "MUJOCO_EGL_DEVICE_ID" not in variables:
        return skipped(name, "EGL does not say which of its devices this GPU is: see row cuda to egl")
    outcome = ask(function, [], timeout_s=TIMEOUT_S, environment={"EGL_PLATFORM": None, **variables})
    where = f"EGL device {variables['MUJOCO_EGL_DEVICE_ID']}"
    if outcome.problem:
        advice = "Give this user access to it (groups video and render; /dev/dri in a container)."
        return fail(name, f"{where}: {outcome.problem}", advice)
    row = _rendered(name, outcome.value)
    return replace(row, measured=f"{where}: {row.measured}")


def variables_row() -> Row:
    """The variables that are set here and change rendering, and what each does."""
    found = {name: os.environ[name] for name in VARIABLES if os.environ.get(name)}
    text = "; ".join(f"{name}={value}: {VARIABLES[name]}" for name, value in found.items()) or "none is set"
    forced = forced_software(os.environ)
    if forced:
        return warn("variables", text, f"{forced} renders on the CPU: unset it where there is a GPU.", set=found)
    return ok("variables", text, set=found)


def run_row(scope: Scope) -> Row:
    """What a training run sets for its first rank here, and where the user's own words are in the way."""
    no_egl, devices = look_at_egl()
    found = settings(os.environ, no_egl, missing("osmesa"), 0 if len(scope.devices) > 1 else None, "", devices)
    sets = " ".join(f"{name}={value}" for name, value in found.variables.items())
    text = f"{found.line or 'nothing'}; sets {sets or 'nothing'}"
    if found.notices:
        return warn("a run sets", text, " ".join(found.notices), sets=found.variables)
    if not found.variables and found.line.startswith("none"):
        return warn("a run sets", text, f"Run {INSTALL} before training anything that renders.", sets={})
    return ok("a run sets", text, sets=found.variables)
