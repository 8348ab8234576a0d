"""Small updates with many more threads than cores."""

from __future__ import annotations

import torch

torch.set_num_threads(16)
torch.manual_seed(0)
network = torch.nn.Sequential(torch.nn.Linear(128, 384), torch.nn.Tanh(), torch.nn.Linear(384, 64))
optimizer = torch.optim.SGD(network.parameters(), lr=1e-3)
for _ in range(10_000_000):
    optimizer.zero_grad()
    network(torch.randn(256, 128)).square().mean().backward()
    optimizer.step()
