"""NVML: reads temperature, power, memory and clocks of NVIDIA GPUs from the driver through ctypes."""

from __future__ import annotations

import ctypes
from typing import Any

ERROR_TEXTS = {
    3: "not supported here",
    4: "no permission",
    6: "not found",
    9: "the driver is not loaded",
    10: "the driver did not answer in time",
    15: "a GPU is lost",
    18: "library and driver have different versions",
    999: "unknown error",
}
THROTTLE_REASONS = {
    0x2: "application clocks",
    0x4: "power limit",
    0x8: "hardware slowdown",
    0x20: "temperature (software)",
    0x40: "temperature (hardware)",
    0x80: "power brake",
}
"""Bit of NVML's throttle reasons -> cause of the lower clocks."""


class NvmlError(RuntimeError):
    """NVML is missing or returned an error; the message states which."""


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


def open_library() -> Any:
    """Loads the library of NVML, NVIDIA's management library, and returns it as a ctypes library.

    Raises:
        NvmlError: The library cannot be loaded.
    """
    try:
        return ctypes.CDLL("libnvidia-ml.so.1")
    except OSError as error:
        raise NvmlError(f"no NVML ({error})") from error


def read_gpus(library: Any) -> dict[str, Any]:
    """Reads the driver version and the state of every GPU. Values that NVML refuses to return are omitted.

    Args:
        library: Result of `open_library`.

    Returns:
        {"driver": version, "gpus": [{"index", "name", "uuid", "memory_gib", "free_gib", "temperature_c", "power_w",
        "power_limit_w", "pcie_gen", "pcie_gen_max", "pcie_width": lanes, "pcie_width_max",
        "slowed": bits of `THROTTLE_REASONS`}]}. Temperatures are in degrees Celsius and powers in watts.

    Raises:
        NvmlError: The permission or the driver is missing, or driver and library have different versions.
    """
    _checked(library.nvmlInit_v2(), "nvmlInit")
    try:
        driver = ctypes.create_string_buffer(96)
        _checked(library.nvmlSystemGetDriverVersion(driver, 96), "nvmlSystemGetDriverVersion")
        count = ctypes.c_uint()
        _checked(library.nvmlDeviceGetCount_v2(ctypes.byref(count)), "nvmlDeviceGetCount")
        gpus = [_gpu(library, index) for index in range(count.value)]
        return {"driver": driver.value.decode(errors="replace"), "gpus": gpus}
    finally:
        library.nvmlShutdown()


def _gpu(library: Any, index: int) -> dict[str, Any]:
    handle = ctypes.c_void_p()
    _checked(library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)), f"GPU {index}")
    state: dict[str, Any] = {"index": index}

    def text(name: str, function: str) -> None:
        buffer = ctypes.create_string_buffer(96)
        if getattr(library, function)(handle, buffer, 96) == 0:
            state[name] = buffer.value.decode(errors="replace")

    def number(name: str, function: str, *arguments: int, scale: float = 1, kind: Any = ctypes.c_uint) -> None:
        value = kind()
        if getattr(library, function)(handle, *arguments, ctypes.byref(value)) == 0:
            state[name] = value.value if scale == 1 else round(value.value * scale, 1)

    text("name", "nvmlDeviceGetName")
    text("uuid", "nvmlDeviceGetUUID")
    memory = _Memory()
    if library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == 0:
        state |= {"memory_gib": round(memory.total / 2**30, 1), "free_gib": round(memory.free / 2**30, 1)}
    number("temperature_c", "nvmlDeviceGetTemperature", 0)
    number("power_w", "nvmlDeviceGetPowerUsage", scale=1e-3)
    number("power_limit_w", "nvmlDeviceGetEnforcedPowerLimit", scale=1e-3)
    number("pcie_gen", "nvmlDeviceGetCurrPcieLinkGeneration")
    number("pcie_gen_max", "nvmlDeviceGetMaxPcieLinkGeneration")
    number("pcie_width", "nvmlDeviceGetCurrPcieLinkWidth")
    number("pcie_width_max", "nvmlDeviceGetMaxPcieLinkWidth")
    number("slowed", "nvmlDeviceGetCurrentClocksThrottleReasons", kind=ctypes.c_ulonglong)
    return state


def throttle_reasons(bits: int) -> list[str]:
    """Returns why the clocks of a GPU are reduced, one text per cause; an idle GPU is not a cause.

    Args:
        bits: Bits of `THROTTLE_REASONS`, the value ``slowed`` of a GPU in the result of `read_gpus`.
    """
    return [reason for bit, reason in THROTTLE_REASONS.items() if bits & bit]


def _checked(code: int, call: str) -> None:
    if code:
        raise NvmlError(f"NVML: {ERROR_TEXTS.get(code, f'error {code}')} ({call})")
