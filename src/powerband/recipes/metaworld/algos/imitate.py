"""Imitation: a temporary policy acts and learns the teacher's actions in the states that it visits (DAgger).

The stage online_distill records these data: first actions are random, then the policy acts, then the teacher.

Source: Ross et al. 2011, algorithm 3.1 (DAgger), with a fixed order of the acting policies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from powerband.core.optim.flat_adam import FlatAdam
from powerband.core.optim.learning_rate import LearnerLr
from powerband.core.rank_context import RankContext
from powerband.core.schedule import UpdateCycle
from powerband.data.types import Tree
from powerband.nets.mlp import MLP
from powerband.recipes.metaworld.nets.collective import STATE_SIZE, shared_state
from powerband.recipes.metaworld.settings import ImitateConfig

EXPLORATION_NOISE = 0.1
"""Standard deviation of the noise on the actions of the temporary policy."""
MODULES = ("actor", "adam", "noise")


class ImitationLearner:
    """Trains a temporary policy to imitate a teacher in the states that the policy itself visits (DAgger).

    The stage online_distill keeps the visited transitions and discards the policy.
    """

    lr = LearnerLr("adam")

    def __init__(self, config: ImitateConfig, teacher: Callable[[Tensor], Tensor], context: RankContext) -> None:
        """
        Args:
            config: Learning rate, and when the teacher starts to act.
            teacher: Function from observations (N, 39) to actions (N, 4) in [-1, 1]; called for every batch.
            context: Device, precision, random numbers and gradient averaging of this rank.
        """
        self.config, self.teacher, self.precision, self.noise = config, teacher, context.precision, context.noise
        self.world_size = context.world_size
        self.actor = MLP(STATE_SIZE, config.hidden, 4).to(context.device)
        self.adam = FlatAdam([self.actor], config.lr, precision=context.precision, average=context.average)
        self.cycle = UpdateCycle(1)
        self.acted = 0

    @torch.no_grad()
    def act(self, obs: Tree, carry: Tensor | None, explore: bool) -> tuple[Tensor, dict[str, Tensor], None]:
        """Returns actions (N, 4) for N environments, an empty dict (no data to store), and None (no memory).

        Without `explore`, the temporary policy acts. With `explore`, noise is added to its actions, and the teacher
        acts after `teacher_start_step` environment steps. `carry` is not used.
        """
        if not explore:
            return torch.tanh(self.actor(shared_state(obs))), {}, None
        teacher_acts = self.acted >= self.config.teacher_start_step
        self.acted += len(obs) * self.world_size
        if teacher_acts:
            return self.teacher(obs), {}, None
        noise = EXPLORATION_NOISE * self.noise("imitate/act", len(obs)).normal(4)
        return (torch.tanh(self.actor(shared_state(obs))) + noise).clamp(-1, 1), {}, None

    def update(self, batch: dict[str, Tree]) -> dict[str, Tensor]:
        """Updates the temporary policy towards the teacher's actions.

        Args:
            batch: Batch of B transitions. Only ``batch["obs"]`` (B, 39) is used.

        Returns:
            Loss and gradient norm by name: detached 0-d tensors.
        """
        target = self.teacher(batch["obs"])
        with self.precision.autocast():
            loss = (torch.tanh(self.actor(shared_state(batch["obs"]))) - target).square().mean()
        return {"losses/imitate": loss.detach(), "losses/grad_norm": self.adam.step(loss)}

    def initial_carry(self, num_envs: int) -> None:
        """Returns None, because the policy has no memory."""
        return None

    def policy_state(self) -> dict[str, Tensor]:
        """Parameters of the temporary policy."""
        return self.actor.state_dict()

    def state_dict(self) -> dict[str, Any]:
        """Returns the training state for a checkpoint: live tensors and numbers, not copies."""
        return {**{name: getattr(self, name).state_dict() for name in MODULES}, "acted": self.acted}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores `state_dict` in place."""
        for name in MODULES:
            getattr(self, name).load_state_dict(state[name])
        self.acted = int(state["acted"])
