"""GuardedLearner: calls the learner for a loop and explains failed allocations.

If memory runs out, the run ends with an error that names the option to lower and the largest value that fits.

Trials determine the value: they repeat the failed call on fewer rows, without the collectives of this rank, until the
largest number of rows that fits is known. The other ranks wait and end with this rank.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, cast

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
from powerband.data.types import EpochLearner, Learner, OfflineLearner, Tree, tree_leaves, tree_map
from powerband.loops.config import OffPolicyConfig, OnPolicyConfig

RESERVED_SHARE = 0.1
"""Share of the free memory that a replay buffer must leave free."""


class BatchSizes(Protocol):
    """Interface of a loop's configuration: names the option that sets the batch size, for error messages."""

    def batch_size_setting(self, rows: int, world_size: int, sequences: bool = False) -> str: ...


class GuardedLearner:
    """Calls a learner for a loop, and explains calls that run out of memory.

    Such an error names the option to lower and the largest value that fits, which is found by repeating the call on
    fewer rows.

    Args:
        run: Run of this rank. Its `NanGuard`, which detects losses that are not finite, receives every batch.
        learner: Learner that updates and, except in the offline loop, acts.
        config: Configuration of the loop, whose settings the error messages name.
    """

    def __init__(self, run: Run, learner: OfflineLearner, config: BatchSizes) -> None:
        self.run, self.learner, self.config = run, learner, config

    def act(self, obs: Tree, carry: Tensor | None, explore: bool = True) -> Any:
        """Calls ``learner.act`` with the same arguments and returns its result.

        Raises:
            OutOfMemory: The call ran out of memory; the message names the largest num_envs that fits.
        """
        learner = cast(Learner, self.learner)  # only loops with environments call `act`
        try:
            return learner.act(obs, carry, explore=explore)
        except (RuntimeError, MemoryError) as error:
            message = out_of_memory_message(error)
            if not message:
                raise
        # Outside `except` the error is freed, and with it the tensors of its frames.
        rows = len(tree_leaves(obs)[0])

        def call(count: int) -> None:
            first = None if carry is None else carry[:count]
            learner.act(tree_map(lambda leaf: leaf[:count], obs), first, explore=explore)

        # An environment may be several rows, such as a board of self-play on which the learner plays both teams.
        envs = cast(OffPolicyConfig | OnPolicyConfig, self.config).num_envs // self.run.ranks.world_size
        raise self._explained(
            f"choosing actions for {rows} {'environments' if rows == envs else 'rows'}",
            message,
            rows,
            call,
            lambda count: self._envs(max(1, count * envs // rows)),
        )

    def update(self, batch: dict[str, Tree], source: Tree | None = None) -> dict[str, Tensor]:
        """Calls ``learner.update`` and returns its result, the losses and statistics by name.

        Args:
            batch: Batch of this rank.
            source: Rollout that `batch` was gathered from, if the next rollout overwrites it; otherwise None. The NaN
                guard needs it for its report.

        Raises:
            OutOfMemory: The call ran out of memory; the message names the largest batch size that fits.
        """
        self.run.guard.set_batch(batch, source)
        if self.run.observer is not None:
            self.run.observer.on_batch(batch)
        try:
            return self.learner.update(batch)
        except (RuntimeError, MemoryError) as error:
            message = out_of_memory_message(error)
            if not message:
                raise
        world, sequences = self.run.ranks.world_size, "carry" in batch
        rows, setting = _rows(batch), self.config.batch_size_setting
        if source is not None:  # only the on-policy loop has a rollout; its rows may be more than its environments
            steps, envs = tree_leaves(source)[0].shape[:2]
            on_policy = cast(OnPolicyConfig, self.config)
            setting = partial(on_policy.batch_size_setting, total=envs if sequences else steps * envs)
        raise self._explained(
            f"an update of {rows} {'sequences' if sequences else 'rows'}",
            message,
            rows,
            lambda count: self.learner.update(_first(batch, count)),
            lambda count: setting(count, world, sequences),
        )

    def update_epoch(self, data: dict[str, Tree], order: Tensor, size: int) -> dict[str, Tensor]:
        """Calls ``learner.update_epoch`` and returns its result, the mean losses and statistics by name.

        Args:
            data: Rollout of this rank, tensors (T, N, ...) by name for T steps and N environments.
            order: Order of the T * N rows of the rollout, a permutation (T * N,) int64.
            size: Rows of a mini-batch.
        """
        self.run.guard.set_batch(data, data)
        if self.run.observer is not None:
            self.run.observer.on_batch(tree_map(lambda leaf: leaf.flatten(0, 1)[order[:size]], data))
        return cast(EpochLearner, self.learner).update_epoch(data, order, size)

    def allocate(self, name: str, count: int, make: Callable[[int], Any], each: Callable[[], int]) -> Any:
        """Allocates `count` rows with `make`; every rank (process of the training) must call it at the same time.

        Args:
            name: Option that sets the number of rows over all ranks, for the message.
            count: Number of rows on this rank.
            make: Function (number of rows) -> allocated object.
            each: Function that returns the size of one row in bytes.

        Returns:
            The result of `make`.

        Raises:
            OutOfMemory: An allocation failed on some rank; raised on the leading rank. The message names the largest
                number that fits.
            SystemExit: An allocation failed on some rank; raised on the other ranks, which end without a message.
        """
        ranks, result, message = self.run.ranks, None, ""
        free, needed = free_bytes(ranks.device), count * each()
        usable = free * (1 - RESERVED_SHARE)
        if ranks.device.type == "cpu" and 0 < usable < needed:  # Linux would grant it, and later kill the process
            message = f"{usable / 2**30:.1f} GiB are free for it"
        else:
            try:
                result = make(count)
            except (RuntimeError, MemoryError) as error:
                message = out_of_memory_message(error)
                if not message:
                    raise
        fits_here = int(usable / each()) if message else count
        answers = ranks.gather({"message": message, "fits": fits_here})
        failed = [rank for rank, answer in enumerate(answers) if answer["message"]]
        if not failed:
            return result
        fits, world = min(answer["fits"] for answer in answers), ranks.world_size
        if not ranks.leads:
            raise SystemExit(2)
        place = f"rank {failed[0]}" if world > 1 else "this machine"
        fix = f"Write {name}={fits * world} or less; a tenth of the free memory is reserved."
        if not fits:
            fix = "Not even one row fits. Use a device with more memory."
        raise OutOfMemory(
            f"{name}={count * world} does not fit: {count} rows of {each()} bytes are {needed / 2**30:.1f} GiB "
            f"on each of {world} rank(s), which {place} does not have ({answers[failed[0]]['message']}). {fix}"
        )

    def _envs(self, count: int) -> str:
        world = self.run.ranks.world_size
        return f"num_envs={count * world}" + (f" ({count} on each of {world} ranks)" if world > 1 else "")

    def _explained(
        self, task: str, message: str, rows: int, call: Callable[[int], object], setting: Callable[[int], str]
    ) -> OutOfMemory:
        """Builds the error for a call that ran out of memory; repetitions with fewer rows find how many fit.

        Args:
            task: Description of the call.
            message: Error message of torch.
            rows: Rows of the failed call.
            call: Function that repeats the call with a number of rows.
            setting: Function (number of rows) -> command-line setting that leads to it.
        """
        ranks = self.run.ranks
        process = f"rank {ranks.rank} of {ranks.world_size}" if ranks.world_size > 1 else "this process"
        start = f"{process} ran out of memory in {task} ({message})."
        if ranks.device.type == "cuda":
            if torch.cuda.is_current_stream_capturing():
                return OutOfMemory(
                    f"{start} The updates are a captured CUDA graph, which cannot run with fewer rows to find a size "
                    f"that fits. Write a smaller off_policy.global_batch_size, or off_policy.graph_updates=0 once: "
                    f"the error then names the largest size that fits."
                )
            torch.cuda.empty_cache()
        # Compiled functions would be compiled again for each number of rows, until torch refuses.
        with ranks.without_collectives(), torch.compiler.set_stance("force_eager"):
            fits = largest_that_fits(lambda count: fits_in_memory(lambda: call(count), ranks.device), 1, rows)
        if fits == rows:
            return OutOfMemory(
                f"{start} The same call fitted when it was repeated, so {setting(rows)} is close to the limit. Write a "
                f"smaller value."
            )
        if not fits:
            return OutOfMemory(f"{start} Not even one row fits. Use a smaller network, or a device with more memory.")
        return OutOfMemory(f"{start} At most {fits} of them fit. Write {setting(fits)}.")


def _rows(batch: dict[str, Tree]) -> int:
    """Counts the rows of a batch, or its sequences if it contains a carry (the initial recurrent state)."""
    return len(batch["carry"]) if "carry" in batch else len(tree_leaves(batch)[0])


def _first(batch: dict[str, Tree], count: int) -> dict[str, Tree]:
    """Returns the first `count` rows (n, ...) of a batch, or the first `count` sequences (T steps, n, ...)."""
    if "carry" not in batch:
        return tree_map(lambda leaf: leaf[:count], batch)
    return {
        name: tree_map(lambda leaf, own=name == "carry": leaf[:count] if own else leaf[:, :count], part)
        for name, part in batch.items()
    }
