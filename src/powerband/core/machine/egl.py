"""EGL devices: lists the devices of libEGL in EGL's order, with the CUDA number of each.

EGL and CUDA number the same GPUs independently, and CUDA_VISIBLE_DEVICES changes CUDA's numbers only. As a script
this file prints the list as JSON. `egl_devices` runs it in a child process, so that the crash of a driver
does not end the run.

Source: EGL_EXT_device_enumeration, EGL_EXT_device_query_name, EGL_EXT_device_persistent_id, EGL_NV_device_cuda.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from typing import Any

LIBRARIES = {"egl": "EGL", "osmesa": "OSMesa"}
"""Backend of `MUJOCO_GL` -> name of its library, without ``lib`` and ``.so``."""
MAX_DEVICES = 64
DRIVER_TIMEOUT_S = 15.0
"""Time limit for the drivers."""

ERRORS = {
    0x3000: "EGL_SUCCESS",
    0x3001: "EGL_NOT_INITIALIZED",
    0x3002: "EGL_BAD_ACCESS",
    0x3003: "EGL_BAD_ALLOC",
    0x3004: "EGL_BAD_ATTRIBUTE",
    0x3005: "EGL_BAD_CONFIG",
    0x3006: "EGL_BAD_CONTEXT",
    0x3007: "EGL_BAD_CURRENT_SURFACE",
    0x3008: "EGL_BAD_DISPLAY",
    0x3009: "EGL_BAD_MATCH",
    0x300A: "EGL_BAD_NATIVE_PIXMAP",
    0x300B: "EGL_BAD_NATIVE_WINDOW",
    0x300C: "EGL_BAD_PARAMETER",
    0x300D: "EGL_BAD_SURFACE",
    0x300E: "EGL_CONTEXT_LOST",
}
_VENDOR, _EXTENSIONS = 0x3053, 0x3055
_DRM_FILE, _CUDA_DEVICE, _DEVICE_UUID, _RENDERER = 0x3233, 0x323A, 0x335C, 0x335F
_PLATFORM_DEVICE = 0x313F


@dataclass(frozen=True)
class EglDevice:
    """One device that EGL lists: a GPU or a software renderer.

    Attributes:
        index: EGL's number of the device, the value of MUJOCO_EGL_DEVICE_ID.
        cuda: CUDA's number of the same GPU; None if unknown.
        uuid: UUID of the GPU, 32 hexadecimal digits, the same in CUDA and EGL; "" if unknown.
        vendor: Vendor of the driver, such as NVIDIA or Mesa Project; "" for a device that was not or cannot be opened.
        renderer: Name of the device; "" if unknown.
        drm: Path of the DRM device file; "" if the device has none.
        software: True for a device that renders on the CPU.
        error: Name of the EGL error of a device that cannot be opened, else "".
    """

    index: int
    cuda: int | None = None
    uuid: str = ""
    vendor: str = ""
    renderer: str = ""
    drm: str = ""
    software: bool = False
    error: str = ""


class EglError(RuntimeError):
    """libEGL is missing or fails. The text states the reason."""


def load_library(name: str) -> ctypes.CDLL:
    """Loads the shared library ``lib<name>``, with the search order of PyOpenGL.

    Raises:
        OSError: The library is missing or cannot be loaded. The message comes from the dynamic loader.
    """
    first: OSError | None = None
    for version in ("", *(f".{number}" for number in range(9, -1, -1))):
        try:
            return ctypes.CDLL(f"lib{name}.so{version}")
        except OSError as error:
            if first is None or "cannot open" in str(first):  # prefers the error of a broken file to a missing one
                first = error
    assert first is not None
    raise first


def missing_library(backend: str) -> str:
    """The reason why the library of `backend` ("egl" or "osmesa") cannot be loaded; "" if it loads."""
    try:
        load_library(LIBRARIES[backend])
    except OSError as error:
        return str(error)
    return ""


def egl_devices(open_each: bool = False, timeout_s: float = DRIVER_TIMEOUT_S) -> list[EglDevice]:
    """Lists the EGL devices (GPUs and software renderers) of this machine, in a child process.

    Args:
        open_each: Open each device too, for its `vendor` and `error`. This can take a second per GPU.
        timeout_s: Time limit for the drivers, in seconds.

    Raises:
        EglError: libEGL is missing or cannot list devices, or a driver crashed or hung.
    """
    # Without site packages the child starts faster; every run waits for it.
    command = [sys.executable, "-P", "-S", __file__, *(["open"] if open_each else [])]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise EglError(f"the EGL drivers did not answer within {timeout_s:g} s") from None
    if done.returncode < 0:
        raise EglError(f"an EGL driver crashed (signal {-done.returncode}) while it listed its devices")
    try:
        answer = json.loads(done.stdout.splitlines()[-1])  # drivers may print other lines before it
    except (ValueError, IndexError):
        reason = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise EglError(f"the EGL devices could not be listed: {reason}") from None
    if "error" in answer:
        raise EglError(answer["error"])
    return [EglDevice(**device) for device in answer["devices"]]


def main(open_each: bool) -> None:
    """Prints the EGL devices as JSON: ``{"devices": [...]}``, or ``{"error": "..."}`` with the reason of a failure.

    True for `open_each` opens each device too, to report its vendor and error.
    """
    try:
        print(json.dumps({"devices": [asdict(device) for device in _query_devices(load_library("EGL"), open_each)]}))
    except (OSError, EglError) as error:
        print(json.dumps({"error": str(error)}))


def _query_devices(library: Any, open_each: bool) -> list[EglDevice]:
    pointer, integer, text = ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p
    library.eglGetProcAddress.restype, library.eglGetProcAddress.argtypes = pointer, [text]
    library.eglQueryString.restype, library.eglQueryString.argtypes = text, [pointer, integer]

    def function(name: str, *kinds: Any) -> Any:
        address = library.eglGetProcAddress(name.encode())
        return ctypes.CFUNCTYPE(*kinds)(address) if address else None

    integers = ctypes.POINTER(integer)
    query_devices = function("eglQueryDevicesEXT", ctypes.c_uint, integer, ctypes.POINTER(pointer), integers)
    if query_devices is None:
        raise EglError("this EGL cannot list devices (no EGL_EXT_device_enumeration): its driver is too old")
    found, count = (pointer * MAX_DEVICES)(), integer()
    if not query_devices(MAX_DEVICES, found, ctypes.byref(count)):
        raise EglError("libEGL is installed, but it finds no EGL driver (eglQueryDevicesEXT failed)")
    queries = (
        function("eglQueryDeviceStringEXT", text, pointer, integer),
        function("eglQueryDeviceAttribEXT", ctypes.c_uint, pointer, integer, ctypes.POINTER(ctypes.c_ssize_t)),
        function("eglQueryDeviceBinaryEXT", ctypes.c_uint, pointer, integer, integer, pointer, integers),
        function("eglGetPlatformDisplayEXT", pointer, ctypes.c_uint, pointer, pointer) if open_each else None,
    )
    return [_describe(library, index, found[index], *queries) for index in range(count.value)]


def _describe(
    library: Any, index: int, device: int | None, string: Any, attribute: Any, binary: Any, display_of: Any
) -> EglDevice:
    def query_string(name: int) -> str:
        return ((string and string(device, name)) or b"").decode(errors="replace")

    extensions = set(query_string(_EXTENSIONS).split())
    cuda, uuid = None, ""
    number = ctypes.c_ssize_t()
    if "EGL_NV_device_cuda" in extensions and attribute and attribute(device, _CUDA_DEVICE, ctypes.byref(number)):
        cuda = int(number.value)
    data, size = ctypes.create_string_buffer(16), ctypes.c_int()
    if "EGL_EXT_device_persistent_id" in extensions and binary:
        if binary(device, _DEVICE_UUID, 16, data, ctypes.byref(size)) and size.value == 16:
            uuid = data.raw.hex()
    vendor, error = _open(library, display_of, device) if display_of else ("", "")
    return EglDevice(
        index,
        cuda=cuda,
        uuid=uuid,
        vendor=vendor,
        renderer=query_string(_RENDERER) if "EGL_EXT_device_query_name" in extensions else "",
        drm=query_string(_DRM_FILE) if "EGL_EXT_device_drm" in extensions else "",
        software="EGL_MESA_device_software" in extensions,
        error=error,
    )


def _open(library: Any, display_of: Any, device: int | None) -> tuple[str, str]:
    """Opens a device and returns (vendor, ""), or ("", name of the error) on failure."""
    library.eglInitialize.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    library.eglTerminate.argtypes = [ctypes.c_void_p]
    display = display_of(_PLATFORM_DEVICE, device, None)
    if not display or not library.eglInitialize(display, None, None):
        code = library.eglGetError()
        return "", ERRORS.get(code, hex(code))
    vendor = (library.eglQueryString(display, _VENDOR) or b"").decode(errors="replace")
    library.eglTerminate(display)
    return vendor, ""


if __name__ == "__main__":
    main("open" in sys.argv[1:])
