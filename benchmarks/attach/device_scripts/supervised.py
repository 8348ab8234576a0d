"""A supervised loop on a GPU. The arguments choose what it waits for.

    python supervised.py ROWS WIDTH [--read] [--slow-loader] [--updates N]

It prints ``RATE`` and the updates per second after the first 50, if it ends by itself.
"""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    """Random rows; with `slow`, each takes as long as the decoding of a small image."""

    def __init__(self, width: int, slow: bool) -> None:
        self.width, self.slow = width, slow

    def __len__(self) -> int:
        return 10_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        end = time.perf_counter() + 1e-3
        while self.slow and time.perf_counter() < end:
            pass
        return torch.full((self.width,), index % 7 / 7)


parser = argparse.ArgumentParser()
parser.add_argument("rows", type=int)
parser.add_argument("width", type=int)
parser.add_argument("--read", action="store_true", help="read the loss after each update")
parser.add_argument("--slow-loader", action="store_true")
parser.add_argument("--updates", type=int, default=10**9)
options = parser.parse_args()
torch.manual_seed(0)
layers = [layer for _ in range(4) for layer in (nn.Linear(options.width, options.width), nn.ReLU())]
net = nn.Sequential(*layers).cuda()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
batches = iter(DataLoader(Rows(options.width, True), batch_size=options.rows)) if options.slow_loader else None
fixed = torch.rand(options.rows, options.width, device="cuda")
began = 0.0
for update in range(options.updates):
    if update == 50:
        torch.cuda.synchronize()
        began = time.perf_counter()
    batch = fixed if batches is None else next(batches).cuda()
    loss = (net(batch) - batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if options.read and loss.item() > 1e9:
        break
torch.cuda.synchronize()
print("RATE", (options.updates - 50) / (time.perf_counter() - began))
