"""Section precision: how fast matrix products are in each precision, at the recipes' size and at a large one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from powerband.core.precision import TYPES as PRECISIONS
from powerband.core.precision import WORTH
from powerband.doctor.row import Row, ok, skipped
from powerband.doctor.scope import Check, Scope
from powerband.doctor.stopwatch import seconds_a_call, wait

SMALL = (512, 256, 256)
"""(rows, inputs, outputs) of a hidden layer of the recipes."""
LARGE = {"cpu": (1024, 1024, 1024), "cuda": (8192, 8192, 8192)}
TYPES = {"fp32": torch.float32, "tf32": torch.float32, **PRECISIONS}
SLOWEST_S = 0.1
"""A product that is expected to take longer than this is not measured: processors without fp16 emulate it."""


def checks(scope: Scope) -> list[Check]:
    """Each precision on each device, then which of them is the fastest there."""
    found: list[Check] = []
    for device in scope.devices:
        speeds: dict[str, float] = {}
        for name in TYPES:
            found.append((f"{device} {name}", lambda d=device, n=name, s=speeds: speed_row(d, n, s)))
        found.append((f"{device} fastest", lambda d=device, s=speeds: fastest_row(d, s)))
    return found


def speed_row(device: torch.device, name: str, speeds: dict[str, float]) -> Row:
    """GFLOP/s of one precision, small and large; notes the small one in `speeds`."""
    label = f"{device} {name}"
    if name == "tf32" and device.type == "cpu":
        return skipped(label, "a mode of NVIDIA's tensor cores")
    with _tf32(name == "tf32") if device.type == "cuda" else contextlib.nullcontext():
        small = speed(SMALL, TYPES[name], device)
        shape = LARGE[device.type]
        expected_s = 2 * shape[0] * shape[1] * shape[2] / (small * 1e9)
        large = speed(shape, TYPES[name], device) if expected_s < SLOWEST_S else None
    speeds[name] = small
    figures: dict[str, Any] = {"small_gflops": round(small, 1), "large_gflops": large and round(large, 1)}
    text = f"{_size(SMALL)} {small:,.0f} GFLOP/s"
    text += f", {_size(shape)} {large:,.0f} GFLOP/s" if large else ", too slow to measure large products"
    return ok(label, text, **figures)


def fastest_row(device: torch.device, speeds: dict[str, float]) -> Row:
    """Which precision is the fastest at the size of the recipes' layers, and what to write for it."""
    label = f"{device} fastest"
    if not speeds:
        return skipped(label, "no precision could be measured")
    best = max(speeds, key=speeds.get)
    if speeds[best] < WORTH * speeds.get("fp32", 0.0):
        best = "fp32"  # what gains less than a tenth is not worth its digits
    gain = speeds[best] / speeds.get("fp32", speeds[best])
    text = f"{best} at {_size(SMALL)}: {gain:.1f} times fp32" if best != "fp32" else f"fp32 at {_size(SMALL)}"
    word = {"tf32": "tf32 is used for fp32 products where torch allows it", "fp32": "precision=fp32"}
    text += f" ({word.get(best, f'precision={best}')})"
    if best == "fp16" and device.type == "cpu":
        text += "; training takes fp16 on GPUs only"
    return ok(label, text, fastest=best, gain_over_fp32=round(gain, 2))


def speed(shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device) -> float:
    """GFLOP/s of (rows, inputs) x (inputs, outputs)."""
    rows, inputs, outputs = shape
    left = torch.randn(rows, inputs, device=device).to(dtype)
    right = torch.randn(inputs, outputs, device=device).to(dtype)
    into = torch.empty(rows, outputs, device=device, dtype=dtype)
    call: Callable[[], Any] = lambda: torch.mm(left, right, out=into)  # noqa: E731
    seconds = seconds_a_call(call, device)
    wait(device)
    return 2 * rows * inputs * outputs / seconds / 1e9


@contextlib.contextmanager
def _tf32(allowed: bool):
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def _size(shape: tuple[int, int, int]) -> str:
    return " x ".join(map(str, shape))
