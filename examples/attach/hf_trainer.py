"""The Trainer of transformers with a loader that is slower than its updates.

powerband needs no change in it, and finds the number of workers:

    powerband profile seconds=10 -- python examples/attach/hf_trainer.py
    powerband profile seconds=10 --try --env -- python examples/attach/hf_trainer.py
"""

from __future__ import annotations

import argparse
import tempfile

import torch
from slow_rows import SlowRows
from torch import nn
from transformers import Trainer, TrainingArguments


class Regression(nn.Module):
    """A network of two layers that predicts the sum of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 1))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        output = self.network(x)
        return {"loss": nn.functional.mse_loss(output, labels), "logits": output}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--num-workers", type=int, default=0)
    parser.add_argument("--max-steps", type=int, default=10_000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        options = TrainingArguments(
            folder, max_steps=args.max_steps, per_device_train_batch_size=32, use_cpu=True, report_to=[],
            save_strategy="no", dataloader_num_workers=args.num_workers, disable_tqdm=True,
        )  # fmt: skip
        Trainer(Regression(), options, train_dataset=SlowRows(args.max_steps * 32)).train()
