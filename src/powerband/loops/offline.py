"""Offline loop: one update per batch of recorded rows, for representation learning, distillation and imitation.

Each recorded row in an update counts as one environment step.
"""

from __future__ import annotations

from dataclasses import dataclass

from powerband.core.run.hooks import RunHooks
from powerband.core.run.run import Run
from powerband.data.recorded.batch_loader import BatchLoader
from powerband.data.types import OfflineLearner
from powerband.loops.config import OfflineConfig
from powerband.loops.support.guarded_learner import GuardedLearner


@dataclass(frozen=True)
class _BatchSizes:
    """Names the option that sets the batch size, for error messages about rows of `row_steps` recorded steps.

    ``batch_size_per_rank`` is the size of one of the `parts` of an update.
    """

    config: OfflineConfig
    row_steps: int
    parts: int

    def batch_size_setting(self, rows: int, world_size: int, sequences: bool = False) -> str:
        parts = self.parts if self.config.batch_size_per_rank else 1
        return self.config.batch_size_setting(max(1, rows * self.row_steps // parts), world_size)


def offline(
    run: Run,
    learner: OfflineLearner,
    loader: BatchLoader,
    config: OfflineConfig,
    hooks: RunHooks | None = None,
    parts: int = 1,
) -> None:
    """Trains `learner` on the batches of `loader` until the run's budget of steps or time is spent.

    Args:
        run: Run of this rank (process of the training), with device, counters, metrics and checkpoints.
        learner: Learner to update.
        loader: Source of the batches of this rank, closed at the end. A resumed run continues with the next batch.
        config: Sizes over all ranks.
        hooks: Functions that the run calls for evaluations and before checkpoints; None calls nothing.
        parts: Parts of an update whose gradients are accumulated, of ``batch_size_per_rank`` rows each.
    """
    world = run.ranks.world_size
    sizes = _BatchSizes(config, loader.row_steps, parts)
    loader.batch_size_setting = sizes.batch_size_setting
    guarded = GuardedLearner(run, learner, sizes)
    run.register("learner", learner, shared=True)
    run.register("feed", loader, redistribute=loader.load_position)
    steps = loader.row_steps
    rows = "rows" if steps == 1 else f"sequences of {steps} rows"
    global_batch = loader.batch * world * steps
    run.begin(
        {
            "recorded": f"{loader.rows:,} {rows}; an epoch is {loader.rows * steps / global_batch:,.0f} updates",
            "batch": f"{global_batch} over {world} rank(s) = {loader.batch * steps} each",
            "updates": f"{-(-run.settings.env_steps // global_batch):,}; each row of an update counts as one env step",
        },
        hooks,
    )
    clock = run.clock
    try:
        while run.running:
            with clock("data"):
                batch = loader.next()
            with clock("update"):
                run.learned(guarded.update(batch))
            run.tick(global_batch)
        run.finish()
    finally:
        loader.close()
