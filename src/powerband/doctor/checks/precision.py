"""Section precision of ``powerband doctor``: measures matrix products in each precision, at two sizes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from powerband.core.optim.precision import MIN_BF16_SPEEDUP
from powerband.core.optim.precision import TYPES as PRECISIONS
from powerband.doctor.check_result import CheckResult, ok, skipped
from powerband.doctor.context import Check, CheckContext
from powerband.doctor.stopwatch import seconds_per_call, synchronize

SMALL = (512, 256, 256)
"""(rows, inputs, outputs) of a typical hidden layer of the recipes."""
LARGE = {"cpu": (1024, 1024, 1024), "cuda": (8192, 8192, 8192)}
TYPES = {"fp32": torch.float32, "tf32": torch.float32, **PRECISIONS}
SLOWEST_S = 0.1
"""On a CPU, a product that would take longer is not measured; processors without fp16 emulate it slowly."""


def checks(context: CheckContext) -> list[Check]:
    """Returns the checks of this section: each precision, and the fastest precision, on each device."""
    result: list[Check] = []
    for device in context.devices:
        speeds: dict[str, float] = {}
        for name in TYPES:
            result.append((f"{device} {name}", partial(speed_row, device, name, speeds)))
        result.append((f"{device} fastest", partial(fastest_row, device, speeds)))
    return result


def speed_row(device: torch.device, name: str, speeds: dict[str, float]) -> CheckResult:
    """Measures matrix products of one precision, small and large, in GFLOP/s.

    Args:
        device: Device to measure.
        name: Precision: fp32, tf32, bf16 or fp16.
        speeds: Precision -> GFLOP/s of the small product, (512, 256) x (256, 256); this function adds the entry `name`.
    """
    label = f"{device} {name}"
    if name == "tf32" and device.type == "cpu":
        return skipped(label, "tf32 is a mode of NVIDIA's tensor cores")
    with _tf32(name == "tf32") if device.type == "cuda" else contextlib.nullcontext():
        small = speed(SMALL, TYPES[name], device)
        shape = LARGE[device.type]
        expected_s = 2 * shape[0] * shape[1] * shape[2] / (small * 1e9)
        measured = device.type == "cuda" or expected_s < SLOWEST_S  # small products do not fill a GPU
        large = speed(shape, TYPES[name], device) if measured else None
    speeds[name] = small
    metrics: dict[str, Any] = {"small_gflops": round(small, 1), "large_gflops": large and round(large, 1)}
    text = f"{_size(SMALL)} {small:,.0f} GFLOP/s"
    text += f", {_size(shape)} {large:,.0f} GFLOP/s" if large else ", too slow to measure large products"
    return ok(label, text, **metrics)


def fastest_row(device: torch.device, speeds: dict[str, float]) -> CheckResult:
    """Reports the fastest precision at the size of the recipes' layers, and the setting that selects it.

    Args:
        device: Measured device.
        speeds: Precision -> GFLOP/s.
    """
    label = f"{device} fastest"
    if not speeds:
        return skipped(label, "no precision could be measured")
    best = max(speeds, key=lambda name: speeds[name])
    if speeds[best] < MIN_BF16_SPEEDUP * speeds.get("fp32", 0.0):
        best = "fp32"  # a smaller gain is not worth the lost accuracy
    gain = speeds[best] / speeds.get("fp32", speeds[best])
    text = f"{best} at {_size(SMALL)}: {gain:.1f} times fp32" if best != "fp32" else f"fp32 at {_size(SMALL)}"
    settings = {"tf32": "used for fp32 products if torch allows it", "fp32": "precision=fp32"}
    text += f" ({settings.get(best, f'precision={best}')})"
    if best == "fp16" and device.type == "cpu":
        text += "; training supports fp16 on GPUs only"
    return ok(label, text, fastest=best, gain_over_fp32=round(gain, 2))


def speed(shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device) -> float:
    """Measures the speed of a product of two matrices, (rows, inputs) x (inputs, outputs).

    Args:
        shape: (rows, inputs, outputs).
        dtype: Type of both factors and of the product.
        device: Device to measure.

    Returns:
        Speed in GFLOP/s; a multiplication and an addition are two operations.
    """
    rows, inputs, outputs = shape
    left = torch.randn(rows, inputs, device=device).to(dtype)
    right = torch.randn(inputs, outputs, device=device).to(dtype)
    product = torch.empty(rows, outputs, device=device, dtype=dtype)
    seconds = seconds_per_call(lambda: torch.mm(left, right, out=product), device)
    synchronize(device)
    return 2 * rows * inputs * outputs / seconds / 1e9


@contextlib.contextmanager
def _tf32(allowed: bool) -> Iterator[None]:
    previous = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = previous


def _size(shape: tuple[int, int, int]) -> str:
    return " x ".join(map(str, shape))
