"""GPM counters against a library that behaves as its header says: samples, intervals, what is refused."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from powerband.core.machine import gpu_counters as gpm
from powerband.core.machine.gpu_counters import METRICS, GpuCounters


class FakeNvml:
    """Sample n holds the counter n; a metric is 10 times its id a sample between the two."""

    def __init__(self, supported: bool = True) -> None:
        self.supported, self.looks, self.held, self.failing = supported, 0, {}, ""
        self.refused = ()

    def nvmlGpmQueryDeviceSupport(self, handle: Any, support: Any) -> int:
        assert support._obj.version == 1
        support._obj.supported = self.supported
        return 0

    def nvmlGpmSampleAlloc(self, sample: Any) -> int:
        sample._obj.value = 1000 + len(self.held)
        self.held[sample._obj.value] = None
        return 0

    def nvmlGpmSampleGet(self, handle: Any, sample: Any) -> int:
        if self.failing == "sample":
            return 3
        self.looks += 1
        self.held[sample.value] = self.looks
        return 0

    def nvmlGpmMetricsGet(self, request: Any) -> int:
        if self.failing == "metrics":
            return 3
        asked = request._obj
        assert (asked.version, asked.count) == (1, len(METRICS))
        between = self.held[asked.second] - self.held[asked.first]
        for entry in asked.metrics[: asked.count]:
            entry.status = 3 if entry.id in self.refused else 0
            entry.value = 10.0 * between * entry.id / 2
        return 0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    now = SimpleNamespace(seconds=0.0)
    monkeypatch.setattr(gpm, "time", SimpleNamespace(monotonic=lambda: now.seconds))
    return now


def test_shares_are_of_the_interval_since_the_last_look(clock) -> None:
    nvml = FakeNvml()
    counters = GpuCounters.of(nvml, None)
    for seconds in (1.0, 2.0):
        clock.seconds = seconds
        assert counters.read() == pytest.approx({name: number * 0.05 for name, number in METRICS.items()})
    clock.seconds = 2.05
    assert counters.read() == {}  # too soon
    nvml.refused = (5,)
    clock.seconds = 3.0
    assert set(counters.read()) == set(METRICS) - {"perf/gpu_tensor"}


@pytest.mark.parametrize("failing", ["sample", "metrics"])
def test_what_the_driver_refuses_is_left_out_and_comes_back(clock, failing: str) -> None:
    nvml = FakeNvml()
    counters = GpuCounters.of(nvml, None)
    nvml.failing, clock.seconds = failing, 1.0
    assert counters.read() == {}
    nvml.failing, clock.seconds = "", 2.0
    assert set(counters.read()) == set(METRICS)


def test_a_gpu_or_a_driver_without_counters_has_none() -> None:
    assert GpuCounters.of(FakeNvml(supported=False), None) is None
    assert GpuCounters.of(object(), None) is None


def test_the_request_has_the_layout_of_the_header() -> None:
    assert ctypes.sizeof(gpm._Metric) == 40 and gpm._Metric.value.offset == 8
    assert gpm._Request.first.offset == 8 and gpm._Request.metrics.offset == 24
