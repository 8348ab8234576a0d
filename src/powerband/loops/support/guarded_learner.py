"""Learning: the learner as a loop calls it. Where memory runs out, the run ends with the knob and the value that fits.

The value is found by really trying: the call that failed is made again on fewer of its rows, with the collectives of
this rank switched off, until the largest number of rows that fits is known. Other ranks wait, and end with this one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from powerband.core.machine.out_of_memory import (
    OutOfMemory,
    fits_in_memory,
    free_bytes,
    largest_that_fits,
    out_of_memory_message,
)
from powerband.core.run.run import Run
from powerband.data.types import Learner, Tree, tree_leaves, tree_map

RESERVED_SHARE = 0.1
"""Share of the free memory that a replay leaves to everything else."""


class BatchSizes(Protocol):
    """A loop's configuration, as far as rows are concerned."""

    def batch_size_setting(self, rows: int, world_size: int, sequences: bool = False) -> str: ...


class GuardedLearner:
    """Calls a learner for a loop.

    Args:
        run: Its guard is handed every batch.
        learner: Acts and updates.
        config: Words of the loop's sizes.
    """

    def __init__(self, run: Run, learner: Learner, config: BatchSizes) -> None:
        self.run, self.learner, self.config = run, learner, config

    def act(self, obs: Tree, carry: Tensor | None, explore: bool = True) -> Any:
        """``learner.act``.

        Raises:
            OutOfMemory: Names num_envs and what fits.
        """
        try:
            return self.learner.act(obs, carry, explore=explore)
        except (RuntimeError, MemoryError) as error:
            said = out_of_memory_message(error)
            if not said:
                raise
        # Out here the error is gone, and with it the tensors that its frames held.
        rows = len(tree_leaves(obs)[0])

        def call(count: int) -> None:
            memory = None if carry is None else carry[:count]
            self.learner.act(tree_map(lambda leaf: leaf[:count], obs), memory, explore=explore)

        raise self._explained(f"choosing actions for {rows} environments", said, rows, call, self._envs)

    def update(self, batch: dict[str, Tree], whole: Tree | None = None) -> dict[str, Tensor]:
        """``learner.update``.

        Args:
            batch: Of this rank.
            whole: What it was drawn from, where that is written over soon.

        Raises:
            OutOfMemory: Names the batch size and what fits.
        """
        self.run.guard.set_batch(batch, whole)
        if self.run.observer is not None:
            self.run.observer.on_batch(batch)
        try:
            return self.learner.update(batch)
        except (RuntimeError, MemoryError) as error:
            said = out_of_memory_message(error)
            if not said:
                raise
        world = self.run.ranks.world_size
        rows = _rows(batch)
        raise self._explained(
            f"an update of {rows} {'sequences' if 'carry' in batch else 'rows'}",
            said,
            rows,
            lambda count: self.learner.update(_first(batch, count)),
            lambda count: self.config.batch_size_setting(count, world, "carry" in batch),
        )

    def allocate(self, name: str, count: int, make: Callable[[int], Any], each: Callable[[], int]) -> Any:
        """What `make` gives for `count` rows: memory that is asked for once, by all ranks at the same time.

        Args:
            name: Setting of the size over all ranks.
            count: Rows of this rank.
            make: Allocates so many.
            each: Bytes of one row.

        Raises:
            OutOfMemory: One rank or more cannot have it; on the leading rank. The others end quietly with its status.
        """
        ranks, made, said = self.run.ranks, None, ""
        free, needed = free_bytes(ranks.device), count * each()
        if ranks.device.type == "cpu" and 0 < free < needed:  # Linux would hand it out, and kill who uses it
            said = f"{free / 2**30:.1f} GiB are free for it"
        else:
            try:
                made = make(count)
            except (RuntimeError, MemoryError) as error:
                said = out_of_memory_message(error)
                if not said:
                    raise
        answers = ranks.gather({"said": said, "fits": int(free * (1 - RESERVED_SHARE) / each()) if said else count})
        short = [rank for rank, answer in enumerate(answers) if answer["said"]]
        if not short:
            return made
        fits, world = min(answer["fits"] for answer in answers), ranks.world_size
        if not ranks.leads:
            raise SystemExit(2)
        where = f"rank {short[0]}" if world > 1 else "this machine"
        fix = f"Write {name}={fits * world} or less: that leaves a tenth of what is free." if fits else "No row fits."
        raise OutOfMemory(
            f"{name}={count * world} does not fit: {count} rows of {each()} bytes are {needed / 2**30:.1f} GiB "
            f"on each of {world} rank(s), and {where} has not so much ({answers[short[0]]['said']}). {fix}"
        )

    def _envs(self, count: int) -> str:
        world = self.run.ranks.world_size
        return f"num_envs={count * world}" + (f" ({count} on each of {world} ranks)" if world > 1 else "")

    def _explained(
        self, what: str, said: str, rows: int, call: Callable[[int], object], words: Callable[[int], str]
    ) -> OutOfMemory:
        ranks = self.run.ranks
        who = f"rank {ranks.rank} of {ranks.world_size}" if ranks.world_size > 1 else "this process"
        start = f"{who} ran out of memory in {what} ({said})."
        if ranks.device.type == "cuda":
            if torch.cuda.is_current_stream_capturing():
                return OutOfMemory(f"{start} It was being captured: set graph_updates=0 to be told what fits.")
            torch.cuda.empty_cache()
        with ranks.without_collectives():
            fits = largest_that_fits(lambda count: fits_in_memory(lambda: call(count), ranks.device), 1, rows)
        if fits == rows:
            return OutOfMemory(
                f"{start} It fits now, so something else held memory then: {words(rows)} is at the edge."
            )
        if not fits:
            return OutOfMemory(f"{start} Not even one row fits: a smaller network, or a device with more memory.")
        return OutOfMemory(f"{start} By trying, {fits} fit. Write {words(fits)}.")


def _rows(batch: dict[str, Tree]) -> int:
    """Rows of a batch; sequences where it holds such, beside their first memory."""
    return len(batch["carry"]) if "carry" in batch else len(tree_leaves(batch)[0])


def _first(batch: dict[str, Tree], count: int) -> dict[str, Tree]:
    """The first `count` rows, or sequences (T, n, ...)."""
    if "carry" not in batch:
        return tree_map(lambda leaf: leaf[:count], batch)
    return {
        name: tree_map(lambda leaf, own=name == "carry": leaf[:count] if own else leaf[:, :count], part)
        for name, part in batch.items()
    }
