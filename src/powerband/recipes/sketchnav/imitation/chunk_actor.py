"""NavigationChunkActor: acts in the environment with a policy that predicts chunks (sequences) of actions."""

from __future__ import annotations

import torch
from torch import Tensor

from powerband.algos.chunks.action_chunks import ActionChunkLearner
from powerband.recipes.sketchnav.env.env import SketchNavEnv


class NavigationChunkActor:
    """Policy that executes the first actions of each predicted chunk, a sequence of actions.

    It stacks the newest camera images of each agent, and holds the memory of a policy with a GRU.

    Args:
        learner: Learner that predicts chunks.
        image_keys: Keys, in an observation, of the images that the learner observes.
        exec_horizon: Actions executed before the next chunk is predicted; 0 uses the setting chunks.exec_horizon.
    """

    def __init__(self, learner: ActionChunkLearner, image_keys: tuple[str, ...], exec_horizon: int = 0) -> None:
        self.learner, self.image_keys = learner, image_keys
        self.exec_horizon = exec_horizon or learner.config.exec_horizon
        self.images: dict[str, Tensor] = {}
        self.chunk = self.executed = torch.empty(0)
        self.memory: Tensor | None = None

    def __call__(self, env: SketchNavEnv, obs: dict[str, Tensor], carry: Tensor | None) -> tuple[Tensor, None]:
        """Chooses the actions of the N agents of an environment.

        Args:
            env: Environment, which may be on another device.
            obs: Observations of `env`, on the device of the learner.
            carry: Not used, because this object holds the memory.

        Returns:
            Actions (N,) int64 on the device of the learner, and None.
        """
        device = obs["episode"].device
        starts = (env.agents.made == 0).to(device)
        if not self.executed.numel():
            starts = torch.ones_like(starts)
            self.chunk = torch.zeros(env.num_envs, self.learner.config.horizon, dtype=torch.int64, device=device)
            self.executed = torch.zeros(env.num_envs, dtype=torch.int64, device=device)
            self.memory = self.learner.initial_carry(env.num_envs)
        for name in self.image_keys:
            self.images[name] = self._stack(self.images.get(name), obs[name], starts)
        due = (starts | (self.executed >= self.exec_horizon)).nonzero()[:, 0]
        stacked = {name: obs[name] for name in ("gps", "compass", "episode")}
        stacked |= {name: self.images[name].flatten(1, 2) for name in self.image_keys}
        if self.memory is not None:  # it sees the observations of all steps, also those without a new chunk
            features, self.memory = self.learner.encode(stacked, self.memory * ~starts.unsqueeze(1))
            features = features[due]
        elif len(due):
            features, _ = self.learner.encode({name: values[due] for name, values in stacked.items()}, None)
        if len(due):
            self.chunk[due] = self.learner.choose(features)
            self.executed[due] = 0
        action = self.chunk.gather(1, self.executed.unsqueeze(1))[:, 0]
        self.executed += 1
        return action, None

    def _stack(self, past: Tensor | None, newest: Tensor, starts: Tensor) -> Tensor:
        """Adds the newest images to the earlier ones; N agents have images of C channels and S x S pixels.

        Args:
            past: Earlier images (N, frames, C, S, S), oldest first; None if there are none.
            newest: Newest images (N, C, S, S).
            starts: (N,) bool: True for agents at the start of an episode, whose newest image fills all frames.

        Returns:
            The newest images (N, frames, C, S, S), oldest first. If `past` is None, the newest image fills all frames.
        """
        repeated = newest.unsqueeze(1).repeat(1, self.learner.config.frames, 1, 1, 1)
        if past is None:
            return repeated
        shifted = torch.cat([past[:, 1:], newest.unsqueeze(1)], 1)
        return torch.where(starts.view(-1, 1, 1, 1, 1), repeated, shifted)
