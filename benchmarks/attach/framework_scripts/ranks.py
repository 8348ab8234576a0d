"""Two ranks of DistributedDataParallel on gloo, each with an all-reduce of its metrics. Start it with torchrun."""

import sys

import torch
import torch.distributed as dist
from outcome import Outcome
from supervised import Model
from torch.nn.parallel import DistributedDataParallel

if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(3)
    model = DistributedDataParallel(Model())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(dist.get_rank())
    outcome = Outcome()
    for _ in range(int(sys.argv[1])):
        x = torch.randn(256, 64, generator=generator)
        loss = model(x, x.sum(1, keepdim=True))["loss"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
    outcome.show(model.parameters())
    dist.destroy_process_group()
