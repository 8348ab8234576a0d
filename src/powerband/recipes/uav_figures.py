"""Figures: pictures and histograms of a training run for TensorBoard, made in a thread of their own.

The training thread copies the weights and goes on; flying a mission with them, drawing and writing happen beside it.
Where that takes longer than the interval, pictures are left out, and the run says how many.
"""

from __future__ import annotations

import queue
import threading
from typing import Any

import torch
from torch import Tensor

from powerband.algos.coma import COMA
from powerband.core.noise import NoiseSource
from powerband.core.precision import Precision
from powerband.core.run import Run
from powerband.envs.uav.world import World

Job = tuple[int, dict[str, dict[str, Tensor]], bool, bool]


class Figures:
    """Use as a context manager around the loop; `after_update` is the loop's callback.

    Args:
        run: Its leading rank writes, into ``figures/`` of the run folder.
        learner: Whose weights are shown.
        world: Of the mission that is drawn.
        figure_interval, histogram_interval: Rollouts between two; 0 is none.
    """

    def __init__(self, run: Run, learner: COMA, world: World, figure_interval: int, histogram_interval: int) -> None:
        self.run, self.learner, self.world = run, learner, world
        self.intervals = (figure_interval, histogram_interval)
        self.left_out = 0
        self._jobs: queue.Queue[Job | None] = queue.Queue(maxsize=1)
        wanted = run.ranks.leads and max(self.intervals) > 0
        self._thread = threading.Thread(target=self._work, name="figures", daemon=True) if wanted else None
        self._error: BaseException | None = None

    def __enter__(self) -> Figures:
        if self._thread is not None:
            self._thread.start()
        return self

    def __exit__(self, *error: Any) -> None:
        if self._thread is None:
            return
        self._jobs.put(None)
        self._thread.join()
        if self.left_out:
            self.run.console.note(f"figures: {self.left_out} left out, drawing was slower than figure_interval")
        if self._error is not None:
            self.run.console.note(f"figures: ended by {type(self._error).__name__}: {self._error}")

    def after_update(self) -> None:
        """Hands a copy of the weights over, where one is due."""
        if self._thread is None:
            return
        rollouts = self.learner.rollouts
        picture, histograms = (every > 0 and rollouts % every == 0 for every in self.intervals)
        if not (picture or histograms):
            return
        if self._jobs.full():
            self.left_out += 1
            return
        copies = {
            name: {key: value.detach().to("cpu", copy=True) for key, value in part.state_dict().items()}
            for name, part in (("actor", self.learner.actor), ("critic", self.learner.critic))
        }
        self._jobs.put((self.run.env_steps, copies, picture, histograms))

    def _work(self) -> None:
        from torch.utils.tensorboard import SummaryWriter

        try:
            with SummaryWriter(str(self.run.dir / "figures")) as writer:
                while (job := self._jobs.get()) is not None:
                    env_steps, weights, picture, histograms = job
                    if histograms:
                        for part, values in weights.items():
                            for name, value in values.items():
                                writer.add_histogram(f"{part}/{name}", value, env_steps)
                    if picture:
                        writer.add_image("mission", self._draw(weights["actor"]), env_steps, dataformats="HWC")
        except Exception as error:  # pictures must not end a training run; the run says so at its end
            self._error = error
            while self._jobs.get() is not None:
                pass

    @torch.no_grad()
    def _draw(self, actor: dict[str, Tensor]) -> Any:
        from powerband.recipes.uav_pictures import film

        own = COMA(self.learner.spec, self.learner.config, "cpu", Precision("fp32", "cpu"), NoiseSource(0))
        own.actor.load_state_dict(actor)
        return film(own, self.world, seed=30_000)[-1]
