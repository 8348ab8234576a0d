"""GPU counters with a fake NVML that follows its header: samples, intervals, failures."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from powerband.core.machine import gpu_counters as gpm
from powerband.core.machine.gpu_counters import METRICS, GpuCounters


class FakeNvml:
    """Sample n holds the value n. A metric is 5 times its id per sample between the two."""

    def __init__(self, supported: bool = True) -> None:
        self.supported, self.sample_count, self.samples, self.failing = supported, 0, {}, ""
        self.failing_ids = ()

    def nvmlGpmQueryDeviceSupport(self, handle: Any, support: Any) -> int:
        assert support._obj.version == 1
        support._obj.supported = self.supported
        return 0

    def nvmlGpmSampleAlloc(self, sample: Any) -> int:
        sample._obj.value = 1000 + len(self.samples)
        self.samples[sample._obj.value] = None
        return 0

    def nvmlGpmSampleGet(self, handle: Any, sample: Any) -> int:
        if self.failing == "sample":
            return 3
        self.sample_count += 1
        self.samples[sample.value] = self.sample_count
        return 0

    def nvmlGpmMetricsGet(self, request: Any) -> int:
        if self.failing == "metrics":
            return 3
        body = request._obj
        assert (body.version, body.count) == (1, len(METRICS))
        between = self.samples[body.second] - self.samples[body.first]
        for entry in body.metrics[: body.count]:
            entry.status = 3 if entry.id in self.failing_ids else 0
            entry.value = 10.0 * between * entry.id / 2
        return 0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    now = SimpleNamespace(seconds=0.0)
    monkeypatch.setattr(gpm, "time", SimpleNamespace(monotonic=lambda: now.seconds))
    return now


def test_shares_cover_the_interval_since_the_last_call(clock) -> None:
    nvml = FakeNvml()
    counters = GpuCounters.of(nvml, None)
    for seconds in (1.0, 2.0):
        clock.seconds = seconds
        assert counters.read() == pytest.approx({name: number * 0.05 for name, number in METRICS.items()})
    clock.seconds = 2.05
    assert counters.read() == {}  # too soon
    nvml.failing_ids = (5,)
    clock.seconds = 3.0
    assert set(counters.read()) == set(METRICS) - {"perf/gpu_tensor"}


@pytest.mark.parametrize("failing", ["sample", "metrics"])
def test_a_failure_of_the_driver_gives_no_metrics_until_it_ends(clock, failing: str) -> None:
    nvml = FakeNvml()
    counters = GpuCounters.of(nvml, None)
    nvml.failing, clock.seconds = failing, 1.0
    assert counters.read() == {}
    nvml.failing, clock.seconds = "", 2.0
    assert set(counters.read()) == set(METRICS)


def test_an_unsupported_gpu_or_driver_has_no_counters() -> None:
    assert GpuCounters.of(FakeNvml(supported=False), None) is None
    assert GpuCounters.of(object(), None) is None


def test_the_request_has_the_layout_of_nvmls_header() -> None:
    assert ctypes.sizeof(gpm._Metric) == 40 and gpm._Metric.value.offset == 8
    assert gpm._Request.first.offset == 8 and gpm._Request.metrics.offset == 24
