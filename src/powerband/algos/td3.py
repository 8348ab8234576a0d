"""TD3: twin delayed deep deterministic policy gradient, for continuous actions within bounds.

The replay buffer and the environments hold actions in the environment's units; the networks use [-1, 1].

Source: Fujimoto, van Hoof and Meger 2018, "Addressing Function Approximation Error in Actor-Critic Methods",
algorithm 1.
Suffixes: B rows, E critics.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from powerband.algos.actions import action_scale
from powerband.algos.fused.choice import is_fusible
from powerband.algos.replay_learner import ReplayLearner
from powerband.algos.settings import TD3Config
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


class TD3(ReplayLearner):
    """TD3 learner for continuous actions within finite bounds, for one agent.

    An encoder learns from the loss of the critics alone; the actor reads its features without a gradient.

    Shapes: N environments, B rows of a batch, D entries of an action, F features of an observation.
    """

    PARTS = (
        "actor", "critic", "target_actor", "target_critic", "actor_adam", "critic_adam", "noise", "encoder",
        "target_encoder", "obs_norm",
    )  # fmt: skip
    lr = LearnerLr("actor_adam", "critic_adam")

    def __init__(
        self, spec: EnvSpec, config: TD3Config, context: RankContext, encoder: ObsEncoder | None = None
    ) -> None:
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
        self.centre, self.scale = action_scale("td3", spec, context.device)
        self.dim = spec.action.shape[0]
        self.encoder = None if encoder is None else encoder.to(context.device)
        inputs = num_features(spec.obs, None) if encoder is None else encoder.width
        self.obs_norm = vector_norm("td3", inputs, encoder).to(context.device) if config.normalize_obs else None
        self.actor = MLP(inputs, config.hidden, self.dim, exact_inputs=True).to(context.device)
        self.critic = TwinMLP(inputs + self.dim, config.hidden, 1, exact_inputs=True).to(context.device)
        self.target_actor, self.target_critic = copy.deepcopy(self.actor), copy.deepcopy(self.critic)
        self.target_encoder = copy.deepcopy(self.encoder)
        self.actor_adam = FlatAdam([self.actor], config.actor_lr, precision=context.precision, average=context.average)
        critics = [net for net in (self.critic, self.encoder) if net is not None]
        targets = [net for net in (self.target_critic, self.target_encoder) if net is not None]
        self.critic_adam = FlatAdam(critics, config.critic_lr, precision=context.precision, average=context.average)
        self.follow_actor = FlatTarget(self.actor_adam, [self.target_actor], config.tau)
        self.follow_critic = FlatTarget(self.critic_adam, targets, config.tau)
        self.updates = torch.zeros((), dtype=torch.int64, device=context.device)
        self._error_EB = torch.zeros(1, 0, device=context.device)
        self.cycle = UpdateCycle(config.policy_interval)
        self._critic_loss_fn = compile_if(self._critic_loss, config.compile)
        self._actor_loss_fn = compile_if(self._actor_loss, config.compile)
        self.fused = None
        if config.can_be_fused and is_fusible(context, config.hidden, encoder):
            from powerband.algos.fused.td3 import FusedTD3  # imports numba, which takes half a second

            adams, averages = (self.actor_adam, self.critic_adam), (self.follow_actor, self.follow_critic)
            self.fused = FusedTD3(self.actor, self.critic, adams, averages, config)
            context.noise.compile()

    @torch.no_grad()
    def act(self, obs: Tree, carry: Tensor | None, explore: bool) -> tuple[Tensor, dict[str, Tensor], None]:
        """Computes actions, with Gaussian noise if `explore`.

        Args:
            obs: Tensor or nested dict of tensors (N, ...): observations of N environments.
            carry: Not used; the policy has no recurrent state.
            explore: Adds noise if true.

        Returns:
            Actions (N, D) float32 of D entries in the environment's units; an empty dict; None, because the policy has
            no recurrent state.
        """
        rows = self._features(obs, self.encoder)
        if self.fused is not None:
            action = self.fused.act(rows)
        else:
            with self.precision.autocast(rows.shape[0]):
                action = torch.tanh(self.actor(rows)).float()
        if explore:
            noise = self.noise("td3/act", rows.shape[0])
            normal = noise.pink(self.dim) if self.config.action_noise == "pink" else noise.normal(self.dim)
            action = (action + self.config.exploration_noise * normal).clamp(-1, 1)
        return torch.addcmul(self.centre, self.scale, action), {}, None

    def update(self, batch: dict[str, Tree]) -> dict[str, Tensor]:
        """Takes one step of the critics and, at every `policy_interval`-th update, of the actor and the targets.

        Args:
            batch: B transitions: ``obs`` and ``next_obs`` (B, ...), ``action`` (B, D) of D entries in the environment's
                units, ``reward`` (B,) and ``terminated`` (B,) bool; optionally ``weight`` (B,) of the critics' loss.

        Returns:
            Losses and statistics of the update by name, detached 0-d tensors.
        """
        obs = self._features(batch["obs"], self.encoder)
        with torch.no_grad():
            next_obs = self._features(batch["next_obs"], self.target_encoder)
        action = (batch["action"] - self.centre) / self.scale
        discount = bootstrap_discount(batch, self.config.gamma)
        normal = self.noise("td3/update", obs.shape[0]).normal(self.dim)
        rows = obs, action, batch["reward"], next_obs, discount
        if self.fused is not None:
            critic_loss, q_mean, self._error_EB = self.fused.critic_gradient(rows, batch.get("weight"), normal)
            grad_norm = self.critic_adam.apply()
        else:
            with self.precision.autocast():
                critic_loss, q_mean, self._error_EB = self._critic_loss_fn(*rows, normal, batch.get("weight"))
            grad_norm = self.critic_adam.step(critic_loss)
        figures = {"losses/critic": critic_loss.detach(), "losses/q": q_mean, "losses/critic_grad_norm": grad_norm}
        obs = obs.detach()
        self.updates += 1
        if self.cycle.advance() == self.cycle.period:
            if self.fused is not None:
                loss = self.fused.actor_gradient(obs)
                figures["losses/actor_grad_norm"] = self.actor_adam.apply()
            else:
                with self.critic_adam.frozen():
                    with self.precision.autocast():
                        loss = self._actor_loss_fn(obs)
                    figures["losses/actor_grad_norm"] = self.actor_adam.step(loss)
            figures["losses/actor"] = loss.detach()
            self.follow_actor.update()
            self.follow_critic.update()
        return figures

    def update_statistics(self, obs: Tree) -> None:
        """Adds collected observations (N, ...) to the statistics over all ranks, if observations are normalised."""
        if self.obs_norm is not None:
            self.obs_norm.update_statistics(features(obs, 1), self.average, self.world_size)

    def _critic_loss(
        self,
        obs: Tensor,
        action: Tensor,
        reward: Tensor,
        next_obs: Tensor,
        discount: Tensor,
        normal: Tensor,
        weight: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Returns (loss, mean Q, errors Q(s, a) - y (E critics, B)). The loss is a sum of mean (Q(s, a) - y)^2.

        y = r + discount min Q'(s', clip(mu'(s') + noise)), and `discount` is gamma (1 - terminated), see
        `bootstrap_discount`. Q' and mu' are the target networks. `normal` contains standard normal numbers (B, D) for
        the noise. The loss of a row is multiplied by `weight` (B,), if given.
        """
        config = self.config
        with torch.no_grad():
            noise = (config.target_noise * normal).clamp(-config.target_noise_clip, config.target_noise_clip)
            next_action = (torch.tanh(self.target_actor(next_obs)) + noise).clamp(-1, 1)
            next_q = self.target_critic(torch.cat([next_obs, next_action], -1)).squeeze(-1).amin(0)
            target = reward + discount * next_q
        q_EB = self.critic(torch.cat([obs, action], -1)).squeeze(-1)
        error_EB = q_EB - target
        square_EB = error_EB.square() if weight is None else weight * error_EB.square()
        return square_EB.mean(1).sum(), q_EB.detach().mean(), error_EB.detach()

    def _actor_loss(self, obs: Tensor) -> Tensor:
        """Computes -mean Q_1(s, mu(s)) with the first critic; the critics get no gradient."""
        action = torch.tanh(self.actor(obs))
        return -self.critic(torch.cat([obs, action], -1))[0].mean()

    @property
    def errors(self) -> Tensor:
        """Absolute errors (B,) of the newest update, means over the critics."""
        return self._error_EB.abs().mean(0)
