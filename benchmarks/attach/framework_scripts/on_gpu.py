"""A supervised loop in plain torch on a GPU. The arguments choose what it waits for.

python on_gpu.py UPDATES ROWS WIDTH [--read] [--slow-loader] [--device cuda]
"""

import argparse
import time

import torch
from outcome import Outcome
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    """Rows of a constant; each takes as long as the decoding of a small image."""

    def __init__(self, width: int) -> None:
        self.width = width

    def __len__(self) -> int:
        return 10_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        end = time.perf_counter() + 1e-3
        while time.perf_counter() < end:
            pass
        return torch.full((self.width,), index % 7 / 7)


parser = argparse.ArgumentParser()
parser.add_argument("updates", type=int)
parser.add_argument("rows", type=int)
parser.add_argument("width", type=int)
parser.add_argument("--read", action="store_true", help="read the loss after each update")
parser.add_argument("--slow-loader", action="store_true")
parser.add_argument("--device", default="cuda")
options = parser.parse_args()
torch.manual_seed(0)
layers = [layer for _ in range(4) for layer in (nn.Linear(options.width, options.width), nn.ReLU())]
net = nn.Sequential(*layers).to(options.device)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
batches = iter(DataLoader(Rows(options.width), batch_size=options.rows)) if options.slow_loader else None
fixed = torch.rand(options.rows, options.width).to(options.device)
outcome = Outcome()
for _ in range(options.updates):
    batch = fixed if batches is None else next(batches).to(options.device)
    loss = (net(batch) - batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if options.read and loss.item() > 1e9:
        break
outcome.show(net.parameters())
