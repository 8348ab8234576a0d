"""Distillation: one network takes over the policies, then the values, of the experts of all tasks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from powerband.core.flat import FlatAdam
from powerband.core.noise import NoiseSource
from powerband.core.precision import Precision
from powerband.nets.collective import Collective


@dataclass(frozen=True)
class DistillConfig:
    actor_updates: int = 50_001
    """Updates of the policy."""
    critic_updates: int = 10_000
    """Updates of the values, after those of the policy."""
    lr: float = 2e-4
    """Adam learning rate."""
    hidden: tuple[int, ...] = (300, 300)
    """Widths of the hidden layers."""
    spread: float = 0.2
    """Weight of the deviations beside the means."""
    max_grad_norm: float = 0.0
    """Largest norm of the gradient; 0 does not clip."""


class Distill:
    """Learner of a `Collective`: `actor_updates` updates of its policy, then its critics'."""

    def __init__(
        self,
        config: DistillConfig,
        code: int,
        device: torch.device | str,
        precision: Precision,
        noise: NoiseSource,
        average: Callable[[Tensor], object] | None = None,
        world_size: int = 1,
    ) -> None:
        self.config, self.precision, self.noise = config, precision, noise
        self.net = Collective(code, config.hidden).to(device)
        shared = {"precision": precision, "average": average, "max_grad_norm": config.max_grad_norm or None}
        self.actor_adam = FlatAdam([self.net.actor], config.lr, **shared)
        self.critic_adam = FlatAdam([self.net.critic], config.lr, **shared)
        self.updates = 0

    def update(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """One step of the policy, or once its updates are done, of the critics.

        Args:
            batch: z (B, Z), state (B, 21), action, mu, log_std (B, A), reward, q_target, gamma (B,);
                q_target is nan where nobody knows it, gamma is the discount of the expert who said it.

        Returns:
            0-d figures, detached.
        """
        self.updates += 1
        if self.updates <= self.config.actor_updates:
            with self.precision.autocast():
                mu, log_std = self.net.policy(batch["z"], batch["state"])
                loss = policy_loss(mu, log_std, batch["mu"], batch["log_std"], self.config.spread)
            norm = self.actor_adam.step(loss)
            return {"losses/distill_actor": loss.detach(), "losses/actor_grad_norm": norm}
        with self.precision.autocast():
            q = self.net.value(batch["z"], batch["state"], batch["action"])
            target = batch["reward"] + batch["gamma"] * batch["q_target"]
            known = torch.isfinite(target)
            error = torch.where(known, (q - torch.where(known, target, 0.0)).square(), 0.0)
            loss = (error.sum(1) / known.sum().clamp(min=1)).sum()
        norm = self.critic_adam.step(loss)
        return {"losses/distill_critic": loss.detach(), "losses/critic_grad_norm": norm}

    def state_dict(self) -> dict:
        """Everything that training goes on from (live tensors, not copies)."""
        parts = ("net", "actor_adam", "critic_adam", "noise")
        return {**{name: getattr(self, name).state_dict() for name in parts}, "updates": self.updates}

    def load_state_dict(self, state: dict) -> None:
        """Restores `state_dict`, in place."""
        for name in ("net", "actor_adam", "critic_adam", "noise"):
            getattr(self, name).load_state_dict(state[name])
        self.updates = int(state["updates"])


def policy_loss(mu: Tensor, log_std: Tensor, to_mu: Tensor, to_log_std: Tensor, spread: float) -> Tensor:
    """mean[(mu - mu*)^2 + spread (ls - ls*)^2 2 / max(2, -ls*)]: deviations that are tiny anyway weigh less."""
    weight = 2.0 / (-to_log_std).clamp(min=2.0)
    return ((mu - to_mu).square() + spread * weight * (log_std - to_log_std).square()).mean()
