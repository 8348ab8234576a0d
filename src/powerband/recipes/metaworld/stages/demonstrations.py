"""Demonstrations: lets another policy act in a share of the training episodes of an expert or a student."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from powerband.core.run.run import Run
from powerband.data.types import Step, Tree, VecEnv
from powerband.recipes.metaworld.config import Config
from powerband.recipes.metaworld.env.encoded import EncodedVecEnv
from powerband.recipes.metaworld.env.gymnasium_env import scripted_policy
from powerband.recipes.metaworld.env.tasks import ACTION, OBS
from powerband.recipes.metaworld.nets.collective import CollectiveActorCritic, shared_state

Demonstrator = Callable[[Tree, Tensor], Tensor]
"""(observations of N environments, mask (N,) bool of those whose actions are used) -> actions (N, 4) on the device of
the observations; actions of the other environments may have any value."""


def scripted_demonstrator(config: Config, num_envs: int) -> Demonstrator:
    """Returns Meta-World's scripted policies of the tasks of `num_envs` environments."""
    scripts = [scripted_policy(name) for name in config.simulated_tasks().task_of_each_env(num_envs)]

    def act(obs: Tree, acts: Tensor) -> Tensor:
        assert isinstance(obs, Tensor)
        states, action = obs[:, :OBS].cpu().numpy(), torch.zeros(len(scripts), ACTION)
        for row in acts.nonzero()[:, 0].tolist():
            action[row] = torch.from_numpy(scripts[row](states[row]))
        return action.to(obs.device)

    return act


def collective_demonstrator(collective: CollectiveActorCritic, env: EncodedVecEnv) -> Demonstrator:
    """Returns the mean actions of the collective policy in `env`, whose observations contain ``obs`` or ``s``."""

    @torch.no_grad()
    def act(obs: Tree, acts: Tensor) -> Tensor:
        assert isinstance(obs, dict)
        state = obs["s"] if "s" in obs else shared_state(obs["obs"])
        action = torch.zeros(len(state), ACTION, device=state.device)
        if acts.any():  # a code is expensive compared with a step of the simulator
            z = obs["z"][acts] if "z" in obs else env.codes(acts)
            action[acts] = collective.policy(z, state[acts])[0]
        return action

    return act


class Demonstrations:
    """Replaces the actions of a share of the episodes by those of a demonstrator, with noise.

    The transitions enter the replay buffer like any other, so that an off-policy learner learns from both kinds. The
    share is constant, as in Ball et al. 2023 (arXiv 2302.02948), whose batches take half of their rows from prior data.
    With a handover, the learner takes over within the episode, as in Uchendu et al. 2023 (arXiv 2204.02372): it then
    acts in states that it does not reach alone. The metric ``charts/success_alone`` is the success rate of the training
    episodes in which the demonstrator did not act.

    Attributes:
        left: Number of steps (N,) int64 for which the demonstrator still acts in the present episode of the N
            environments of this rank.
        alone: Mask (N,) bool of the environments in whose present episode the demonstrator does not act.
    """

    def __init__(
        self, run: Run, env: VecEnv, demonstrator: Demonstrator, share: float, noise: float, handover: int, horizon: int
    ) -> None:
        """
        Args:
            run: The run, which provides random numbers, receives the metric and saves the state in its checkpoints.
            env: Environments of this rank.
            demonstrator: Chooses the actions of the demonstrated episodes.
            share: Share of the episodes in which the demonstrator acts.
            noise: Standard deviation of the noise on its actions, which are in [-1, 1].
            handover: Last step at which the learner takes over; 0 is never.
            horizon: Steps of an episode.
        """
        self.share, self.spread, self.device = share, noise, run.device
        self.handover, self.horizon = handover, horizon
        self.demonstrator = demonstrator
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
        """Returns the actions (N, 4) to take in N environments, given observations and the learner's actions (N, 4)."""
        acts = self.left > 0
        demonstrated = self.demonstrator(obs, acts) + self.spread * self.noise.normal(action.shape[1])
        return torch.where(acts.unsqueeze(1), demonstrated.clamp(-1.0, 1.0), action)

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
