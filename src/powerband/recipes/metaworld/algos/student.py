"""Student: SAC with a reward bonus for actions of the policy distilled from all experts; the bonus fades out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from powerband.algos.sac import SAC
from powerband.algos.settings import SACConfig
from powerband.core.rank_context import RankContext
from powerband.data.types import EnvSpec, Tree
from powerband.recipes.metaworld.nets.collective import CollectiveActorCritic, shared_state
from powerband.recipes.metaworld.settings import StudentConfig


def observed_keys(config: StudentConfig) -> tuple[str, ...]:
    """Returns the entries of an observation that a student needs: the code ``z`` only if there is a bonus."""
    return ("obs", "z") if config.bonus else ("obs",)


class StudentLearner:
    """SAC with a reward bonus for actions that are close to those of the collective policy.

    The collective policy is distilled from the experts of all tasks. Observations of N environments are {"obs": (N,
    39), "z": (N, Z)}. ``z``, with Z entries, is the code to which `TrajectoryEncoder` maps the last steps of the
    episode. The collective policy needs ``z``, which observations lack if there is no bonus; SAC sees ``obs`` alone.

    The value target is r + w b + gamma V(s') with the reward r, the weight w of the bonus, and the bonus
    b = prod_i exp(-(a_i - mu_i)^2 / (2 sigma_i^2)). mu and sigma are the mean and the standard deviation of the
    collective policy in the state of the action a; sigma is at least 1e-4.
    """

    def __init__(
        self,
        config: StudentConfig,
        collective: CollectiveActorCritic,
        spec: EnvSpec,
        settings: SACConfig,
        context: RankContext,
    ) -> None:
        """
        Args:
            config: Weight of the bonus over time.
            collective: The policy whose actions earn the bonus; it is not trained.
            spec: Observation and action spaces of the environments, whose observations have `observed_keys`.
            settings: Hyper-parameters of `SAC`.
            context: Device, precision, random numbers and gradient averaging of this rank.
        """
        self.schedule, self.collective = config, collective.requires_grad_(False)
        self.sac = SAC(replace(spec, obs=spec.obs["obs"]), settings, context)
        self.config, self.world_size = settings, context.world_size
        self.weight = torch.tensor(config.bonus, device=self.sac.centre.device)
        self.cycle = self.sac.cycle
        self.acted = 0

    @property
    def lr(self) -> float | Tensor:
        """Learning rate of SAC; settable for annealing."""
        return self.sac.lr

    @lr.setter
    def lr(self, lr: float) -> None:
        self.sac.lr = lr

    def act(self, obs: Tree, carry: Tensor | None, explore: bool) -> tuple[Tensor, dict[str, Tensor], None]:
        """Chooses actions with SAC; with `explore`, it also counts steps, which determine the weight of the bonus.

        Args:
            obs: Observations of N environments, as the class describes them.
            carry: Not used; the policy has no memory.
            explore: Sample actions; otherwise take the mean.

        Returns:
            Actions (N, 4), an empty dict (no data to store), and None (no memory).
        """
        if explore:
            self.acted += len(obs["obs"]) * self.world_size
            faded = (self.acted - self.schedule.hold_steps) / max(self.schedule.fade_steps, 1)
            self.weight.fill_(self.schedule.bonus * min(1.0, max(0.0, 1.0 - faded)))
        return self.sac.act(obs["obs"], carry, explore)

    def update(self, batch: dict[str, Tree]) -> dict[str, Tensor]:
        """Updates SAC with the bonus added to the reward.

        Args:
            batch: Batch of `SAC.update`, but with the observations that the class describes.

        Returns:
            Losses and statistics of `SAC.update`, and the mean and the weight of the bonus if there is one, by name:
            detached 0-d tensors.
        """
        obs = batch["obs"]
        plain = {**batch, "obs": obs["obs"], "next_obs": batch["next_obs"]["obs"]}
        if not self.schedule.bonus:
            return self.sac.update(plain)
        action = (batch["action"] - self.sac.centre) / self.sac.scale
        with torch.no_grad():
            mu, log_std = self.collective.policy(obs["z"], shared_state(obs["obs"]))
            bonus = imitation_bonus(action, mu, log_std)
        figures = {"losses/bonus": bonus.mean(), "losses/bonus_weight": self.weight.clone()}
        return self.sac.update({**plain, "reward": batch["reward"] + self.weight * bonus}) | figures

    def initial_carry(self, num_envs: int) -> None:
        """Returns None, because the policy has no memory."""
        return None

    def policy_state(self) -> dict[str, Tensor]:
        """Returns the tensors of the exported policy of SAC."""
        return self.sac.policy_state()

    def state_dict(self) -> dict[str, Any]:
        """Returns the training state for a checkpoint: live tensors and numbers, not copies."""
        return {"sac": self.sac.state_dict(), "acted": self.acted, "weight": self.weight}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores `state_dict` in place."""
        self.sac.load_state_dict(state["sac"])
        self.acted = int(state["acted"])
        self.weight.copy_(state["weight"])


def imitation_bonus(action: Tensor, mu: Tensor, log_std: Tensor) -> Tensor:
    """Computes prod_i exp(-(a_i - mu_i)^2 / (2 sigma_i^2)): how close actions a are to those of a Gaussian policy.

    Args:
        action: Actions (B, A): B batch rows, A entries of an action.
        mu, log_std: Mean and log standard deviation (B, A) of the policy.

    Returns:
        Bonus (B,) in [0, 1].
    """
    sigma = log_std.exp().clamp(min=1e-4)
    return (-0.5 * ((action - mu) / sigma).square().sum(-1)).exp()
