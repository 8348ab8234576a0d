"""Student: SAC whose reward has a bonus for acting as the collective policy would, fading out as it learns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from powerband.algos.sac import SAC
from powerband.data.types import Tree
from powerband.nets.collective import Collective, state_of


@dataclass(frozen=True)
class StudentConfig:
    bonus: float = 1.0
    """Weight of the collective policy's bonus at the start; 0 is SAC from scratch."""
    hold_steps: int = 4_000
    """Environment steps, over all ranks, through which the weight stays."""
    fade_steps: int = 20_000
    """Environment steps after these in which it falls to 0."""


class Student:
    """A learner around `SAC`: observations are {"obs": (N, 39), "z": (N, Z)}, and SAC sees the first alone.

    The target is r + w b + gamma V(s') with b = prod_i exp(-(a_i - mu_i)^2 / (2 sigma_i^2)), mu and sigma of the
    collective policy in the state that the action was taken in, sigma at least 1e-4.
    """

    def __init__(self, config: StudentConfig, collective: Collective, spec: Any, *parts: Any) -> None:
        """
        Args:
            config: Weight of the bonus over time.
            collective: The policy whose actions earn the bonus; it is not trained.
            spec: Of the encoded environments.
            parts: Further arguments of `SAC`; the last is world_size.
        """
        self.schedule, self.collective = config, collective.requires_grad_(False)
        self.sac = SAC(replace(spec, obs=spec.obs["obs"]), *parts)
        self.config, self.world_size = self.sac.config, parts[-1]
        self.weight = torch.tensor(config.bonus, device=self.sac.centre.device)
        self.acted = 0

    @property
    def lr(self) -> float | Tensor:
        """As `SAC.lr`."""
        return self.sac.lr

    @lr.setter
    def lr(self, lr: float) -> None:
        self.sac.lr = lr

    def act(self, obs: Tree, carry: None, explore: bool) -> tuple[Tensor, dict[str, Tensor], None]:
        """As `SAC.act`; exploring counts steps and lets the bonus fade."""
        if explore:
            self.acted += len(obs["obs"]) * self.world_size
            faded = (self.acted - self.schedule.hold_steps) / max(self.schedule.fade_steps, 1)
            self.weight.fill_(self.schedule.bonus * min(1.0, max(0.0, 1.0 - faded)))
        return self.sac.act(obs["obs"], carry, explore)

    def update(self, batch: dict[str, Tree]) -> dict[str, Tensor]:
        """As `SAC.update`, with the bonus in the reward."""
        obs, action = batch["obs"], (batch["action"] - self.sac.centre) / self.sac.scale
        with torch.no_grad():
            mu, log_std = self.collective.policy(obs["z"], state_of(obs["obs"]))
            bonus = agreement(action, mu, log_std)
        plain = {
            **batch,
            "obs": obs["obs"],
            "next_obs": batch["next_obs"]["obs"],
            "reward": batch["reward"] + self.weight * bonus,
        }
        figures = {"losses/bonus": bonus.mean(), "losses/bonus_weight": self.weight.clone()}
        return self.sac.update(plain) | figures

    def initial_carry(self, num_envs: int) -> None:
        return None

    def policy_state(self) -> dict[str, Tensor]:
        """As `SAC.policy_state`."""
        return self.sac.policy_state()

    def state_dict(self) -> dict:
        """Everything that training goes on from (live tensors, not copies)."""
        return {"sac": self.sac.state_dict(), "acted": self.acted, "weight": self.weight}

    def load_state_dict(self, state: dict) -> None:
        """Restores `state_dict`, in place."""
        self.sac.load_state_dict(state["sac"])
        self.acted = int(state["acted"])
        self.weight.copy_(state["weight"])


def agreement(action: Tensor, mu: Tensor, log_std: Tensor) -> Tensor:
    """(B,) in [0, 1]: prod_i exp(-(a_i - mu_i)^2 / (2 sigma_i^2)) of actions (B, A)."""
    sigma = log_std.exp().clamp(min=1e-4)
    return (-0.5 * ((action - mu) / sigma).square().sum(-1)).exp()
