"""A supervised loop whose data set waits, as for a disk, and whose loader has no workers."""

from __future__ import annotations

import time

import torch
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
torch.manual_seed(0)


class Samples(Dataset):
    """Items of which each takes a millisecond."""

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.001)
        return torch.full((64,), index / 100_000)


loader = DataLoader(Samples(), batch_size=32, shuffle=True)
network = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.Tanh(), torch.nn.Linear(512, 64))
optimizer = torch.optim.SGD(network.parameters(), lr=1e-2)
for _ in range(100):
    for batch in loader:
        for _ in range(4):
            optimizer.zero_grad()
            network(batch).square().mean().backward()
        optimizer.step()
