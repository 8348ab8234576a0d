"""A module of PyTorch Lightning whose loader is slower than its updates.

powerband needs no change in it, and finds the number of workers:

    powerband profile seconds=10 -- python examples/attach/lightning_module.py
    powerband profile seconds=10 --try --env -- python examples/attach/lightning_module.py
"""

from __future__ import annotations

import argparse

import pytorch_lightning as lightning
import torch
from slow_rows import SlowRows
from torch import nn
from torch.utils.data import DataLoader


class Regression(lightning.LightningModule):
    """A network of two layers that predicts the sum of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 1))

    def training_step(self, batch: dict[str, torch.Tensor], index: int) -> torch.Tensor:
        return nn.functional.mse_loss(self.network(batch["x"]), batch["labels"])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--num-workers", type=int, default=0)
    parser.add_argument("--max-steps", type=int, default=10_000)
    args = parser.parse_args()
    loader = DataLoader(SlowRows(args.max_steps * 32), batch_size=32, shuffle=True, num_workers=args.num_workers)
    trainer = lightning.Trainer(
        max_steps=args.max_steps, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False,
    )  # fmt: skip
    trainer.fit(Regression(), loader)
