"""Starts functions on several gloo ranks and brings back what they saved."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import torch
import torch.multiprocessing as mp

from powerband.core.ranks.ranks import Ranks


def on_ranks(work: Callable, world_size: int, folder: Path, *args) -> list[dict]:
    """Calls ``work(ranks, *args) -> dict of tensors`` on every rank and returns the results in rank order."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.spawn(_one_rank, (work, world_size, port, str(folder), args), nprocs=world_size)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(world_size)]


def _one_rank(rank: int, work: Callable, world_size: int, port: int, folder: str, args: tuple) -> None:
    torch.set_num_threads(1)
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ.update(address, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world_size))
    ranks = Ranks.from_environment(["cpu"], timeout_s=60)
    torch.save(work(ranks, *args), Path(folder) / f"{rank}.pt")
    ranks.barrier()
    ranks.close()
