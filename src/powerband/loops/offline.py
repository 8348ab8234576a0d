"""The offline loop: recorded rows, one update a batch. Representation, distillation and imitation learn in it.

What is counted as an environment step is a recorded one that an update was made of.
"""

from __future__ import annotations

from powerband.core.run.run import Run, RunHooks
from powerband.data.recorded.batch_loader import BatchLoader
from powerband.data.types import OfflineLearner
from powerband.loops.config import OfflineConfig
from powerband.loops.support.guarded_learner import GuardedLearner


def offline(
    run: Run, learner: OfflineLearner, feed: BatchLoader, config: OfflineConfig, hooks: RunHooks | None = None
) -> None:
    """Trains `learner` on the batches of `feed` until the run's budget is spent.

    Args:
        run: Device, counters, clock, metrics, checkpoints.
        learner: Updates.
        feed: Batches of this rank; a resume goes on with the next one.
        config: Sizes, over all ranks.
        hooks: Functions of the recipe that the run calls: evaluation, preparation of a checkpoint.
    """
    world = run.ranks.world_size
    learning = GuardedLearner(run, learner, config)
    run.register("learner", learner, shared=True)
    run.register("feed", feed)
    together = feed.batch * world
    run.begin(
        {
            "recorded": f"{feed.rows:,} rows; an epoch is {feed.rows / together:,.0f} updates",
            "batch": f"{together} over {world} rank(s) = {feed.batch} each",
            "updates": f"{-(-run.settings.env_steps // together):,}; env steps count the recorded ones that they use",
        },
        hooks,
    )
    clock = run.clock
    try:
        while run.running:
            with clock("data"):
                batch = feed.next()
            with clock("update"):
                run.learned(learning.update(batch))
            run.tick(together)
        run.finish()
    finally:
        feed.close()
