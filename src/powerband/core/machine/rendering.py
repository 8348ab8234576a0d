"""Rendering: chooses the rendering backend and the GPU of a rank, before a simulator is imported.

MuJoCo, robosuite, PyRender and PyBullet read environment variables when they are imported. A run sets them at its
start, and its worker processes inherit them. The user's own values stay; a notice reports contradictions. A backend is
set only if its library loads, because importing mujoco with ``MUJOCO_GL=egl`` fails without libEGL.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from powerband.core.machine.egl import EglDevice, EglError, egl_devices, missing_library

DEVICE_VARIABLES = ("MUJOCO_EGL_DEVICE_ID", "EGL_DEVICE_ID", "EGL_VISIBLE_DEVICES")
"""Variables with the EGL device: for MuJoCo and robosuite, PyRender, PyBullet."""
PACKAGES = "libegl1 libgl1 libosmesa6"
INSTALL = f"apt-get install -y {PACKAGES}"
"""Command that installs the rendering libraries (Debian and Ubuntu)."""
CONTAINER = (
    "start the container with NVIDIA_DRIVER_CAPABILITIES=all (or a list with graphics) to make NVIDIA's EGL available"
)
_OFF = ("disable", "disabled", "off", "false", "0")


@dataclass(frozen=True)
class Rendering:
    """Rendering settings of a rank (one process of a run).

    Attributes:
        variables: Environment variables to set, without those that the user has set.
        line: Summary for the banner that a run prints at its start.
        notices: Messages for the user about contradictions between the variables, the machine and the rank's GPU.
    """

    variables: dict[str, str] = field(default_factory=dict)
    line: str = ""
    notices: tuple[str, ...] = ()


def prepare(device: Any = None, environment: MutableMapping[str, str] = os.environ) -> Rendering:
    """Chooses the rendering backend and its GPU for this process, and sets the environment variables for it.

    Args:
        device: Torch device of the process; None means no GPU.
        environment: Environment variables to change. Values that the user has set stay.

    Returns:
        The settings; empty on other systems than Linux.
    """
    if sys.platform != "linux":
        return Rendering()
    gpu, uuid = cuda_index_and_uuid(device) if device is not None and device.type == "cuda" else (None, "")
    needs_devices = gpu is not None or not environment.get("MUJOCO_GL")  # otherwise the devices have no effect
    no_egl, devices = query_egl() if needs_devices else (missing_library("egl"), [])
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
    """Chooses the rendering backend (EGL or OSMesa), its GPU and the environment variables for them.

    Args:
        environment: Current environment variables; they are not changed.
        no_egl, no_osmesa: Reason why EGL or OSMesa cannot be used, "" if it can.
        gpu: CUDA's number of the rank's GPU in this process, None for a CPU rank.
        uuid: UUID of this GPU, "" if unknown.
        devices: Devices that EGL lists.
    """
    notices: list[str] = []
    mujoco_gl, platform = (environment.get(name, "").strip().lower() for name in ("MUJOCO_GL", "PYOPENGL_PLATFORM"))
    backend = mujoco_gl or (platform if platform in ("egl", "osmesa") else "")
    failures = {"egl": no_egl, "osmesa": no_osmesa}
    if not backend:
        backend = next((name for name, reason in failures.items() if not reason), "")
    if mujoco_gl in _OFF:
        return Rendering(line=f"off (MUJOCO_GL={mujoco_gl})")
    if backend not in failures:
        if mujoco_gl == "glfw" and not has_display(environment):
            notices.append("MUJOCO_GL=glfw needs a display, and none is set: unset it, or write MUJOCO_GL=egl.")
        line = f"{backend} (MUJOCO_GL)" if backend else f"none: neither EGL nor OSMesa works ({INSTALL})"
        return Rendering(line=line, notices=tuple(notices))
    if failures[backend]:
        name = "MUJOCO_GL" if mujoco_gl else "PYOPENGL_PLATFORM"
        notices.append(
            f"{name}={backend} cannot be used ({failures[backend]}), and the import of mujoco can fail. "
            f"Run {INSTALL}, or unset {name}."
        )
    if platform and platform != backend:
        notices.append(
            f"MUJOCO_GL={backend} and PYOPENGL_PLATFORM={platform} contradict each other, and the import of mujoco "
            f"fails. Unset PYOPENGL_PLATFORM."
        )
    wanted = {"MUJOCO_GL": backend, "PYOPENGL_PLATFORM": backend}
    line = backend
    if backend == "egl":
        if not has_display(environment):
            wanted["EGL_PLATFORM"] = "surfaceless"  # by default Mesa tries X11 and Wayland first
        index = None if gpu is None else egl_index(devices, gpu, uuid)
        if index is not None and gpu is not None:
            wanted |= dict.fromkeys(DEVICE_VARIABLES, str(index))
            line += f" on device {index}, the cuda:{gpu} of this rank"
            notices += _conflicting_devices(environment, index, gpu)
        elif gpu is not None:
            line += _describe_fallback(devices)
        if gpu is not None and forced_software(environment):
            notices.append(f"{forced_software(environment)} renders on the CPU although this rank has a GPU: unset it.")
    variables = {name: value for name, value in wanted.items() if not environment.get(name, "").strip()}
    return Rendering(variables, line, tuple(notices))


def query_egl() -> tuple[str, list[EglDevice]]:
    """Queries EGL. Returns (reason why it cannot render, "" if it can; its devices)."""
    reason, devices = missing_library("egl"), []
    if not reason:
        try:
            devices = egl_devices()
        except EglError as error:
            reason = str(error)
    return reason or ("" if devices else "libEGL is installed without a driver: it lists no device"), devices


def egl_index(devices: Sequence[EglDevice], gpu: int, uuid: str = "") -> int | None:
    """EGL's number of CUDA's device `gpu`; None if `devices` does not contain it.

    The device is found by its UUID, or by CUDA's number if EGL does not report the UUID.
    """
    same = [device.index for device in devices if uuid and device.uuid == uuid]
    numbered = [device.index for device in devices if device.cuda == gpu]
    return next(iter(same + numbered), None)


def forced_software(environment: Mapping[str, str]) -> str:
    """The environment variable, with its value, that makes Mesa render on the CPU; "" if none is set."""
    for name, idle in (("LIBGL_ALWAYS_SOFTWARE", ("", "0", "false", "no", "off")), ("GALLIUM_DRIVER", ("",))):
        value = environment.get(name, "").strip().lower()
        if value not in idle and (name != "GALLIUM_DRIVER" or value in ("llvmpipe", "softpipe", "swr")):
            return f"{name}={environment[name]}"
    return ""


def has_display(environment: Mapping[str, str]) -> bool:
    """True if an X11 or Wayland display is set."""
    return bool(environment.get("DISPLAY") or environment.get("WAYLAND_DISPLAY"))


def _conflicting_devices(environment: Mapping[str, str], index: int, gpu: int) -> list[str]:
    other = {name: environment[name] for name in DEVICE_VARIABLES if environment.get(name, str(index)) != str(index)}
    return [
        f"{name}={value} makes every rank render on EGL device {value}, but cuda:{gpu} of this rank is EGL device "
        f"{index}: unset {name}, and each rank renders on its own GPU."
        for name, value in other.items()
    ]


def _describe_fallback(devices: Sequence[EglDevice]) -> str:
    if any(not device.software for device in devices):
        return ", on the first device: EGL does not identify the GPU of this rank"
    return f" in software: EGL lists no GPU ({CONTAINER})"


def cuda_index_and_uuid(device: Any) -> tuple[int, str]:
    """CUDA's index of a torch device, and its UUID as 32 hexadecimal digits, "" if unknown."""
    import torch

    index = torch.cuda.current_device() if device.index is None else device.index
    uuid = str(getattr(torch.cuda.get_device_properties(index), "uuid", "")).lower().removeprefix("gpu-")
    return index, uuid.replace("-", "")
