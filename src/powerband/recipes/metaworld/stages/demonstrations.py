"""Demonstrations: lets Meta-World's scripted policy act in a share of the training episodes of an expert."""

from __future__ import annotations

import torch
from torch import Tensor

from powerband.core.run.run import Run
from powerband.data.types import Step, Tree, VecEnv
from powerband.recipes.metaworld.config import Config
from powerband.recipes.metaworld.env.gymnasium_env import scripted_policy
from powerband.recipes.metaworld.env.tasks import OBS


class Demonstrations:
    """Replaces the actions of a share of the episodes by those of the scripted policy, with noise.

    The transitions enter the replay buffer like any other, so that an off-policy learner learns from both kinds. The
    share is constant, as in Ball et al. 2023 (arXiv 2302.02948), whose batches take half of their rows from prior data.
    With a handover, the learner takes over within the episode, as in Uchendu et al. 2023 (arXiv 2204.02372): it then
    acts in states that it does not reach alone. The metric ``charts/success_alone`` is the success rate of the training
    episodes in which the scripted policy did not act.

    Attributes:
        left: Number of steps (N,) int64 for which the scripted policy still acts in the present episode of the N
            environments of this rank.
        alone: Mask (N,) bool of the environments in whose present episode the scripted policy does not act.
    """

    def __init__(self, config: Config, run: Run, env: VecEnv) -> None:
        """
        Args:
            config: Names the tasks, the share of the episodes, the handover and the noise.
            run: The run, which provides random numbers, receives the metric and saves the state in its checkpoints.
            env: Environments of this rank.
        """
        self.share, self.spread, self.device = config.demo_share, config.demo_noise, run.device
        self.handover, self.horizon = config.demo_handover, config.horizon
        self.scripts = [scripted_policy(name) for name in config.simulated_tasks().task_of_each_env(env.num_envs)]
        self.noise, self.metrics = run.noise("demonstrations", env.num_envs), run.metrics
        self.left = self._draw()
        self.alone = self.left == 0
        run.register("demonstrations", self, redistribute=lambda states: None)  # other ranks start new episodes

    def _draw(self) -> Tensor:
        steps: Tensor | int = self.horizon
        demonstrated = self.noise.uniform(1).squeeze(1) < self.share
        if self.handover:
            steps = (self.noise.uniform(1).squeeze(1) * (self.handover + 1)).long()
        return torch.where(demonstrated, steps, 0)

    def replace(self, obs: Tree, action: Tensor) -> Tensor:
        """Returns the actions (N, 4) to take in N environments, given observations (N, 39 or more) and actions."""
        assert isinstance(obs, Tensor)
        acts = self.left > 0
        states, scripted = obs[:, :OBS].cpu().numpy(), action.cpu().clone()
        for row in acts.nonzero()[:, 0].tolist():
            scripted[row] = torch.from_numpy(self.scripts[row](states[row]))
        scripted = scripted.to(self.device) + self.spread * self.noise.normal(action.shape[1])
        return torch.where(acts.unsqueeze(1), scripted.clamp(-1.0, 1.0), action)

    def after_step(self, step: Step) -> None:
        """Counts the step, and draws who acts in the next episode of each environment whose episode has ended."""
        ended = step.ended
        complete = ended if step.lost is None else ended & ~step.lost
        self.metrics.add_masked("charts/success_alone", step.episode["success"], complete & self.alone)
        self.left = torch.where(ended, self._draw(), (self.left - 1).clamp_(min=0))
        self.alone = torch.where(ended, self.left == 0, self.alone)

    def state_dict(self) -> dict[str, Tensor]:
        """Returns the state for a checkpoint."""
        return {"left": self.left, "alone": self.alone}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restores `state_dict`."""
        self.left, self.alone = state["left"].to(self.device), state["alone"].to(self.device)
