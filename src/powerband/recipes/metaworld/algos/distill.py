"""Distillation: one network learns the policies, then the values, of the experts of all tasks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from powerband.core.optim.compile import compile_if
from powerband.core.optim.flat_adam import FlatAdam
from powerband.core.rank_context import RankContext
from powerband.recipes.metaworld.nets.collective import CollectiveActorCritic
from powerband.recipes.metaworld.settings import DistillConfig

MODULES = ("net", "actor_adam", "critic_adam", "noise")


class DistillationLearner:
    """Distils the teachers of all tasks into a `CollectiveActorCritic`, from transitions that the teachers labelled.

    The first ``config.actor_updates`` updates train the policy, later updates the critics.
    """

    def __init__(self, config: DistillConfig, code: int, context: RankContext) -> None:
        """
        Args:
            config: Hyper-parameters.
            code: Number of entries of the code z, the encoding of a trajectory.
            context: Device, precision, random numbers and gradient averaging of this rank.
        """
        self.config, self.precision, self.noise = config, context.precision, context.noise
        self.net = CollectiveActorCritic(code, config.hidden).to(context.device)
        shared: dict[str, Any] = {
            "precision": context.precision,
            "average": context.average,
            "max_grad_norm": config.max_grad_norm or None,
        }
        self.actor_adam = FlatAdam([self.net.actor], config.lr, **shared)
        self.critic_adam = FlatAdam([self.net.critic], config.lr, **shared)
        self._policy_loss_fn = compile_if(self._policy_loss, config.compile)
        self._value_loss_fn = compile_if(self._value_loss, config.compile)
        self.updates = 0

    def update(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Updates the policy, or the critics once the updates of the policy are complete.

        Args:
            batch: B transitions: codes ``z`` (B, Z entries), ``state`` (B, 21), ``action`` (B, 4), ``reward`` (B,), and
                labels of the teacher, an expert or a scripted policy. ``mu`` and ``log_std`` (B, 4) are the mean and
                the log standard deviation of its policy. ``q_target`` (B,) is its value at the next state, nan for a
                scripted policy, and ``gamma`` (B,) the discount of this value.

        Returns:
            Loss and gradient norm by name: detached 0-d tensors.
        """
        self.updates += 1
        if self.updates <= self.config.actor_updates:
            with self.precision.autocast():
                loss = self._policy_loss_fn(batch)
            norm = self.actor_adam.step(loss)
            return {"losses/distill_actor": loss.detach(), "losses/actor_grad_norm": norm}
        with self.precision.autocast():
            loss = self._value_loss_fn(batch)
        norm = self.critic_adam.step(loss)
        return {"losses/distill_critic": loss.detach(), "losses/critic_grad_norm": norm}

    def _policy_loss(self, batch: dict[str, Tensor]) -> Tensor:
        """Returns the 0-d loss of the policy on the batch of `update`."""
        mu, log_std = self.net.policy(batch["z"], batch["state"])
        return policy_loss(mu, log_std, batch["mu"], batch["log_std"], self.config.log_std_coef)

    def _value_loss(self, batch: dict[str, Tensor]) -> Tensor:
        """Returns the 0-d loss of the critics on the batch of `update`, over the rows with a known target."""
        q = self.net.value(batch["z"], batch["state"], batch["action"])
        target = batch["reward"] + batch["gamma"] * batch["q_target"]
        known = torch.isfinite(target)
        error = torch.where(known, (q - torch.where(known, target, 0.0)).square(), 0.0)
        return (error.sum(1) / known.sum().clamp(min=1)).sum()

    def state_dict(self) -> dict[str, Any]:
        """Returns the training state for a checkpoint: live tensors and numbers, not copies."""
        return {**{name: getattr(self, name).state_dict() for name in MODULES}, "updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores `state_dict` in place."""
        for name in MODULES:
            getattr(self, name).load_state_dict(state[name])
        self.updates = int(state["updates"])


def policy_loss(mu: Tensor, log_std: Tensor, target_mu: Tensor, target_log_std: Tensor, log_std_coef: float) -> Tensor:
    """Computes the loss of distillation: the error of the network's mean and log standard deviation.

    It is mean[(mu - mu*)^2 + log_std_coef w (log_std - log_std*)^2], in which * marks the teacher. The factor
    w = 2 / max(2, -log_std*) reduces the weight of very small standard deviations.

    Args:
        mu, log_std: Mean and log standard deviation of the network's policy, (B batch rows, A entries of an action).
        target_mu, target_log_std: Mean and log standard deviation of the teacher's policy, (B, A).
        log_std_coef: Weight of the error of log_std.

    Returns:
        0-d loss.
    """
    weight = 2.0 / (-target_log_std).clamp(min=2.0)
    return ((mu - target_mu).square() + log_std_coef * weight * (log_std - target_log_std).square()).mean()
