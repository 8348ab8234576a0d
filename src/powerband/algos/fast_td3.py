"""FastTD3: TD3 with distributional critics, large batches and few updates, for many environments.

The critics learn the distribution of the return as probabilities of fixed values (atoms). Observations and rewards are
divided by running statistics, so that one range of values suits most tasks. Each environment explores with noise of its
own scale. The replay buffer and the environments hold actions in the environment's units; the networks use [-1, 1].

Sources: Seo et al. 2025, "FastTD3: Simple, Fast, and Capable Reinforcement Learning for Humanoid Control"; Bellemare,
Dabney and Munos 2017, "A Distributional Perspective on Reinforcement Learning", algorithm 1.
Suffixes: B rows, E critics, Z atoms.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from powerband.algos.actions import action_scale
from powerband.algos.replay_learner import ReplayLearner
from powerband.algos.settings import FastTD3Config
from powerband.core.optim.compile import compile_if
from powerband.core.optim.flat_adam import FlatAdam, FlatTarget
from powerband.core.optim.learning_rate import LearnerLr
from powerband.core.rank_context import RankContext
from powerband.core.schedule import UpdateCycle
from powerband.data.n_step import bootstrap_discount
from powerband.data.types import EnvSpec, Tree
from powerband.nets.mlp import MLP, TwinMLP
from powerband.nets.observations.encoders import ObsEncoder
from powerband.nets.observations.features import features, num_features
from powerband.nets.observations.normalise import RunningNorm

GOLDEN_RATIO = 0.6180339887498949
"""Successive multiples of it, without their integer parts, spread evenly over 0..1."""


class FastTD3(ReplayLearner):
    """FastTD3 learner for continuous actions within finite bounds, for one agent.

    An encoder learns from the loss of the critics alone; the actor reads its features without a gradient.

    Shapes: N environments, B rows of a batch, D entries of an action, F features of an observation, Z atoms (the fixed
    values of the return to which critics assign probabilities).
    """

    PARTS = (
        "actor", "critic", "target_actor", "target_critic", "actor_adam", "critic_adam", "reward_norm", "noise",
        "encoder", "target_encoder", "obs_norm",
    )  # fmt: skip
    lr = LearnerLr("actor_adam", "critic_adam")

    def __init__(
        self, spec: EnvSpec, config: FastTD3Config, context: RankContext, encoder: ObsEncoder | None = None
    ) -> None:
        """
        Args:
            spec: Spaces of the environments.
            config: Hyper-parameters.
            context: Device, precision, random numbers and gradient averaging of this rank.
            encoder: Encoder of observations with images or categories, whose features are not normalised; None joins
                all entries.

        Raises:
            ConfigError: The actions are discrete or unbounded, or are not one vector per environment.
        """
        self.config, self.precision, self.noise, self.ranks = config, context.precision, context.noise, context.ranks
        device, self.average = context.device, context.average
        self.centre, self.scale = action_scale("fast_td3", spec, device)
        self.dim = spec.action.shape[0]
        self.encoder = None if encoder is None else encoder.to(device)
        inputs = num_features(spec.obs, None) if encoder is None else encoder.width
        self.obs_norm = RunningNorm(inputs).to(device) if config.normalize_obs and encoder is None else None
        self.reward_norm = RunningNorm(1).to(device)
        limit = config.value_limit or 2 / (1 - config.gamma)
        self.atoms_Z = torch.linspace(-limit, limit, config.atoms, device=device)
        self.actor = MLP(inputs, config.hidden, self.dim, exact_inputs=True, output_gain=0.01).to(device)
        self.critic = TwinMLP(inputs + self.dim, config.critic_hidden, config.atoms, exact_inputs=True).to(device)
        self.target_actor, self.target_critic = copy.deepcopy(self.actor), copy.deepcopy(self.critic)
        self.target_encoder = copy.deepcopy(self.encoder)
        shared: dict[str, Any] = {"precision": context.precision, "average": context.average}
        shared["weight_decay"] = config.weight_decay
        self.actor_adam = FlatAdam([self.actor], config.actor_lr, **shared)
        critics = [net for net in (self.critic, self.encoder) if net is not None]
        targets = [net for net in (self.target_critic, self.target_encoder) if net is not None]
        self.critic_adam = FlatAdam(critics, config.critic_lr, **shared)
        self.follow_actor = FlatTarget(self.actor_adam, [self.target_actor], config.tau)
        self.follow_critic = FlatTarget(self.critic_adam, targets, config.tau)
        self.updates = torch.zeros((), dtype=torch.int64, device=device)
        self.cycle = UpdateCycle(config.policy_interval)
        self._critic_loss_fn = compile_if(self._critic_loss, config.compile)
        self._actor_loss_fn = compile_if(self._actor_loss, config.compile)

    @torch.no_grad()
    def act(self, obs: Tree, carry: Tensor | None, explore: bool) -> tuple[Tensor, dict[str, Tensor], None]:
        """Computes actions, with Gaussian noise if `explore`.

        Args:
            obs: Tensor or nested dict of tensors (N, ...): observations of N environments.
            carry: Not used; the policy has no recurrent state.
            explore: Adds noise if true, with a scale that each environment keeps for the whole training.

        Returns:
            Actions (N, D) float32 of D entries in the environment's units; an empty dict; None, because the policy has
            no recurrent state.
        """
        rows = self._features(obs, self.encoder)
        with self.precision.autocast(rows.shape[0]):
            action = torch.tanh(self.actor(rows)).float()
        if explore:
            noise = self.noise("fast_td3/act", rows.shape[0]).normal(self.dim)
            action = (action + self._noise_scales(rows.shape[0]) * noise).clamp(-1, 1)
        return torch.addcmul(self.centre, self.scale, action), {}, None

    def _noise_scales(self, rows: int) -> Tensor:
        """Returns the exploration noise (N, 1) of `rows` environments, which depends on their global ids only."""
        low, high = self.config.min_noise, self.config.max_noise
        return low + (high - low) * ((self.ranks.ids(rows) + 1) * GOLDEN_RATIO).frac().float().unsqueeze(1)

    def update(self, batch: dict[str, Tree]) -> dict[str, Tensor]:
        """Takes one step of the critics and, at every `policy_interval`-th update, of the actor.

        Args:
            batch: B transitions: ``obs`` and ``next_obs`` (B, ...), ``action`` (B, D) of D entries in the environment's
                units, ``reward`` (B,) and ``terminated`` (B,) bool.

        Returns:
            Losses and statistics of the update by name, detached 0-d tensors.
        """
        self._update_statistics(batch)
        obs = self._features(batch["obs"], self.encoder)
        with torch.no_grad():
            next_obs = self._features(batch["next_obs"], self.target_encoder)
        action = (batch["action"] - self.centre) / self.scale
        reward = batch["reward"] * self._reward_factor()
        discount = bootstrap_discount(batch, self.config.gamma)
        normal = self.noise("fast_td3/update", obs.shape[0]).normal(self.dim)
        with self.precision.autocast():
            critic_loss, q_mean = self._critic_loss_fn(obs, action, reward, next_obs, discount, normal)
        figures = {
            "losses/critic": critic_loss.detach(),
            "losses/q": q_mean,
            "losses/critic_grad_norm": self.critic_adam.step(critic_loss),
        }
        obs = obs.detach()
        self.updates += 1
        if self.cycle.advance() == self.cycle.period:
            with self.critic_adam.frozen():
                with self.precision.autocast():
                    loss = self._actor_loss_fn(obs)
                figures["losses/actor_grad_norm"] = self.actor_adam.step(loss)
            figures["losses/actor"] = loss.detach()
            self.follow_actor.update()
        self.follow_critic.update()
        return figures

    def _update_statistics(self, batch: dict[str, Tree]) -> None:
        """Adds the observations and rewards of a batch to the running statistics, over all ranks."""
        if self.obs_norm is not None:
            self.obs_norm.update_statistics(features(batch["obs"], 1), self.average, self.ranks.world_size)
        if self.config.normalize_reward:
            self.reward_norm.update_statistics(batch["reward"].unsqueeze(1), self.average, self.ranks.world_size)

    def _reward_factor(self) -> Tensor:
        """Returns 1 / the root mean square of the rewards, 0-d; 1 without ``normalize_reward``."""
        norm = self.reward_norm
        square = (norm.var + norm.mean.square()).squeeze(0)
        used = (norm.count > 0) & self.config.normalize_reward  # a resumed run may have used statistics before
        return torch.where(used, torch.rsqrt(square + 1e-8), 1.0)

    def _critic_loss(
        self, obs: Tensor, action: Tensor, reward: Tensor, next_obs: Tensor, discount: Tensor, normal: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Returns (loss, mean Q). The loss is the sum over critics of the mean cross-entropy with the target.

        The target is the distribution of r + discount Z'(s', clip(mu'(s') + noise)), where Z' is that of the two target
        critics with the lower mean. `discount` is gamma (1 - terminated), see `bootstrap_discount`. `normal` contains
        standard normal numbers (B, D) for the noise.
        """
        config = self.config
        with torch.no_grad():
            noise = (config.target_noise * normal).clamp(-config.target_noise_clip, config.target_noise_clip)
            next_action = (torch.tanh(self.target_actor(next_obs)) + noise).clamp(-1, 1)
            probs_EBZ = self.target_critic(torch.cat([next_obs, next_action], -1)).softmax(-1)
            first_B, second_B = self._mean(probs_EBZ).unbind()
            probs_BZ = torch.where((first_B < second_B).unsqueeze(1), probs_EBZ[0], probs_EBZ[1])
            target_BZ = project(probs_BZ, reward, discount, self.atoms_Z)
        log_probs_EBZ = self.critic(torch.cat([obs, action], -1)).log_softmax(-1)
        loss = -(target_BZ * log_probs_EBZ).sum(-1).mean(1).sum()
        return loss, self._mean(log_probs_EBZ.detach().exp()).mean()

    def _actor_loss(self, obs: Tensor) -> Tensor:
        """Computes -mean min Q(s, mu(s)) over the two critics, which get no gradient; Q is the mean of the atoms."""
        action = torch.tanh(self.actor(obs))
        return -self._mean(self.critic(torch.cat([obs, action], -1)).softmax(-1)).amin(0).mean()

    def _mean(self, probs: Tensor) -> Tensor:
        """Computes the means (...) of distributions (..., Z)."""
        return (probs * self.atoms_Z).sum(-1)  # a matrix product would be bfloat16 under autocast


def project(probs_BZ: Tensor, reward_B: Tensor, discount_B: Tensor, atoms_Z: Tensor) -> Tensor:
    """Projects the distribution of reward + discount * value onto evenly spaced atoms (fixed values of the return).

    A result between two atoms is split between them in proportion to its nearness. One beyond the first or last atom is
    moved to this atom. Source: Bellemare, Dabney and Munos 2017, algorithm 1.

    Args:
        probs_BZ: Probabilities (B, Z) with which the value equals each of the Z atoms, for B rows.
        reward_B: Rewards (B,).
        discount_B: Discounts (B,), 0 after a terminal state.
        atoms_Z: Atoms (Z,) in ascending order.

    Returns:
        Probabilities (B, Z) of the atoms.
    """
    last = len(atoms_Z) - 1
    values_BZ = reward_B.unsqueeze(1) + discount_B.unsqueeze(1) * atoms_Z
    position_BZ = ((values_BZ - atoms_Z[0]) * (last / (atoms_Z[-1] - atoms_Z[0]))).clamp(0, last)
    lower_BZ = position_BZ.floor().clamp(max=last - 1)
    upper_share_BZ = position_BZ - lower_BZ
    index_BZ = lower_BZ.long()
    projected_BZ = torch.zeros_like(probs_BZ).scatter_add_(1, index_BZ, probs_BZ * (1 - upper_share_BZ))
    return projected_BZ.scatter_add_(1, index_BZ + 1, probs_BZ * upper_share_BZ)
