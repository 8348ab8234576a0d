"""Soft actor-critic with twin critics and an automatic temperature, for continuous actions within bounds.

The replay and the environments hold actions in the environment's units. The networks, the log-probabilities and the
target entropy refer to actions in [-1, 1].

Source: Haarnoja et al. 2018, "Soft Actor-Critic Algorithms and Applications", algorithm 1.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from powerband.algos.actions import action_scale
from powerband.algos.fused.choice import is_fusible
from powerband.algos.replay_learner import ReplayLearner
from powerband.algos.settings import SACConfig
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
from powerband.nets.observations.normalise import vector_norm

LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0
LOG_2 = math.log(2.0)
LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)


class Temperature(nn.Module):
    """Module whose only parameter is log_alpha; the weight of the entropy is alpha = exp(log_alpha).

    Args:
        initial: Initial alpha, greater than 0.
    """

    def __init__(self, initial: float):
        super().__init__()
        self.log_alpha = nn.Parameter(torch.tensor(math.log(initial)))


class SAC(ReplayLearner):
    """Soft actor-critic learner for continuous actions within finite bounds, for one agent.

    An encoder learns from the loss of the critics alone. The actor reads its features without a gradient, and a copy
    that follows it encodes next observations. Source: Yarats et al. 2021, "Improving Sample Efficiency in Model-Free
    Reinforcement Learning from Images".

    Shapes: N environments, B rows of a batch, D entries of an action, F features of an observation.
    """

    PARTS = (
        "actor", "critic", "target_critic", "temperature", "actor_adam", "critic_adam", "noise", "encoder",
        "target_encoder", "obs_norm",
    )  # fmt: skip
    lr = LearnerLr("actor_adam", "critic_adam")

    def __init__(self, spec: EnvSpec, config: SACConfig, context: RankContext, encoder: ObsEncoder | None = None):
        """
        Args:
            spec: Spaces of the environments.
            config: Hyper-parameters.
            context: Device, precision, random numbers and gradient averaging of this rank.
            encoder: Encoder of observations with images or categories; None joins all entries.

        Raises:
            ConfigError: The actions are discrete or unbounded, or are not one vector per environment.
        """
        self.config, self.precision, self.noise = config, context.precision, context.noise
        self.average, self.world_size = context.average, context.world_size
        if config.compile and context.device.type == "cuda":
            context.noise.compile()
        self.centre, self.scale = action_scale("sac", spec, context.device)
        self.dim = spec.action.shape[0]
        self.target_entropy = -float(self.dim) if config.target_entropy is None else config.target_entropy
        self.encoder = None if encoder is None else encoder.to(context.device)
        inputs = num_features(spec.obs, None) if encoder is None else encoder.width
        self.obs_norm = vector_norm("sac", inputs, encoder).to(context.device) if config.normalize_obs else None
        self.actor = MLP(inputs, config.hidden, 2 * self.dim, exact_inputs=True).to(context.device)
        self.critic = TwinMLP(inputs + self.dim, config.hidden, 1, exact_inputs=True, layer_norm=config.layer_norm).to(
            context.device
        )
        self.temperature = Temperature(config.initial_alpha).to(context.device)
        self.target_critic, self.target_encoder = copy.deepcopy(self.critic), copy.deepcopy(self.encoder)
        shared: dict[str, Any] = {
            "precision": context.precision,
            "average": context.average,
            "max_grad_norm": config.max_grad_norm,
            "compiled": config.compile,
        }
        self.actor_adam = FlatAdam([self.actor, self.temperature], config.actor_lr, **shared)
        critics = [net for net in (self.critic, self.encoder) if net is not None]
        targets = [net for net in (self.target_critic, self.target_encoder) if net is not None]
        self.critic_adam = FlatAdam(critics, config.critic_lr, **shared)
        self.target = FlatTarget(self.critic_adam, targets, config.tau)
        self.updates = torch.zeros((), dtype=torch.int64, device=context.device)
        self._error_EB = torch.zeros(1, 0, device=context.device)
        self.cycle = UpdateCycle(config.policy_interval, config.target_interval)
        self._policy_fn = compile_if(self._policy, config.compile)
        self._inputs_fn = compile_if(self._inputs, config.compile)
        self._critic_loss_fn = compile_if(self._critic_loss, config.compile)
        self._actor_loss_fn = compile_if(self._actor_loss, config.compile)
        self.fused = None
        if config.can_be_fused and is_fusible(context, config.hidden, encoder):
            from powerband.algos.fused.sac import FusedSAC  # imports numba, which takes half a second

            self.fused = FusedSAC(
                self.actor, self.critic, self.actor_adam, self.critic_adam, self.target, self.temperature.log_alpha,
                (self.centre, self.scale),
            )  # fmt: skip
            context.noise.compile()

    @torch.no_grad()
    def act(self, obs: Tree, carry: Tensor | None, explore: bool) -> tuple[Tensor, dict[str, Tensor], None]:
        """Samples actions; explore=False takes the mean.

        Args:
            obs: Tensor or nested dict of tensors (N, ...): observations of N environments.
            carry: Not used; the policy has no recurrent state.
            explore: Samples if true.

        Returns:
            Actions (N, D) float32 of D entries in the environment's units; an empty dict; None, because the policy has
            no recurrent state.
        """
        obs = self._features(obs, self.encoder)
        noise = self.noise("sac/act", obs.shape[0]) if explore else None
        pink = explore and self.config.action_noise == "pink"
        if self.fused is not None:
            return self.fused.act(obs, noise, pink), {}, None
        with self.precision.autocast(obs.shape[0]):
            if noise is not None:
                action, _ = self._policy_fn(obs, noise.pink(self.dim) if pink else noise.normal(self.dim))
            else:
                action = torch.tanh(self.actor(obs)[:, : self.dim])
        return torch.addcmul(self.centre, self.scale, action), {}, None

    def update(self, batch: dict[str, Tree]) -> dict[str, Tensor]:
        """Takes one step of the critics, and steps of the actor, the temperature and the target critics if due.

        The actor and the temperature are due at every `policy_interval`-th update, the target critics at every
        `target_interval`-th.

        Args:
            batch: B transitions: ``obs`` and ``next_obs`` (B, ...), ``action`` (B, D) of D entries in the environment's
                units, ``reward`` (B,) and ``terminated`` (B,) bool; optionally ``weight`` (B,) of the critics' loss,
                whose gradient PyTorch computes even if the compiled functions compute the others.

        Returns:
            Losses and statistics of the update by name, detached 0-d tensors.
        """
        obs = self._features(batch["obs"], self.encoder)
        with torch.no_grad():
            next_obs = self._features(batch["next_obs"], self.target_encoder)
        action, discount, alpha = self._inputs_fn(batch)
        noise = self.noise("sac/update", obs.shape[0])
        weight = batch.get("weight")
        if self.fused is not None and weight is None:
            rows = obs, action, batch["reward"], next_obs, discount
            critic_loss, q_mean, numbers = self.fused.critic_gradient(rows, noise, float(alpha))
            normal = numbers.view(-1, 2, self.dim)
            grad_norm = self.critic_adam.apply()
        else:
            normal = noise.normal(2, self.dim)
            with self.precision.autocast():
                critic_loss, q_mean, self._error_EB = self._critic_loss_fn(
                    obs, action, batch["reward"], next_obs, discount, normal[:, 0], alpha, weight
                )
            grad_norm = self.critic_adam.step(critic_loss)
        figures = {"losses/critic": critic_loss.detach(), "losses/q": q_mean, "losses/critic_grad_norm": grad_norm}
        obs = obs.detach()
        self.updates += 1
        number = self.cycle.advance()
        if number % self.config.policy_interval == 0:
            if self.fused is not None:
                loss, log_prob = self.fused.actor_gradient(obs, normal[:, 1], float(alpha), self.target_entropy)
                figures["losses/actor_grad_norm"] = self.actor_adam.apply()
            else:
                with self.critic_adam.frozen():
                    with self.precision.autocast():
                        loss, log_prob = self._actor_loss_fn(obs, normal[:, 1], alpha)
                    figures["losses/actor_grad_norm"] = self.actor_adam.step(loss)
            figures |= {"losses/actor": loss.detach(), "losses/entropy": -log_prob, "losses/alpha": alpha}
        if number % self.config.target_interval == 0:
            self.target.update()
        return figures

    @property
    def errors(self) -> Tensor:
        """Absolute errors (B,) of the newest update, means over the critics; not those of the compiled functions."""
        return self._error_EB.abs().mean(0)

    def update_statistics(self, obs: Tree) -> None:
        """Adds collected observations (N, ...) to the statistics over all ranks, if observations are normalised."""
        if self.obs_norm is not None:
            self.obs_norm.update_statistics(features(obs, 1), self.average, self.world_size)

    def _features(self, obs: Tree, encoder: ObsEncoder | None) -> Tensor:
        """Computes the inputs (B, F) of the networks; without `encoder` all entries of `obs` are joined."""
        rows = super()._features(obs, encoder)
        return rows if self.config.obs_scale == 1.0 else rows * self.config.obs_scale

    def _inputs(self, batch: dict[str, Tree]) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the actions (B, D) of a batch in [-1, 1], the discount factors (B,) of next values, and alpha."""
        action = (batch["action"] - self.centre) / self.scale
        return action, bootstrap_discount(batch, self.config.gamma), self.temperature.log_alpha.detach().exp()

    def _policy(self, obs: Tensor, normal: Tensor) -> tuple[Tensor, Tensor]:
        """Computes actions (B, D) in (-1, 1) and log-probabilities (B,) from features (B, F) and noise (B, D).

        `normal` is the noise, standard normal numbers.

        log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2 u)) keeps its digits when tanh saturates.
        """
        mean, log_std = self.actor(obs).chunk(2, -1)
        log_std = log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)
        u = torch.addcmul(mean, log_std.exp(), normal)
        terms = -0.5 * normal.square() - log_std - 2 * (LOG_2 - u - F.softplus(-2 * u))
        return torch.tanh(u), terms.sum(-1) - LOG_SQRT_2PI * self.dim

    def _critic_loss(
        self,
        obs: Tensor,
        action: Tensor,
        reward: Tensor,
        next_obs: Tensor,
        discount: Tensor,
        normal: Tensor,
        alpha: Tensor,
        weight: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Returns (loss, mean Q, errors Q(s, a) - y (E critics, B)). The loss is a sum of mean (Q(s, a) - y)^2 / 2.

        y = r + discount (min Q' - alpha log pi)(s', a'), and `discount` is gamma (1 - terminated), see
        `bootstrap_discount`. Q' are the target critics. `normal` is the standard normal noise (B, D) that samples a'.
        The loss of a row is multiplied by `weight` (B,), if given.
        """
        with torch.no_grad():
            next_action, next_log_prob = self._policy_fn(next_obs, normal)
            next_q = self.target_critic(torch.cat([next_obs, next_action], -1)).squeeze(-1).amin(0)
            target = reward + discount * (next_q - alpha * next_log_prob)
        q_EB = self.critic(torch.cat([obs, action], -1)).squeeze(-1)
        error_EB = q_EB - target
        square_EB = error_EB.square() if weight is None else weight * error_EB.square()
        return 0.5 * square_EB.mean(1).sum(), q_EB.detach().mean(), error_EB.detach()

    def _actor_loss(self, obs: Tensor, normal: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor]:
        """Returns (loss, mean log pi). `normal` is the noise (B, D) that samples the action a.

        The loss is mean (alpha log pi(a) - min Q(s, a)) plus -mean log_alpha (log pi(a) + target entropy).
        The two terms share no parameter, so one step of Adam on the sum is one step on each.
        """
        action, log_prob = self._policy_fn(obs, normal)
        q = self.critic(torch.cat([obs, action], -1)).squeeze(-1).amin(0)
        mean_log_prob = log_prob.detach().mean()
        alpha_loss = -self.temperature.log_alpha * (mean_log_prob + self.target_entropy)
        return (alpha * log_prob - q).mean() + alpha_loss, mean_log_prob

    @torch.no_grad()
    def labels(self, batch: dict[str, Tree]) -> dict[str, Tensor]:
        """Computes labels of transitions, on which another network can be trained to imitate this learner.

        Args:
            batch: B transitions: ``obs`` and ``next_obs`` (B, ...).

        Returns:
            Dict with three labels. ``mu`` (B, D) is the tanh of the actor's mean for ``obs``, in [-1, 1]; D is the
            number of entries of an action. ``log_std`` (B, D) is the log standard deviation before the tanh.
            ``q_target`` (B,) is the soft value of ``next_obs``, min Q'(s', a') - alpha log pi(a' | s'), with a sampled
            action a' and the target critics Q'.
        """
        mean, log_std = self.actor(self._features(batch["obs"], self.encoder)).chunk(2, -1)
        next_obs = self._features(batch["next_obs"], self.target_encoder)
        action, log_prob = self._policy_fn(next_obs, self.noise("sac/labels", len(mean)).normal(self.dim))
        q = self.target_critic(torch.cat([next_obs, action], -1)).squeeze(-1).amin(0)
        q = q - self.temperature.log_alpha.exp() * log_prob
        return {"mu": torch.tanh(mean), "log_std": log_std.clamp(LOG_STD_MIN, LOG_STD_MAX), "q_target": q}
