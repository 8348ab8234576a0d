"""Ranks: this process in its process group, and all collective operations of powerband.

With one rank each collective returns at once, so loops have the same code for one and for several ranks.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from powerband.core.errors import ConfigError
from powerband.core.ranks.meeting import Meeting
from powerband.core.stalls.progress import Progress

TIMEOUT = "Timed out waiting"
"""Part of gloo's message if a rank has not joined a collective operation in time."""


def is_peer_failure(error: BaseException) -> bool:
    """True for the error of a collective operation (one that all ranks call together) after another rank has ended."""
    texts = ("Connection closed by peer", "Connection reset by peer", "remote worker", "Connection timed out", TIMEOUT)
    return isinstance(error, dist.DistError) or (
        isinstance(error, RuntimeError) and any(text in str(error) for text in texts)
    )


@dataclass
class Ranks:
    """This process among the `world_size` processes (ranks) of a run, and the collective operations of all ranks.

    Attributes:
        rank: Global index of this process; rank 0 writes logs and manifests.
        local_rank: Index of this process on its machine; selects the GPU.
        world_size: Number of processes over all machines.
        device: Device of this rank's tensors.
        span: Context manager around the all-reduce of a training step. In a run the phase clock measures its time.
            All other collective operations count as time of the checkpoint, evaluation or log line that needs them.
        progress: Shows to a watching process that this rank waits for the others.
        on_average: Function that receives each tensor before it is averaged, for measurements; None calls nothing.
    """

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    span: AbstractContextManager = field(default_factory=nullcontext, compare=False, repr=False)
    progress: Progress = field(default_factory=Progress, compare=False, repr=False)
    on_average: Callable[[Tensor], None] | None = field(default=None, compare=False, repr=False)

    @classmethod
    def from_environment(
        cls,
        devices: list[str],
        timeout_s: float = 600.0,
        progress: Progress | None = None,
        meeting: Meeting | None = None,
        working: Sequence[int] = (),
    ) -> Ranks:
        """Joins the process group of the environment variables RANK, LOCAL_RANK and WORLD_SIZE.

        Without these variables this process is the only rank. If only some processes work, or in another order, RANK
        and WORLD_SIZE are changed accordingly, because other packages read them.

        Args:
            devices: One device name per local rank, such as ``["cuda:0", "cuda:2"]``, or ``["cpu"]`` for all ranks.
            timeout_s: Seconds after which a collective operation fails if a rank has not joined it.
            progress: Shows this rank to a watching process; None shows it to nobody.
            meeting: The processes of the launcher, if they have met already.
            working: Those that work, in the order of their ranks, with this process among them; empty means all.

        Raises:
            ValueError: There are more local ranks than devices.
        """
        local_rank = int(os.environ.get("LOCAL_RANK", 0))
        meeting = meeting or Meeting.from_environment(timeout_s)
        working = working or range(meeting.size)
        rank, world_size = working.index(meeting.rank), len(working)
        if devices == ["cpu"]:
            name = "cpu"
        elif local_rank < len(devices):
            name = devices[local_rank]
        else:
            raise ValueError(
                f"local rank {local_rank} has no device: gpus= selects {len(devices)} ({', '.join(devices)}). "
                f"Start {len(devices)} processes per machine, or select more devices with gpus=."
            )
        device = torch.device(name)
        if device.type == "cuda":
            torch.cuda.set_device(device)
        if "RANK" in os.environ:
            os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world_size)}
        if world_size > 1:
            meeting.join_group("nccl" if device.type == "cuda" else "gloo", working)
        return cls(rank, local_rank, world_size, device, progress=progress or Progress())

    @property
    def leads(self) -> bool:
        """True on rank 0, which prints, logs and commits checkpoints."""
        return self.rank == 0

    def average_(self, flat: Tensor) -> Tensor:
        """Replaces `flat` by its mean over ranks, in place, with one all-reduce. A CUDA graph can capture it."""
        if self.on_average is not None:
            self.on_average(flat)
        if self.world_size > 1:
            with self.span, self.progress.waiting:
                dist.all_reduce(flat)
                flat.div_(self.world_size)
        return flat

    def sum_(self, tensor: Tensor) -> Tensor:
        """Replaces `tensor` by its sum over ranks, in place."""
        if self.world_size > 1:
            with self.progress.waiting:
                dist.all_reduce(tensor)
        return tensor

    def max_(self, tensor: Tensor) -> Tensor:
        """Replaces `tensor` by its elementwise maximum over ranks, in place."""
        if self.world_size > 1:
            with self.progress.waiting:
                dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return tensor

    def gather(self, value: Any) -> list[Any]:
        """Returns the `value` of every rank, in rank order, on every rank. All ranks must call it.

        `value` must be small and consist of JSON types; tuples arrive as lists on several ranks.
        """
        if self.world_size == 1:
            return [value]
        text = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8).to(self.device)
        sizes = torch.zeros(self.world_size, dtype=torch.int64, device=self.device)
        sizes[self.rank] = text.numel()
        self.sum_(sizes)
        texts = torch.zeros(self.world_size, int(sizes.max()), dtype=torch.uint8, device=self.device)
        texts[self.rank, : text.numel()] = text
        self.sum_(texts)
        return [json.loads(bytes(row[:size].tolist())) for row, size in zip(texts, sizes.tolist(), strict=True)]

    def broadcast_(self, flat: Tensor) -> Tensor:
        """Replaces `flat` on every rank by the tensor of rank 0, in place."""
        if self.world_size > 1:
            with self.progress.waiting:
                dist.broadcast(flat, src=0)
        return flat

    def send(self, part: Tensor, to: int) -> None:
        """Sends a tensor to the rank `to`, which must call `receive`."""
        with self.progress.waiting:
            dist.send(part.to(self.device), to)

    def receive(self, size: int, source: int) -> Tensor:
        """Returns the tensor (size,) uint8 that the rank `source` sends, on the CPU."""
        part = torch.empty(size, dtype=torch.uint8, device=self.device)
        with self.progress.waiting:
            dist.recv(part, source)
        return part.cpu()

    def barrier(self) -> None:
        """Waits until all ranks have called this method."""
        if self.world_size > 1:
            with self.progress.waiting:
                dist.barrier()

    def identical_on_all_ranks(self, tensors: list[Tensor]) -> bool:
        """True if `tensors` have the same values on all ranks. All ranks must call it, with the same shapes."""
        if self.world_size == 1 or not tensors:
            return True
        flat = torch.cat([tensor.detach().reshape(-1).to(torch.float64) for tensor in tensors])
        high, low = flat.clone(), flat.neg()
        self.max_(high)
        self.max_(low)
        return bool(torch.equal(high, low.neg()))

    @contextmanager
    def without_collectives(self) -> Iterator[None]:
        """Context in which this rank works alone: its collective operations return at once.

        Use it only on a rank that exits afterwards, because the other ranks still wait for it.
        """
        world_size, self.world_size = self.world_size, 1
        try:
            yield
        finally:
            self.world_size = world_size

    def ids(self, count: int) -> Tensor:
        """Global ids (count,) int64 of this rank's `count` environments or samples, unique over ranks."""
        return torch.arange(self.rank * count, (self.rank + 1) * count, device=self.device)

    def close(self) -> None:
        """Leaves the process group at the end of a run."""
        if self.world_size > 1 and dist.is_initialized():
            dist.destroy_process_group()
            if self.device.type == "cpu":
                time.sleep(0.5)  # gloo's threads abort a process that exits before they have ended


def refuse_several(ranks: Ranks, stage: str) -> None:
    """Refuses several ranks in a stage that writes the same files on each of them.

    Raises:
        ConfigError: There is more than one rank.
    """
    if ranks.world_size > 1:
        raise ConfigError(
            f"The stage {stage} works in one process, and has {ranks.world_size} ranks here. Start it with nproc=1, "
            f"gpus=none."
        )
