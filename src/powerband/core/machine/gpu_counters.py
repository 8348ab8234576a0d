"""GPU counters: utilisation of the multiprocessors of a GPU, from NVML's GPM counters (Hopper and later).

NVML's utilisation is the share of time in which any kernel ran; a kernel of one block, or one that waits in a
collective, counts as full load. GPM counters are averages over an interval: multiprocessors with work, their warps,
tensor cores and memory bandwidth. They require no permission.
"""

from __future__ import annotations

import ctypes
import time
from typing import Any

METRICS = {"perf/gpu_sm": 2, "perf/gpu_occupancy": 3, "perf/gpu_tensor": 5, "perf/gpu_dram": 10}
"""Metric -> number of NVML_GPM_METRIC_ SM_UTIL, SM_OCCUPANCY, ANY_TENSOR_UTIL, DRAM_BW_UTIL."""
MAX_METRICS = 512
"""Size of the request's array in NVML's header; the library reads the first `count` entries."""
MIN_INTERVAL_S = 0.1
"""Minimum time between two samples."""


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
    """Reads the hardware counters of one GPU: load of multiprocessors, tensor cores and memory (NVML's GPM metrics).

    Args:
        nvml: The initialised NVML library.
        handle: NVML's handle of the GPU.
    """

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle
        self._samples = [ctypes.c_void_p(), ctypes.c_void_p()]
        for sample in self._samples:
            nvml.nvmlGpmSampleAlloc(ctypes.byref(sample))
        self._has_sample = not nvml.nvmlGpmSampleGet(handle, self._samples[0])
        self._at = time.monotonic()

    @classmethod
    def of(cls, nvml: Any, handle: Any) -> GpuCounters | None:
        """Counters of the GPU with NVML's `handle`; None if the driver or the GPU does not support them."""
        support = _Support(version=1)
        try:
            if nvml.nvmlGpmQueryDeviceSupport(handle, ctypes.byref(support)) or not support.supported:
                return None
            return cls(nvml, handle)
        except AttributeError:  # an older library without GPM
            return None

    def read(self) -> dict[str, float]:
        """Metric -> mean share of the GPU's capacity in use since the last call, 0 to 1.

        The metrics are ``perf/gpu_sm`` (multiprocessors with work), ``perf/gpu_occupancy`` (warps on the
        multiprocessors), ``perf/gpu_tensor`` (tensor cores) and ``perf/gpu_dram`` (memory bandwidth). The result is
        empty if the driver fails, and within 0.1 s after the creation or after the last call with a result.
        """
        now = time.monotonic()
        if now - self._at < MIN_INTERVAL_S or self._nvml.nvmlGpmSampleGet(self._handle, self._samples[1]):
            return {}
        has_previous, self._has_sample, self._at = self._has_sample, True, now
        request = _Request(version=1, count=len(METRICS), first=self._samples[0], second=self._samples[1])
        for entry, number in zip(request.metrics, METRICS.values(), strict=False):
            entry.id = number
        failed = self._nvml.nvmlGpmMetricsGet(ctypes.byref(request))
        self._samples.reverse()
        if failed or not has_previous:
            return {}
        pairs = zip(METRICS, request.metrics, strict=False)
        return {name: entry.value / 100 for name, entry in pairs if not entry.status}
