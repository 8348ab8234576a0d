"""GPM: how busy the multiprocessors of a GPU really were between two looks, from the counters of Hopper and later.

NVML's utilisation says whether any kernel ran; a kernel of one block, or one that waits in a collective, counts as all
of the GPU there. These counters are averages over the interval: of multiprocessors with work, of their warps, of tensor
cores and of memory bandwidth. They need no permission; a driver or a GPU without them is left out.
"""

from __future__ import annotations

import ctypes
import time
from typing import Any

METRICS = {"perf/gpu_sm": 2, "perf/gpu_occupancy": 3, "perf/gpu_tensor": 5, "perf/gpu_dram": 10}
"""Figure -> NVML_GPM_METRIC_ SM_UTIL, SM_OCCUPANCY, ANY_TENSOR_UTIL, DRAM_BW_UTIL; shares of what the GPU can do."""
MAX_METRICS = 512
"""Entries of the request; the library reads as many as it is told."""
LEAST_S = 0.1
"""Two samples are at least so far apart."""


class _Support(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint), ("supported", ctypes.c_uint)]


class _Metric(ctypes.Structure):
    _fields_ = [
        ("id", ctypes.c_uint),
        ("status", ctypes.c_uint),
        ("value", ctypes.c_double),
        ("names", ctypes.c_char_p * 3),
    ]


class _Request(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint),
        ("count", ctypes.c_uint),
        ("first", ctypes.c_void_p),
        ("second", ctypes.c_void_p),
        ("metrics", _Metric * MAX_METRICS),
    ]


class GpuCounters:
    """Counters of one GPU.

    Args:
        nvml: The library, initialised.
        handle: NVML's handle of the GPU.
    """

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle
        self._samples = [ctypes.c_void_p(), ctypes.c_void_p()]
        for sample in self._samples:
            nvml.nvmlGpmSampleAlloc(ctypes.byref(sample))
        self._taken = not nvml.nvmlGpmSampleGet(handle, self._samples[0])
        self._at = time.monotonic()

    @classmethod
    def of(cls, nvml: Any, handle: Any) -> GpuCounters | None:
        """The counters of a GPU; None where the driver or the GPU has none."""
        support = _Support(version=1)
        try:
            if nvml.nvmlGpmQueryDeviceSupport(handle, ctypes.byref(support)) or not support.supported:
                return None
            return cls(nvml, handle)
        except AttributeError:  # a library from before there were any
            return None

    def read(self) -> dict[str, float]:
        """Shares (0 to 1) since the last look; nothing where that was too short ago, or the driver refuses."""
        now = time.monotonic()
        if now - self._at < LEAST_S or self._nvml.nvmlGpmSampleGet(self._handle, self._samples[1]):
            return {}
        before, self._taken, self._at = self._taken, True, now
        request = _Request(version=1, count=len(METRICS), first=self._samples[0], second=self._samples[1])
        for entry, number in zip(request.metrics, METRICS.values(), strict=False):
            entry.id = number
        refused = self._nvml.nvmlGpmMetricsGet(ctypes.byref(request))
        self._samples.reverse()
        if refused or not before:
            return {}
        pairs = zip(METRICS, request.metrics, strict=False)
        return {name: entry.value / 100 for name, entry in pairs if not entry.status}
