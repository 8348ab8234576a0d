"""A loop that writes histograms of all parameters in every step and a checkpoint in every second one."""

from __future__ import annotations

import torch
from torch.utils.tensorboard import SummaryWriter

torch.set_num_threads(1)
torch.manual_seed(0)
network = torch.nn.Sequential(torch.nn.Linear(128, 256), torch.nn.Tanh(), torch.nn.Linear(256, 64))
optimizer = torch.optim.SGD(network.parameters(), lr=1e-3)
writer = SummaryWriter("events")
for step in range(10_000_000):
    optimizer.zero_grad()
    loss = network(torch.randn(256, 128)).square().mean()
    loss.backward()
    optimizer.step()
    writer.add_scalar("loss", loss.item(), step)
    for name, parameter in network.named_parameters():
        writer.add_histogram(name, parameter, step)
    if step % 2 == 0:
        torch.save(network.state_dict(), "checkpoint.pt")
