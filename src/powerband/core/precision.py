"""Precision: which floating point type the networks compute in. Parameters, moments and targets stay float32.

bf16 pays on CPUs too where they have AVX512-BF16 or AMX (`benchmarks/updates.py` measures it); fp16 has five exponent
bits only, so its gradients are scaled, and it is for GPUs.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch

PrecisionName = Literal["fp32", "bf16", "fp16"]


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
        dtypes = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
        if name not in dtypes:
            raise ValueError(f"precision={name!r} is none of {', '.join(dtypes)}.")
        self.device = torch.device(device)
        if name == "fp16" and self.device.type != "cuda":
            raise ValueError(f"precision=fp16 needs a CUDA device, not {self.device}; use bf16, or fp32.")
        self.name = name
        self.dtype = dtypes[name]

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
