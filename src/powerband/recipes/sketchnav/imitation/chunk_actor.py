"""NavigationChunkActor: acts in the environment with a policy that predicts chunks (sequences) of actions."""

from __future__ import annotations

import torch
from torch import Tensor

from powerband.algos.action_chunks import ActionChunkLearner
from powerband.recipes.sketchnav.env.env import SketchNavEnv


class NavigationChunkActor:
    """Policy that stacks the newest images of each agent, and executes the first actions of each predicted chunk.

    Args:
        learner: Learner that predicts chunks.
        image_keys: Observed images by their keys in an observation.
        exec_horizon: Actions executed before the next chunk is predicted; 0 uses the setting chunks.exec_horizon.
    """

    def __init__(self, learner: ActionChunkLearner, image_keys: tuple[str, ...], exec_horizon: int = 0) -> None:
        self.learner, self.image_keys = learner, image_keys
        self.exec_horizon = exec_horizon or learner.config.exec_horizon
        self.images: dict[str, Tensor] = {}
        self.chunk = self.executed = torch.empty(0)

    def __call__(self, env: SketchNavEnv, obs: dict[str, Tensor], carry: Tensor | None) -> tuple[Tensor, None]:
        """Returns actions (N,) int64 for the N agents of `env`, and None, because this object holds the memory."""
        starts = env.agents.made == 0
        if not self.images:
            starts = torch.ones_like(starts)
            self.chunk = torch.zeros(env.num_envs, self.learner.config.horizon, dtype=torch.int64, device=env.device)
            self.executed = torch.zeros(env.num_envs, dtype=torch.int64, device=env.device)
        for name in self.image_keys:
            self.images[name] = self._stack(self.images.get(name), obs[name], starts)
        due = (starts | (self.executed >= self.exec_horizon)).nonzero()[:, 0]
        if len(due):
            stacked = {name: obs[name][due] for name in ("gps", "compass", "episode")}
            stacked |= {name: self.images[name][due].flatten(1, 2) for name in self.image_keys}
            self.chunk[due] = self.learner.act(stacked, None, explore=False)[0]
            self.executed[due] = 0
        action = self.chunk.gather(1, self.executed.unsqueeze(1))[:, 0]
        self.executed += 1
        return action, None

    def _stack(self, past: Tensor | None, newest: Tensor, starts: Tensor) -> Tensor:
        """Adds `newest` (N, C, S, S) to `past` and returns the newest images (N, frames, C, S, S), oldest first.

        There are N agents, and images of C channels and S x S pixels. At the start of an episode (`starts`), and if
        `past` is None, the newest image fills all frames.
        """
        repeated = newest.unsqueeze(1).repeat(1, self.learner.config.frames, 1, 1, 1)
        if past is None:
            return repeated
        shifted = torch.cat([past[:, 1:], newest.unsqueeze(1)], 1)
        return torch.where(starts.view(-1, 1, 1, 1, 1), repeated, shifted)
