"""Imitate: a small policy that learns its teacher's actions while it acts, so that it visits what a learner visits.

It acts at random, then as what it has learned so far, then as the teacher: the data of `online_distill`.
Source: Ross et al. 2011, algorithm 3.1 (DAgger), with the order of who acts fixed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from powerband.core.flat import FlatAdam
from powerband.core.noise import NoiseSource
from powerband.core.precision import Precision
from powerband.data.types import Tree
from powerband.nets.collective import STATE, state_of
from powerband.nets.mlp import MLP


@dataclass(frozen=True)
class ImitateConfig:
    lr: float = 2e-4
    """Adam learning rate of the temporary policy."""
    hidden: tuple[int, ...] = (300, 300)
    """Widths of its hidden layers."""
    teacher_from: int = 40_000
    """Environment steps, over all ranks, from which on the teacher acts; before, the temporary policy does."""
    steps_per_update: int = 8
    """Environment steps, over all ranks, of each of its updates; off_policy.update_interval is the experts' and
    students'."""


class Imitate:
    """Learner for the off-policy loop, whose replay is what this is about.

    Args:
        config: Rates and turns.
        teacher: Observations (N, 39) -> actions (N, 4) in [-1, 1]; asked again for every batch.
        device, precision, noise, average, world_size: As other learners.
    """

    def __init__(
        self,
        config: ImitateConfig,
        teacher: Callable[[Tensor], Tensor],
        device: torch.device | str,
        precision: Precision,
        noise: NoiseSource,
        average: Callable[[Tensor], object] | None = None,
        world_size: int = 1,
    ) -> None:
        self.config, self.teacher, self.precision, self.noise = config, teacher, precision, noise
        self.world_size = world_size
        self.actor = MLP(STATE, config.hidden, 4).to(device)
        self.adam = FlatAdam([self.actor], config.lr, precision=precision, average=average)
        self.acted = 0

    @torch.no_grad()
    def act(self, obs: Tree, carry: None, explore: bool) -> tuple[Tensor, dict[str, Tensor], None]:
        """Actions (N, 4): of the temporary policy with noise, and from `teacher_from` steps on of the teacher."""
        if not explore:
            return torch.tanh(self.actor(state_of(obs))), {}, None
        taught = self.acted >= self.config.teacher_from
        self.acted += len(obs) * self.world_size
        if taught:
            return self.teacher(obs), {}, None
        noise = 0.1 * self.noise("imitate/act", len(obs)).normal(4)
        return (torch.tanh(self.actor(state_of(obs))) + noise).clamp(-1, 1), {}, None

    def update(self, batch: dict[str, Tree]) -> dict[str, Tensor]:
        """One step towards the teacher's actions on the states of a batch."""
        target = self.teacher(batch["obs"])
        with self.precision.autocast():
            loss = (torch.tanh(self.actor(state_of(batch["obs"]))) - target).square().mean()
        return {"losses/imitate": loss.detach(), "losses/grad_norm": self.adam.step(loss)}

    def initial_carry(self, num_envs: int) -> None:
        return None

    def state_dict(self) -> dict:
        """Everything that training goes on from (live tensors, not copies)."""
        return {**{name: getattr(self, name).state_dict() for name in ("actor", "adam", "noise")}, "acted": self.acted}

    def load_state_dict(self, state: dict) -> None:
        """Restores `state_dict`, in place."""
        for name in ("actor", "adam", "noise"):
            getattr(self, name).load_state_dict(state[name])
        self.acted = int(state["acted"])
