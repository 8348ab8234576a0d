"""DDPG for one agent or a team with shared weights; also BiCNet, which is DDPG with communication between the agents.

The actor computes a vector of action probabilities (a softmax). The replay buffer stores this vector, and the critic
reads it in place of the action. The executed action is sampled from the vector.

Source: Lillicrap et al. 2016, algorithm 1; Peng et al. 2017 for ``communicate="lstm"``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from powerband.algos.settings import DDPGConfig
from powerband.core.errors import ConfigError
from powerband.core.optim.compile import compile_if
from powerband.core.optim.flat_adam import FlatAdam, FlatTarget
from powerband.core.optim.learning_rate import LearnerLr
from powerband.core.rank_context import RankContext
from powerband.core.schedule import UpdateCycle
from powerband.data.n_step import bootstrap_discount
from powerband.data.types import EnvSpec, Tree, broadcast_rows
from powerband.nets.distributions import inverse_cdf_sample, softmax
from powerband.nets.observations.features import features, num_features


class DDPG:
    """DDPG learner for discrete actions, for one agent or several.

    The actor computes a vector of action probabilities, from which the executed action is sampled. The critic reads
    this vector, which batches contain as ``action_probs``, in place of the action.

    Shapes: N environments, A agents, K actions, B rows of a batch. An axis in brackets exists only for several agents.
    """

    lr = LearnerLr("actor_adam", "critic_adam")

    def __init__(
        self,
        spec: EnvSpec,
        config: DDPGConfig,
        context: RankContext,
        build_network: Callable[[int, int], nn.Module],
    ):
        """
        Args:
            spec: Spaces of the environments.
            config: Hyper-parameters.
            context: Device, precision, random numbers and gradient averaging of this rank.
            build_network: Function (inputs, outputs) -> network from features (B, [A,] inputs) to (B, [A,] outputs). It
                is called for the actor, then for the critic.

        Raises:
            ConfigError: The actions are continuous, or `config` wants communication but there is only one agent.
        """
        if spec.num_actions is None:
            raise ConfigError(
                "algo=ddpg supports discrete actions only, because its actor outputs action probabilities. The "
                "actions of this environment are continuous. Write algo=ppo."
            )
        if config.communicate == "lstm" and spec.num_agents is None:
            raise ConfigError(
                "ddpg.communicate=lstm needs several agents, but this environment has one. Write ddpg.communicate=none."
            )
        self.config, self.precision, self.noise = config, context.precision, context.noise
        self.num_actions, self.world_size = spec.num_actions, context.world_size
        self.leading = 1 if spec.num_agents is None else 2
        inputs = num_features(spec.obs, spec.num_agents)
        self.actor = build_network(inputs, self.num_actions).to(context.device)
        self.critic = build_network(inputs + self.num_actions, 1).to(context.device)
        self.target_actor, self.target_critic = copy.deepcopy(self.actor), copy.deepcopy(self.critic)
        shared: dict[str, Any] = {
            "precision": context.precision,
            "max_grad_norm": config.max_grad_norm,
            "average": context.average,
        }
        self.actor_adam = FlatAdam([self.actor], config.actor_lr, **shared)
        self.critic_adam = FlatAdam([self.critic], config.critic_lr, **shared)
        self.actor_target = FlatTarget(self.actor_adam, [self.target_actor], config.tau)
        self.critic_target = FlatTarget(self.critic_adam, [self.target_critic], config.tau)
        self.cycle = UpdateCycle(1)
        self.epsilon = torch.tensor(config.epsilon, device=context.device)
        self._critic_loss_fn = compile_if(self._critic_loss, config.compile)
        self._actor_loss_fn = compile_if(self._actor_loss, config.compile)

    @torch.no_grad()
    def act(self, obs: Tree, carry: Tensor | None, explore: bool) -> tuple[Tensor, dict[str, Tensor], None]:
        """Chooses actions, and decays epsilon if `explore`.

        With probability epsilon, drawn once per environment, the probability vectors of its agents are random: uniform
        entries divided by their sum. An action is sampled from each vector. With explore=False, epsilon is 0 and the
        likeliest action is taken.

        Args:
            obs: Tensor or nested dict of tensors (N, [A,] ...); N environments, A agents if there are several.
            carry: Not used; the policy has no recurrent state.
            explore: Samples if true.

        Returns:
            Actions (N, [A]) int64; {"action_probs": probability vectors (N, [A,] K) float32 of K actions}, which the
            loop stores; None, because the policy has no recurrent state.
        """
        obs = features(obs, self.leading)
        with self.precision.autocast(obs.shape[:-1].numel()):
            probs = softmax(self.actor(obs))
        if not explore:
            return probs.argmax(-1), {"action_probs": probs}, None
        lead = probs.shape[1:-1]
        uniform = self.noise("ddpg/act", probs.shape[0]).uniform(1 + lead.numel() * (self.num_actions + 1))
        coin, point, draw = uniform.split([1, lead.numel() * self.num_actions, lead.numel()], 1)
        point = point.reshape(probs.shape) + 1e-6
        coin = (coin.squeeze(1) < self.epsilon).view(-1, *(1,) * (probs.dim() - 1))
        probs = torch.where(coin, point / point.sum(-1, keepdim=True), probs)
        action = inverse_cdf_sample(probs.flatten(0, -2).t(), draw.reshape(-1)).view(probs.shape[:-1])
        self.epsilon.mul_(self.config.epsilon_decay ** (probs.shape[0] * self.world_size))
        return action, {"action_probs": probs}, None

    def update(self, batch: dict[str, Tree]) -> dict[str, Tensor]:
        """Takes one step of the critic, the actor and the target networks.

        Args:
            batch: B transitions: ``obs`` and ``next_obs`` (B, [A,] ...), ``action_probs`` (B, [A,] K) of K actions,
                ``reward`` (B, [A]) and ``terminated`` (B,) bool. The axis of A agents exists only for several.

        Returns:
            Losses and statistics of the update by name, detached 0-d tensors.
        """
        obs, next_obs = features(batch["obs"], self.leading), features(batch["next_obs"], self.leading)
        discount = broadcast_rows(bootstrap_discount(batch, self.config.gamma), batch["reward"])
        with self.precision.autocast():
            critic_loss, q_mean = self._critic_loss_fn(obs, batch["action_probs"], batch["reward"], next_obs, discount)
        critic_norm = self.critic_adam.step(critic_loss)
        with self.critic_adam.frozen():
            with self.precision.autocast():
                actor_loss = self._actor_loss_fn(obs)
            actor_norm = self.actor_adam.step(actor_loss)
        self.actor_target.update()
        self.critic_target.update()
        return {
            "losses/critic": critic_loss.detach(),
            "losses/actor": actor_loss.detach(),
            "losses/q": q_mean,
            "losses/critic_grad_norm": critic_norm,
            "losses/actor_grad_norm": actor_norm,
            "charts/epsilon": self.epsilon.clone(),
        }

    def _critic_loss(
        self, obs: Tensor, probs: Tensor, reward: Tensor, next_obs: Tensor, discount: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Returns (loss, mean Q). The loss is mean (Q(s, a) - y)^2 with y = r + discount Q'(s', mu'(s')).

        `probs` is a, the vectors of action probabilities; `discount` is gamma (1 - terminated).
        """
        with torch.no_grad():
            next_q = self.target_critic(torch.cat([next_obs, softmax(self.target_actor(next_obs))], -1)).squeeze(-1)
            target = reward + discount * next_q
        q = self.critic(torch.cat([obs, probs], -1)).squeeze(-1)
        return F.mse_loss(q, target), q.detach().mean()

    def _actor_loss(self, obs: Tensor) -> Tensor:
        """Computes -mean Q(s, mu(s)) + logit_penalty mean logit^2; the critic gets no gradient.

        Source of the penalty: the code of Lowe et al. 2017 (MADDPG).
        """
        logits = self.actor(obs)
        q = self.critic(torch.cat([obs, softmax(logits)], -1)).mean()
        return self.config.logit_penalty * logits.float().square().mean() - q

    def initial_carry(self, num_envs: int) -> None:
        """Returns None: the policy has no recurrent state."""

    def policy_state(self) -> dict[str, Tensor]:
        """Returns the parameters of the actor, for the exported policy."""
        return self.actor.state_dict()

    def state_dict(self) -> dict:
        """Returns the complete training state for a checkpoint: the tensors themselves, not copies."""
        return {
            "actor": self.actor.state_dict(),
            "critic": self.critic.state_dict(),
            "target_actor": self.target_actor.state_dict(),
            "target_critic": self.target_critic.state_dict(),
            "actor_adam": self.actor_adam.state_dict(),
            "critic_adam": self.critic_adam.state_dict(),
            "epsilon": self.epsilon,
            "noise": self.noise.state_dict(),
        }

    def load_state_dict(self, state: dict) -> None:
        """Restores a result of `state_dict` in place."""
        for name in ("actor", "critic", "target_actor", "target_critic", "actor_adam", "critic_adam", "noise"):
            getattr(self, name).load_state_dict(state[name])
        self.epsilon.copy_(state["epsilon"])
