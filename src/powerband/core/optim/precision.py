"""Precision: the floating point type in which networks compute. Parameters, moments and targets stay float32.

bf16 is also faster on CPUs with AVX512-BF16 or AMX (`benchmarks/updates/updates.py` measures it). fp16 has only five
exponent bits, so its gradients are scaled; it is for GPUs. ``auto`` chooses the faster of fp32 and bf16, measured when
the run starts, because a processor without bf16 instructions computes bf16 many times slower than fp32.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, Literal

import torch

from powerband.core.errors import ConfigError
from powerband.core.ranks.ranks import Ranks

PrecisionName = Literal["fp32", "bf16", "fp16"]

TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
SIZE = {"cpu": 512, "cuda": 8192}
"""Rows, inner size and columns of the matrix product that measures a device's peak."""
CHOICE_SIZE = {"cpu": 512, "cuda": 2048}
"""Sizes of the product in `faster_precision`: large enough to keep a GPU busy, small enough for its memory."""
TRIALS, MAX_TRIALS_S = 6, 0.5
"""Number of timed products, and seconds after which the timing ends early, because one product with emulated bf16 takes
a second. At least two products run, because the first also loads the kernels."""
MIN_BF16_SPEEDUP = 1.1
"""Speed of bf16 relative to fp32 from which `auto` accepts its lower precision."""

MIN_CPU_BF16_ROWS = 128
"""Rows from which bf16 is faster on a CPU with AVX512-BF16. Measured on 256 x 256 layers and one EPYC core, in
microseconds: 92 in fp32 and 183 in bf16 for 16 rows, 275 and 284 for 128, 483 and 401 for 256."""


class Precision:
    """The floating point type of networks on one device.

    Attributes:
        name: "fp32", "bf16" or "fp16".
        dtype: Type of matrix products.
    """

    def __init__(self, name: PrecisionName = "fp32", device: torch.device | str = "cpu"):
        """
        Args:
            name: "fp32", "bf16" (autocast) or "fp16" (autocast with loss scaling, CUDA only).
            device: Device of the networks.

        Raises:
            ConfigError: The name is unknown, or fp16 was requested without CUDA.
        """
        if name not in TYPES:
            raise ConfigError(f"Unknown precision {name!r}. Available: {', '.join(TYPES)}.")
        self.device = torch.device(device)
        if name == "fp16" and self.device.type != "cuda":
            raise ConfigError(
                f"precision=fp16 needs a CUDA device, but the device is {self.device}. "
                "Write precision=bf16 or precision=fp32."
            )
        self.name = name
        self.dtype = TYPES[name]

    def autocast(self, rows: int | None = None) -> AbstractContextManager:
        """Context in which matrix products run in `dtype`; does nothing for fp32.

        Args:
            rows: Number of rows of the matrix products. With few rows a CPU computes in float32, because that is
                faster. None always uses `dtype`.
        """
        if self.name == "fp32" or (rows is not None and rows < MIN_CPU_BF16_ROWS and self.device.type == "cpu"):
            return nullcontext()
        return torch.autocast(self.device.type, self.dtype)

    def scaler(self) -> torch.amp.GradScaler | None:
        """A new loss scaler for one optimiser; None if gradients need no scaling."""
        return torch.amp.GradScaler(self.device.type) if self.name == "fp16" else None


def peak(device: torch.device, name: PrecisionName, size: int = 0) -> float:
    """Measures the speed of a product of two square matrices, in floating-point operations per second.

    Args:
        device: Device of the matrices.
        name: Precision of the matrices.
        size: Number of rows and of columns; 0 means 512 on a CPU and 8192 on a GPU.

    Returns:
        The highest speed of several products.
    """
    size, best_s, left_s = size or SIZE[device.type], float("inf"), MAX_TRIALS_S
    left, right = (torch.randn(size, size, device=device).to(TYPES[name]) for _ in range(2))
    product = torch.empty_like(left)
    for number in range(TRIALS):
        start = time.perf_counter()
        torch.mm(left, right, out=product)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds = time.perf_counter() - start
        best_s, left_s = min(best_s, seconds), left_s - seconds
        if number and left_s < 0:
            break
    return 2 * size**3 / best_s


def faster_precision(device: torch.device) -> tuple[PrecisionName, str]:
    """The faster of fp32 and bf16 on this device with the threads of this process, and the measurement as text."""
    size = CHOICE_SIZE[device.type]
    fp32, bf16 = (peak(device, name, size) for name in ("fp32", "bf16"))
    name: PrecisionName = "bf16" if bf16 >= MIN_BF16_SPEEDUP * fp32 else "fp32"
    return name, f"{name}, measured: {size} x {size} at {bf16 / 1e9:,.3g} GFLOP/s in bf16, {fp32 / 1e9:,.3g} in fp32"


def resolve_precision(config: Any, ranks: Ranks) -> tuple[Any, dict[str, str]]:
    """Replaces ``precision=auto`` by the faster precision on the device of rank 0. All ranks must call it.

    Args:
        config: Configuration of a recipe; its field ``run`` is a `RunConfig`.
        ranks: Process group, with the rank and device of this process.

    Returns:
        The configuration, and {"precision": measurement as text} for the banner that a run prints at its start. The
        dict is empty if the precision was not ``auto``.
    """
    if config.run.precision != "auto":
        return config, {}
    name, measurement = ranks.gather(faster_precision(ranks.device) if ranks.leads else None)[0]
    return replace(config, run=replace(config.run, precision=name)), {"precision": measurement}
