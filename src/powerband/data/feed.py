"""Feed: batches of recorded rows, every row once an epoch, in an order that neither ranks nor a resume change."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from powerband.data.types import Tree, tree_map


class Feed:
    """Draws batches of this rank.

    The rows of all epochs are one endless stream, each epoch a permutation of its own; batch t of all ranks together is
    the t-th piece of it, so a batch may span two epochs and no row is left out.

    Args:
        rows: Number of recorded rows.
        batch: Rows of a batch, of this rank.
        make: (batch,) int64 rows on the CPU -> the batch, a tree.
        device: Where batches are wanted.
        seed: Of the run.
        rank, world_size: This rank among the others.
        threads: Threads that make batches ahead; 0 makes each when it is asked for, as for rows on the device.

    Raises:
        ValueError: There is no row.
    """

    def __init__(
        self,
        rows: int,
        batch: int,
        make: Callable[[Tensor], Tree],
        device: torch.device | str = "cpu",
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        threads: int = 0,
    ) -> None:
        if rows < 1:
            raise ValueError("there are no rows to learn from.")
        self.rows, self.batch, self.make, self.device = rows, batch, make, torch.device(device)
        self.seed, self.rank, self.world_size = seed, rank, world_size
        self.drawn = 0
        self._orders: dict[int, Tensor] = {}
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="feed") if threads else None
        self._ahead: deque[Future] = deque()
        self._depth = 2 * threads

    @property
    def epoch(self) -> float:
        """How often all rows were seen by now."""
        return self.drawn * self.batch * self.world_size / self.rows

    def next(self) -> Tree:
        """The next batch, on the device."""
        if self._threads is None:
            made = self.make(self.indices(self.drawn))
        else:
            while len(self._ahead) < self._depth:
                self._ahead.append(self._threads.submit(self._made, self.indices(self.drawn + len(self._ahead))))
            made = self._ahead.popleft().result()
        self.drawn += 1
        return tree_map(lambda leaf: leaf.to(self.device, non_blocking=True), made)

    def indices(self, number: int) -> Tensor:
        """Rows (batch,) of this rank's batch `number`."""
        first = (number * self.world_size + self.rank) * self.batch
        parts, left = [], self.batch
        while left:
            epoch, place = divmod(first, self.rows)
            part = self._order(epoch)[place : place + left]
            parts.append(part)
            first, left = first + len(part), left - len(part)
        return torch.cat(parts)

    def close(self) -> None:
        """Ends the threads."""
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)

    def state_dict(self) -> dict:
        return {"drawn": self.drawn, "rows": self.rows, "seed": self.seed}

    def load_state_dict(self, state: dict) -> None:
        """Goes on with the batch after the last one that was drawn.

        Raises:
            ValueError: The state is of other data.
        """
        if state["rows"] != self.rows:
            raise ValueError(f"the saved run learned from {state['rows']} rows, these are {self.rows}: other data.")
        self.drawn, self.seed = int(state["drawn"]), state["seed"]
        self._ahead.clear()
        self._orders.clear()

    def _made(self, index: Tensor) -> Tree:
        made = self.make(index)
        return tree_map(Tensor.pin_memory, made) if self.device.type == "cuda" else made

    def _order(self, epoch: int) -> Tensor:
        if epoch not in self._orders:
            for old in [known for known in self._orders if known < epoch - 1]:
                del self._orders[old]
            generator = torch.Generator().manual_seed((self.seed * 1_000_003 + epoch) % 2**63)
            self._orders[epoch] = torch.randperm(self.rows, generator=generator)
        return self._orders[epoch]
