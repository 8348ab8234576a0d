"""Data set of the supervised examples: rows of a fixed function, which take as long to make as a small picture."""

from __future__ import annotations

import time

import torch
from torch.utils.data import Dataset


class SlowRows(Dataset):
    """Rows x of 64 numbers with their sum as the label.

    Args:
        size: Number of rows.
        row_s: Seconds to make a row.
    """

    def __init__(self, size: int, row_s: float = 0.002) -> None:
        self.size, self.row_s = size, row_s

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        time.sleep(self.row_s)
        x = torch.randn(64, generator=torch.Generator().manual_seed(index))
        return {"x": x, "labels": x.sum()[None]}
