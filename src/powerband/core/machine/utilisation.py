"""Utilisation: processor and memory of a process with its workers, from /proc, and of a GPU, from NVML."""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path
from typing import Any

from powerband.core.machine.gpu_counters import GpuCounters

TICKS_PER_S = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


def process_tree(pid: int) -> list[int]:
    """Process `pid` and all below it that live; empty where there is no such process or no ``/proc``."""
    found, waiting = [], [pid]
    while waiting:
        pid = waiting.pop()
        tasks = Path(f"/proc/{pid}/task")
        try:
            waiting += [int(word) for task in tasks.iterdir() for word in (task / "children").read_text().split()]
        except OSError:
            if not tasks.exists():
                continue
        found.append(pid)
    return found


def process_usage(pids: list[int]) -> tuple[float, int]:
    """(processor seconds so far, bytes in memory) of processes together; pages that two of them share count twice."""
    cpu_s, memory = 0.0, 0
    for pid in pids:
        try:
            words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        cpu_s += (int(words[11]) + int(words[12])) / TICKS_PER_S
        memory += int(words[21]) * PAGE_BYTES
    return cpu_s, memory


class Utilisation:
    """What this rank's process, its workers and its GPU used since the last look.

    Args:
        device: The GPU, where it is one.
    """

    def __init__(self, device: Any = "cpu") -> None:
        self._gpu = GPU.of(device) if str(device).startswith("cuda") else None
        self._cpu: dict[int, float] = {}
        self._at = time.perf_counter()
        self.read()

    def read(self) -> dict[str, float]:
        """Figures since the last call; what cannot be read is left out.

        Returns:
            ``perf/cpu_cores`` (cores busy on average), ``perf/memory_gib``, and on a GPU ``perf/gpu_active`` (share of
            the driver's last sample window in which any kernel ran: 1 on a hung collective too),
            ``perf/gpu_memory_gib`` and ``perf/gpu_power`` (share of the limit, which a waiting kernel does not draw);
            from Hopper on the counters of `gpm` (multiprocessors, warps, tensor cores, memory bandwidth).
        """
        now, pids = time.perf_counter(), process_tree(os.getpid())
        seconds, self._at = max(now - self._at, 1e-9), now
        before, self._cpu = self._cpu, {pid: process_usage([pid])[0] for pid in pids}
        figures: dict[str, float] = {}
        if pids:
            figures["perf/cpu_cores"] = sum(cpu - before.get(pid, 0.0) for pid, cpu in self._cpu.items()) / seconds
            figures["perf/memory_gib"] = process_usage(pids)[1] / 2**30
        return figures | (self._gpu.read() if self._gpu is not None else {})


class _Rates(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class GPU:
    """One GPU through NVML, which comes with the driver.

    Args:
        nvml: The library.
        handle: NVML's handle of the GPU.
    """

    def __init__(self, nvml: ctypes.CDLL, handle: ctypes.c_void_p) -> None:
        self._nvml, self._handle = nvml, handle
        self._gpm = GpuCounters.of(nvml, handle)

    @classmethod
    def of(cls, device: Any) -> GPU | None:
        """The GPU that torch calls `device`, found by its UUID; None where there is no NVML or it does not know it."""
        import torch

        try:
            nvml = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            return None
        uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}".encode()
        handle = ctypes.c_void_p()
        if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetHandleByUUID(uuid, ctypes.byref(handle)):
            return None
        return cls(nvml, handle)

    def read(self) -> dict[str, float]:
        """Figures of now; see `Utilisation.read`."""
        rates, memory, power, limit = _Rates(), _Memory(), ctypes.c_uint(), ctypes.c_uint()
        figures: dict[str, float] = {}
        if not self._nvml.nvmlDeviceGetUtilizationRates(self._handle, ctypes.byref(rates)):
            figures["perf/gpu_active"] = rates.gpu / 100
        if not self._nvml.nvmlDeviceGetMemoryInfo(self._handle, ctypes.byref(memory)):
            figures["perf/gpu_memory_gib"] = memory.used / 2**30
        draws = self._nvml.nvmlDeviceGetPowerUsage(self._handle, ctypes.byref(power))
        if not draws and not self._nvml.nvmlDeviceGetEnforcedPowerLimit(self._handle, ctypes.byref(limit)):
            figures["perf/gpu_power"] = power.value / max(limit.value, 1)
        return figures | (self._gpm.read() if self._gpm is not None else {})
