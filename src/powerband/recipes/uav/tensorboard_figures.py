"""TensorBoard figures: draws images of missions and histograms of weights in a background thread.

The training thread only copies the weights. The background thread flies a mission with them, draws it and writes the
files. If this takes longer than the interval, images are skipped, and the run reports their number at its end.
"""

from __future__ import annotations

import queue
import threading
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from powerband.core.rank_context import RankContext
from powerband.core.run.run import Run
from powerband.recipes.uav.config import Config
from powerband.recipes.uav.images import film_mission
from powerband.recipes.uav.learner import TeamLearner, build_learner

Job = tuple[int, dict[str, dict[str, Tensor]], bool, bool]
"""Work for the background thread: environment steps, weights of each network, whether to draw an image, whether to
write histograms."""


class TensorboardFigures:
    """Context manager that writes images of missions and histograms of weights to TensorBoard during training.

    Enter it around the training loop, which must call `after_update` after each rollout. A background thread, which
    draws the images, runs until the context is left.

    Args:
        run: Run whose leading rank writes to ``figures/`` in the run folder.
        learner: Learner whose weights are shown.
        config: Configuration of the run: its ``figure_interval`` and ``histogram_interval`` are the rollouts between
            two images and between two sets of histograms, where 0 means none.
    """

    def __init__(self, run: Run, learner: TeamLearner, config: Config) -> None:
        self.run, self.learner, self.config = run, learner, config
        self.intervals = (config.figure_interval, config.histogram_interval)
        self.skipped = 0
        self._jobs: queue.Queue[Job | None] = queue.Queue(maxsize=1)
        active = run.ranks.leads and max(self.intervals) > 0
        self._thread = threading.Thread(target=self._work, name="figures", daemon=True) if active else None
        self._error: BaseException | None = None

    def __enter__(self) -> TensorboardFigures:
        if self._thread is not None:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread is None:
            return
        self._jobs.put(None)
        self._thread.join()
        if self.skipped:
            self.run.console.note(
                f"TensorBoard: {self.skipped} figures were skipped, because drawing takes longer than figure_interval. "
                f"Raise it."
            )
        if self._error is not None:
            self.run.console.note(
                f"TensorBoard: no figures are drawn after an error, {type(self._error).__name__}: {self._error}"
            )

    def after_update(self) -> None:
        """Passes a copy of the weights to the background thread if an image or a histogram is due at this rollout.

        If an earlier copy still waits for the thread, the new copy is skipped and counted.
        """
        if self._thread is None:
            return
        rollouts = self.learner.rollouts
        image, histograms = (interval > 0 and rollouts % interval == 0 for interval in self.intervals)
        if not (image or histograms):
            return
        if self._jobs.full():
            self.skipped += 1
            return
        weights = {
            name: {key: value.detach().to("cpu", copy=True) for key, value in network.state_dict().items()}
            for name, network in (("actor", self.learner.actor), ("critic", self.learner.critic))
        }
        loop = self.config.on_policy
        env_steps = self.run.env_steps + loop.num_envs * loop.num_steps  # the loop counts this rollout afterwards
        self._jobs.put((env_steps, weights, image, histograms))

    def _work(self) -> None:
        from torch.utils.tensorboard import SummaryWriter

        try:
            with SummaryWriter(str(self.run.dir / "figures")) as writer:
                while (job := self._jobs.get()) is not None:
                    env_steps, weights, image, histograms = job
                    if histograms:
                        for network, tensors in weights.items():
                            for name, value in tensors.items():
                                writer.add_histogram(f"{network}/{name}", value, env_steps)
                    if image:
                        writer.add_image("mission", self._draw(weights["actor"]), env_steps, dataformats="HWC")
        except Exception as error:  # a failed figure must not end the training; the run reports it at its end
            self._error = error
            while self._jobs.get() is not None:
                pass

    @torch.no_grad()
    def _draw(self, actor: dict[str, Tensor]) -> Any:
        """Flies a mission on the CPU with the weights `actor`; returns its last image (450, 1200, 3) uint8 RGB."""
        copy, _, _ = build_learner(self.config, RankContext.single())
        copy.actor.load_state_dict(actor)
        return film_mission(copy, self.config.world, seed=30_000)[-1]
