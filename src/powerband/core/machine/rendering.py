"""Rendering without a display: which backend a rank renders with, and on which GPU; set before a simulator is imported.

MuJoCo, robosuite, PyRender and PyBullet read environment variables when they are imported, so a run sets them at its
start and its worker processes inherit them. What the user has set stays; where it contradicts itself or the machine a
notice says so. Nothing is set on a machine that could not use it: with ``MUJOCO_GL=egl`` and no libEGL, importing
mujoco fails even where nothing is rendered.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from powerband.core.machine.egl import EglDevice, EglError, egl_devices, missing_library

DEVICE_VARIABLES = ("MUJOCO_EGL_DEVICE_ID", "EGL_DEVICE_ID", "EGL_VISIBLE_DEVICES")
"""Where simulators look for the EGL device: MuJoCo and robosuite, PyRender, PyBullet."""
PACKAGES = "libegl1 libgl1 libosmesa6"
INSTALL = f"apt-get install -y {PACKAGES}"
"""What a machine without rendering libraries lacks (Debian and Ubuntu names)."""
CONTAINER = (
    "start the container with NVIDIA_DRIVER_CAPABILITIES=all (or with graphics in it), so that NVIDIA's EGL is in it"
)
_OFF = ("disable", "disabled", "off", "false", "0")


@dataclass(frozen=True)
class Rendering:
    """What a rank renders with.

    Attributes:
        variables: To set; never one that was set already.
        line: What they come to, for the start banner.
        notices: Where what the user set contradicts itself, the machine or the rank.
    """

    variables: dict[str, str] = field(default_factory=dict)
    line: str = ""
    notices: tuple[str, ...] = ()


def prepare(device: Any = None, environment: MutableMapping[str, str] = os.environ) -> Rendering:
    """Sets the variables for a rank on `device` (a torch.device; None is any), and returns what was set."""
    if sys.platform != "linux":
        return Rendering()
    gpu, uuid = identity(device) if device is not None and device.type == "cuda" else (None, "")
    wanted = gpu is not None or not environment.get("MUJOCO_GL")  # else there is nothing that EGL could decide
    no_egl, devices = query_egl() if wanted else (missing_library("egl"), [])
    found = settings(environment, no_egl, missing_library("osmesa"), gpu, uuid, devices)
    environment.update(found.variables)
    return found


def settings(
    environment: Mapping[str, str],
    no_egl: str,
    no_osmesa: str,
    gpu: int | None = None,
    uuid: str = "",
    devices: Sequence[EglDevice] = (),
) -> Rendering:
    """What to set in `environment`.

    Args:
        environment: Variables as they are.
        no_egl, no_osmesa: Why a backend cannot be used, "" where it can.
        gpu: The rank's GPU as CUDA numbers it in this process, None for a CPU rank.
        uuid: The same GPU's identity.
        devices: What EGL sees.
    """
    notices: list[str] = []
    said, platform = (environment.get(name, "").strip().lower() for name in ("MUJOCO_GL", "PYOPENGL_PLATFORM"))
    backend = said or (platform if platform in ("egl", "osmesa") else "")
    lacks = {"egl": no_egl, "osmesa": no_osmesa}
    if not backend:
        backend = next((name for name, reason in lacks.items() if not reason), "")
    if said in _OFF:
        return Rendering(line=f"off (MUJOCO_GL={said})")
    if backend not in lacks:
        if said == "glfw" and not has_display(environment):
            notices.append("MUJOCO_GL=glfw needs a display and there is none here: unset it, or write MUJOCO_GL=egl.")
        line = f"{backend} (MUJOCO_GL)" if backend else f"none: neither EGL nor OSMesa works here ({INSTALL})"
        return Rendering(line=line, notices=tuple(notices))
    if lacks[backend]:
        name = "MUJOCO_GL" if said else "PYOPENGL_PLATFORM"
        notices.append(
            f"{name}={backend} cannot be used here ({lacks[backend]}), and without its library importing mujoco fails. "
            f"Run {INSTALL}, or unset {name}."
        )
    if platform and platform != backend:
        notices.append(
            f"MUJOCO_GL={backend} and PYOPENGL_PLATFORM={platform} contradict each other, and mujoco refuses to be "
            f"imported. Unset PYOPENGL_PLATFORM."
        )
    wanted = {"MUJOCO_GL": backend, "PYOPENGL_PLATFORM": backend}
    line = backend
    if backend == "egl":
        if not has_display(environment):
            wanted["EGL_PLATFORM"] = "surfaceless"  # Mesa tries X11 and Wayland first where it is not told
        index = None if gpu is None else egl_index(devices, gpu, uuid)
        if index is not None:
            wanted |= dict.fromkeys(DEVICE_VARIABLES, str(index))
            line += f" on device {index}, which is this rank's cuda:{gpu}"
            notices += _elsewhere(environment, index, gpu)
        elif gpu is not None:
            line += _without_gpu(devices)
        if gpu is not None and forced_software(environment):
            notices.append(f"{forced_software(environment)} renders on the CPU although there is a GPU: unset it.")
    variables = {name: value for name, value in wanted.items() if not environment.get(name, "").strip()}
    return Rendering(variables, line, tuple(notices))


def query_egl() -> tuple[str, list[EglDevice]]:
    """(why EGL cannot render here, "" where it may; its devices)."""
    reason, devices = missing_library("egl"), []
    if not reason:
        try:
            devices = egl_devices()
        except EglError as error:
            reason = str(error)
    return reason or ("" if devices else "no driver behind libEGL: it lists no device"), devices


def egl_index(devices: Sequence[EglDevice], gpu: int, uuid: str = "") -> int | None:
    """EGL's number of the GPU that CUDA calls `gpu`: by identity where EGL says it, else by CUDA's number."""
    same = [device.index for device in devices if uuid and device.uuid == uuid]
    numbered = [device.index for device in devices if device.cuda == gpu]
    return next(iter(same + numbered), None)


def forced_software(environment: Mapping[str, str]) -> str:
    """The variable, with its value, that makes Mesa render on the CPU; "" where none does."""
    for name, idle in (("LIBGL_ALWAYS_SOFTWARE", ("", "0", "false", "no", "off")), ("GALLIUM_DRIVER", ("",))):
        value = environment.get(name, "").strip().lower()
        if value not in idle and (name != "GALLIUM_DRIVER" or value in ("llvmpipe", "softpipe", "swr")):
            return f"{name}={environment[name]}"
    return ""


def has_display(environment: Mapping[str, str]) -> bool:
    """True where windows could be opened."""
    return bool(environment.get("DISPLAY") or environment.get("WAYLAND_DISPLAY"))


def _elsewhere(environment: Mapping[str, str], index: int, gpu: int) -> list[str]:
    other = {name: environment[name] for name in DEVICE_VARIABLES if environment.get(name, str(index)) != str(index)}
    return [
        f"{name}={value} makes every rank render on EGL device {value}, and this rank's cuda:{gpu} is EGL device "
        f"{index}: unset {name}, each rank then gets its own."
        for name, value in other.items()
    ]


def _without_gpu(devices: Sequence[EglDevice]) -> str:
    if any(not device.software for device in devices):
        return ", the first device: EGL does not say which one is this rank's GPU"
    return f" in software: EGL sees no GPU here ({CONTAINER})"


def identity(device: Any) -> tuple[int, str]:
    """(number, 32 hexadecimal digits) of a CUDA device."""
    import torch

    index = torch.cuda.current_device() if device.index is None else device.index
    uuid = str(getattr(torch.cuda.get_device_properties(index), "uuid", "")).lower().removeprefix("gpu-")
    return index, uuid.replace("-", "")
