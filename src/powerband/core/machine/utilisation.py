"""Utilisation: CPU and memory of a process with its workers (from /proc), and load of a GPU (from NVML)."""

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
    """Ids of process `pid` and its living descendants; empty if the process has ended, or without ``/proc``."""
    found, waiting = [], [pid]
    while waiting:
        pid = waiting.pop()
        tasks = Path(f"/proc/{pid}/task")
        try:
            waiting += [int(child) for task in tasks.iterdir() for child in (task / "children").read_text().split()]
        except OSError:
            if not tasks.exists():
                continue
        found.append(pid)
    return found


def process_usage(pids: list[int]) -> tuple[float, int]:
    """(CPU seconds, resident bytes) of all `pids` together. Pages that two processes share count twice."""
    cpu_s, memory = 0.0, 0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        cpu_s += (int(fields[11]) + int(fields[12])) / TICKS_PER_S
        memory += int(fields[21]) * PAGE_BYTES
    return cpu_s, memory


class Utilisation:
    """Measures the load of this rank's process, its workers and its GPU between two calls of `read`.

    Args:
        device: Torch device of the rank; a GPU adds its metrics.
    """

    def __init__(self, device: Any = "cpu") -> None:
        self._gpu = GPU.of(device) if str(device).startswith("cuda") else None
        self._cpu: dict[int, float] = {}
        self._at = time.perf_counter()
        self.read()

    def read(self) -> dict[str, float]:
        """Reads the metrics since the last call, without those that are not available.

        Returns:
            ``perf/cpu_cores`` (busy cores on average) and ``perf/memory_gib``. On a GPU also ``perf/gpu_active`` (share
            of the driver's last sample window in which any kernel ran, 0 to 1), ``perf/gpu_memory_gib`` and
            ``perf/gpu_power`` (share of the power limit). A GPU that waits for other ranks counts as active, but its
            power is low. GPUs from the Hopper generation on add the metrics of `GpuCounters.read`.
        """
        now, pids = time.perf_counter(), process_tree(os.getpid())
        seconds, self._at = max(now - self._at, 1e-9), now
        before, self._cpu = self._cpu, {pid: process_usage([pid])[0] for pid in pids}
        metrics: dict[str, float] = {}
        if pids:
            metrics["perf/cpu_cores"] = sum(cpu - before.get(pid, 0.0) for pid, cpu in self._cpu.items()) / seconds
            metrics["perf/memory_gib"] = process_usage(pids)[1] / 2**30
        return metrics | (self._gpu.read() if self._gpu is not None else {})


class _Rates(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class GPU:
    """Metrics of one GPU from NVML, a library of the driver.

    Args:
        nvml: The initialised NVML library.
        handle: NVML's handle of the GPU.
    """

    def __init__(self, nvml: ctypes.CDLL, handle: ctypes.c_void_p) -> None:
        self._nvml, self._handle = nvml, handle
        self._counters = GpuCounters.of(nvml, handle)

    @classmethod
    def of(cls, device: Any) -> GPU | None:
        """The GPU of torch's `device`, found by its UUID; None if NVML is missing or does not list the GPU."""
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
        """Current values of the GPU's ``perf/*`` metrics by name, without those that are not available."""
        rates, memory, power, limit = _Rates(), _Memory(), ctypes.c_uint(), ctypes.c_uint()
        metrics: dict[str, float] = {}
        if not self._nvml.nvmlDeviceGetUtilizationRates(self._handle, ctypes.byref(rates)):
            metrics["perf/gpu_active"] = rates.gpu / 100
        if not self._nvml.nvmlDeviceGetMemoryInfo(self._handle, ctypes.byref(memory)):
            metrics["perf/gpu_memory_gib"] = memory.used / 2**30
        failed = self._nvml.nvmlDeviceGetPowerUsage(self._handle, ctypes.byref(power))
        if not failed and not self._nvml.nvmlDeviceGetEnforcedPowerLimit(self._handle, ctypes.byref(limit)):
            metrics["perf/gpu_power"] = power.value / max(limit.value, 1)
        return metrics | (self._counters.read() if self._counters is not None else {})
