"""BatchLoader: batches of recorded rows, each row once per epoch, independent of ranks and resumes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from powerband.core.errors import ConfigError
from powerband.data.types import Tree, tree_map


class BatchLoader:
    """Draws batches of recorded rows for this rank (process of the training), in random order without replacement.

    The rows of all epochs form one endless stream, with a new permutation in each epoch. Batch t of all ranks together
    is the t-th piece of the stream, so a batch may span two epochs, and no row is omitted.

    Args:
        rows: Number of recorded rows.
        batch: Rows of a batch on this rank.
        make: Function that gathers a batch, a tensor or nested dict of tensors, from row indices (batch,) int64 on the
            CPU.
        device: Device of the batches.
        seed: Seed of the run.
        rank: Index of this rank.
        world_size: Number of ranks.
        threads: Threads that prepare batches ahead; 0 prepares each batch on request, which suits rows on the device.
        row_steps: Recorded steps of a row: 1, or the length of rows that are sequences.

    Attributes:
        batches_drawn: Number of batches that `next` has returned, over all resumed runs.
        batch_size_setting: Function (rows of a batch on each rank, number of ranks) -> setting that leads to them, such
            as ``offline.global_batch_size=64``, for error messages. The offline loop sets that of its configuration.

    Raises:
        ConfigError: The number of rows is 0.
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
        row_steps: int = 1,
    ) -> None:
        if rows < 1:
            raise ConfigError(
                f"The recorded data have rows={rows}, but batches need at least one row. Record at least one episode."
            )
        self.rows, self.batch, self.make, self.device = rows, batch, make, torch.device(device)
        self.seed, self.rank, self.world_size, self.row_steps = seed, rank, world_size, row_steps
        self.batches_drawn = 0
        self.batch_size_setting: Callable[[int, int], str] = self._global_batch_setting
        self._orders: dict[int, Tensor] = {}
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="batch-loader") if threads else None
        self._ahead: deque[Future] = deque()
        self._depth = 2 * threads

    @property
    def epoch(self) -> float:
        """Number of epochs drawn so far by all ranks, with fractions."""
        return self.batches_drawn * self.batch * self.world_size / self.rows

    def next(self) -> Tree:
        """Returns the next batch, the result of `make`, on the device."""
        if self._threads is None:
            batch = self.make(self.indices(self.batches_drawn))
        else:
            while len(self._ahead) < self._depth:
                self._ahead.append(
                    self._threads.submit(self._pinned_batch, self.indices(self.batches_drawn + len(self._ahead)))
                )
            batch = self._ahead.popleft().result()
        self.batches_drawn += 1
        return tree_map(lambda leaf: leaf.to(self.device, non_blocking=True), batch)

    def indices(self, number: int) -> Tensor:
        """Returns the row indices (batch,) int64 of this rank's batch `number`, counted from 0."""
        first = (number * self.world_size + self.rank) * self.batch
        parts, remaining = [], self.batch
        while remaining:
            epoch, place = divmod(first, self.rows)
            part = self._order(epoch)[place : place + remaining]
            parts.append(part)
            first, remaining = first + len(part), remaining - len(part)
        return torch.cat(parts)

    def close(self) -> None:
        """Ends the threads that prepare batches."""
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)

    def state_dict(self) -> dict:
        """Returns the position in the stream of rows: the number of batches drawn, the number of rows and the seed."""
        return {"drawn": self.batches_drawn, "rows": self.rows, "seed": self.seed, "batch": self.batch}

    def load_position(self, states: list[dict]) -> None:
        """Restores the position in the stream of rows of a run that had another number of ranks.

        Args:
            states: Results of `state_dict` of the saved ranks, in rank order.

        Raises:
            ConfigError: The number of recorded rows differs, or so does the batch over all ranks.
        """
        saved, now = states[0].get("batch", 0) * len(states), self.batch * self.world_size
        if saved != now:
            fix = f"Write {self.batch_size_setting(saved // self.world_size, self.world_size)}."
            if saved % self.world_size:
                fix = f"Resume with a number of ranks that divides {saved}."
            raise ConfigError(
                f"The checkpoint was saved with batches of {saved} rows over all ranks, but this run has {now}. {fix}"
            )
        self._continue(states[0])

    def load_state_dict(self, state: dict) -> None:
        """Restores the position in the stream of rows from a result of `state_dict`.

        Raises:
            ConfigError: The state was saved with another number of recorded rows, or with another batch, with which
                the number of drawn batches is another position.
        """
        if state.get("batch", self.batch) != self.batch:
            raise ConfigError(
                f"The checkpoint was saved with batches of {state['batch']} rows on each rank, but this run has "
                f"{self.batch}. Write {self.batch_size_setting(state['batch'], self.world_size)}."
            )
        self._continue(state)

    def _global_batch_setting(self, rows: int, world_size: int) -> str:
        return f"offline.global_batch_size={rows * world_size * self.row_steps}"

    def _continue(self, state: dict) -> None:
        if state["rows"] != self.rows:
            raise ConfigError(
                f"The checkpoint was saved with {state['rows']} recorded rows, but the data has {self.rows}. Resume "
                f"with the data of the saved run."
            )
        self.batches_drawn, self.seed = int(state["drawn"]), state["seed"]
        self._ahead.clear()
        self._orders.clear()

    def _pinned_batch(self, rows: Tensor) -> Tree:
        """Gathers the batch of `rows`. For CUDA it is page-locked, so that its copy to the device is asynchronous."""
        batch = self.make(rows)
        return tree_map(Tensor.pin_memory, batch) if self.device.type == "cuda" else batch

    def _order(self, epoch: int) -> Tensor:
        """Returns the permutation (rows,) int64 of an epoch; only the last two permutations are stored."""
        if epoch not in self._orders:
            for old in [stored for stored in self._orders if stored < epoch - 1]:
                del self._orders[old]
            generator = torch.Generator().manual_seed((self.seed * 1_000_003 + epoch) % 2**63)
            self._orders[epoch] = torch.randperm(self.rows, generator=generator)
        return self._orders[epoch]
