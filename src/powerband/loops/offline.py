"""The offline loop: recorded rows, one update a batch. Representation, distillation and imitation learn in it.

What is counted as an environment step is a recorded one that an update was made of.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol

from torch import Tensor

from powerband.core.config import ConfigError
from powerband.core.flags import at_least
from powerband.core.run import Run
from powerband.core.scaling import per_rank
from powerband.data.feed import Feed
from powerband.data.types import Tree
from powerband.loops.learning import Learning


@dataclass(frozen=True)
class OfflineConfig:
    global_batch_size: int = 128
    """Recorded rows of one update, over all ranks."""
    batch_size_per_rank: int = 0
    """The batch of each rank instead of the one over all ranks; 0 leaves it to global_batch_size."""
    place: Literal["auto", "device", "host"] = "auto"
    """Where the rows lie: on the device, where a batch is one gather, or in host memory; auto is the device if they
    fit into half of what is free there."""
    loader_threads: int = 0
    """Threads that make batches ahead where rows lie in host memory."""

    def __post_init__(self) -> None:
        at_least(self, global_batch_size=1, batch_size_per_rank=0, loader_threads=0)

    def refuse_device(self, why: str) -> None:
        """For rows that cannot lie on the device.

        Raises:
            ConfigError: They were told to.
        """
        if self.place == "device":
            raise ConfigError(
                f"offline.place=device: {why}. Leave it out; offline.loader_threads makes batches ahead of the updates."
            )

    def batch_words(self, rows: int, world_size: int, sequences: bool = False) -> str:
        """The word that makes batches of `rows` on each rank."""
        if self.batch_size_per_rank:
            return f"offline.batch_size_per_rank={rows}"
        return f"offline.global_batch_size={rows * world_size}"

    def batch(self, world_size: int) -> int:
        """Rows of one update on each rank.

        Raises:
            ConfigError: The batch cannot be shared among `world_size` ranks.
        """
        own = self.batch_size_per_rank
        return own or per_rank("offline.global_batch_size", self.global_batch_size, world_size)

    def check(self, world_size: int) -> None:
        """Refuses a batch that cannot be shared among `world_size` ranks."""
        self.batch(world_size)


class OfflineLearner(Protocol):
    def update(self, batch: Tree) -> dict[str, Tensor]: ...
    def state_dict(self) -> dict: ...
    def load_state_dict(self, state: dict) -> None: ...


def offline(run: Run, learner: OfflineLearner, feed: Feed, config: OfflineConfig) -> None:
    """Trains `learner` on the batches of `feed` until the run's budget is spent.

    Args:
        run: Device, counters, clock, metrics, checkpoints.
        learner: Updates.
        feed: Batches of this rank; a resume goes on with the next one.
        config: Sizes, over all ranks.
    """
    world = run.ranks.world_size
    learning: Any = Learning(run, learner, config)
    run.attach("learner", learner, shared=True)
    run.attach("feed", feed)
    together = feed.batch * world
    run.banner(
        {
            "recorded": f"{feed.rows:,} rows; an epoch is {feed.rows / together:,.0f} updates",
            "batch": f"{together} over {world} rank(s) = {feed.batch} each",
            "updates": f"{-(-run.settings.env_steps // together):,}; env steps count the recorded ones that they use",
        }
    )
    run.restore()
    clock = run.clock
    try:
        while run.running:
            with clock("data"):
                batch = feed.next()
            with clock("update"):
                run.learned(learning.update(batch))
            run.tick(together, 1)
        run.finish()
    finally:
        feed.close()
