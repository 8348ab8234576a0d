"""Precision: which floating point type the networks compute in. Parameters, moments and targets stay float32.

bf16 pays on CPUs too where they have AVX512-BF16 or AMX (`benchmarks/updates.py` measures it); fp16 has five exponent
bits only, so its gradients are scaled, and it is for GPUs. ``auto`` is the faster of fp32 and bf16, measured when the
run starts: a processor without instructions for bf16 computes it many times slower than fp32.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, Literal

import torch

from powerband.core.ranks.ranks import Ranks

PrecisionName = Literal["fp32", "bf16", "fp16"]

TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
SIZE = {"cpu": 512, "cuda": 8192}
"""Rows, inner size and columns of the product that shows a device's peak."""
CHOICE_SIZE = {"cpu": 512, "cuda": 2048}
"""Sizes of the product that `faster_precision` times: large enough to keep a GPU busy, small enough for its memory."""
TRIALS, ENOUGH_S = 6, 0.5
"""Products that are timed, fewer, but two, once they took this long together: where bf16 is emulated one takes a
second. The first also loads the kernels."""
MIN_BF16_SPEEDUP = 1.1
"""bf16 has to be this many times as fast as fp32 to be worth its digits."""

CPU_ROWS = 128
"""From this many rows on bf16 pays on a CPU with AVX512-BF16: 256 x 256 layers, 92 us in fp32 and 183 in bf16 for 16
rows, 275 and 284 for 128, 483 and 401 for 256 (one EPYC core)."""


class Precision:
    """How networks compute on one device.

    Attributes:
        name: "fp32", "bf16" or "fp16".
        dtype: Type of matrix products.
    """

    def __init__(self, name: PrecisionName = "fp32", device: torch.device | str = "cpu"):
        """
        Args:
            name: "fp32", "bf16" (autocast) or "fp16" (autocast with loss scaling, CUDA only).
            device: Where the networks are.

        Raises:
            ValueError: An unknown name, or fp16 without CUDA.
        """
        if name not in TYPES:
            raise ValueError(f"precision={name!r} is none of {', '.join(TYPES)}.")
        self.device = torch.device(device)
        if name == "fp16" and self.device.type != "cuda":
            raise ValueError(f"precision=fp16 needs a CUDA device, not {self.device}; use bf16, or fp32.")
        self.name = name
        self.dtype = TYPES[name]

    def autocast(self, rows: int | None = None) -> AbstractContextManager:
        """Context in which matrix products run in `dtype`; does nothing for fp32.

        Args:
            rows: Rows of the products, where float32 would do as well: on a CPU few rows are faster in float32.
        """
        if self.name == "fp32" or (rows is not None and rows < CPU_ROWS and self.device.type == "cpu"):
            return nullcontext()
        return torch.autocast(self.device.type, self.dtype)

    def scaler(self) -> torch.amp.GradScaler | None:
        """A new loss scaler for one optimiser, None where gradients need none."""
        return torch.amp.GradScaler(self.device.type) if self.name == "fp16" else None


def peak(device: torch.device, name: PrecisionName, size: int = 0) -> float:
    """Operations a second of a matrix product of `size` (SIZE) in all three directions; the best of some."""
    size, best_s, left_s = size or SIZE[device.type], float("inf"), ENOUGH_S
    left, right = (torch.randn(size, size, device=device).to(TYPES[name]) for _ in range(2))
    into = torch.empty_like(left)
    for number in range(TRIALS):
        start = time.perf_counter()
        torch.mm(left, right, out=into)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds = time.perf_counter() - start
        best_s, left_s = min(best_s, seconds), left_s - seconds
        if number and left_s < 0:
            break
    return 2 * size**3 / best_s


def faster_precision(device: torch.device) -> tuple[PrecisionName, str]:
    """The faster of fp32 and bf16 on this device, with this process's threads and switches, and the figures."""
    size = CHOICE_SIZE[device.type]
    fp32, bf16 = (peak(device, name, size) for name in ("fp32", "bf16"))
    name: PrecisionName = "bf16" if bf16 >= MIN_BF16_SPEEDUP * fp32 else "fp32"
    return name, f"{name}, measured: {size} x {size} at {bf16 / 1e9:,.3g} GFLOP/s in bf16, {fp32 / 1e9:,.3g} in fp32"


def resolve_precision(config: Any, ranks: Ranks) -> tuple[Any, dict[str, str]]:
    """A run's configuration with what ``precision=auto`` is on the leading rank's device, for all ranks; and the
    figures behind that choice by the setting's name, none where it was not asked for. A collective."""
    if config.run.precision != "auto":
        return config, {}
    name, why = ranks.gather(faster_precision(ranks.device) if ranks.leads else None)[0]
    return replace(config, run=replace(config.run, precision=name)), {"precision": why}
