"""The trace of kernels distinguishes a loop that waits for launches from one that computes."""

import pytest
import torch

from powerband.core.telemetry.phase_clock import PhaseClock
from powerband.tune.measure.kernel_trace import WALL, KernelTrace

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize(("size", "low", "high"), [(16, 0.0, 0.6), (4096, 0.8, 1.0)])
def test_large_products_keep_the_device_busy_and_small_ones_do_not(size, low, high):
    clock, matrix = PhaseClock("cuda"), torch.rand(size, size, device="cuda")

    def iteration():
        with clock("update"):
            for _ in range(20):
                matrix @ matrix
        with clock("log"):
            torch.cuda.synchronize()

    iteration()
    clock.restart()
    for _ in range(20):
        iteration()
    window = clock.read()
    trace = KernelTrace(clock, 10)
    for _ in range(10):
        iteration()
    shares = trace.shares(window, 20)
    assert shares is not None and low < shares[WALL] <= high
