"""DDPG for a team with shared weights, and BiCNet, which is DDPG whose agents talk.

The actor's softmax vector is the action: replay stores it, the critic sees it, and the move is sampled from it.

Source: Lillicrap et al. 2016, algorithm 1; Peng et al. 2017 for ``communicate="lstm"``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from powerband.core.compile import compiled
from powerband.core.flat import FlatAdam, FlatTarget
from powerband.core.noise import NoiseSource
from powerband.core.precision import Precision
from powerband.data.types import EnvSpec, Tree
from powerband.nets.distributions import pick, softmax
from powerband.nets.features import features, num_features
from powerband.nets.team import Communication, TeamMLP


@dataclass(frozen=True)
class DDPGConfig:
    actor_lr: float = 1e-4
    """Adam learning rate of the actor."""
    critic_lr: float = 1e-4
    """Adam learning rate of the critic."""
    gamma: float = 0.95
    """Discount of a step."""
    tau: float = 0.001
    """Share of the online networks that the target networks take over at each update."""
    hidden: int = 256
    """Width of the two hidden layers."""
    communicate: Communication = "none"
    """none is DDPG with shared weights; lstm is BiCNet, a bidirectional LSTM across the agents."""
    max_grad_norm: float = 1.0
    """Gradients are clipped to this 2-norm."""
    epsilon: float = 0.5
    """Probability of a uniform action vector at the start."""
    epsilon_decay: float = 0.99998
    """Factor on epsilon for each environment step (of one environment; N environments count N)."""
    logit_penalty: float = 1e-3
    """Weight of the mean squared logit in the actor's loss: keeps the softmax out of corners without a gradient."""
    compile: bool = False
    """torch.compile the two losses."""


class DDPG:
    """Learner for discrete moves, with or without an agent axis. Batches hold ``action_probs`` too."""

    def __init__(
        self,
        spec: EnvSpec,
        config: DDPGConfig,
        device: torch.device | str,
        precision: Precision,
        noise: NoiseSource,
        average: Callable[[Tensor], object] | None = None,
        world_size: int = 1,
    ):
        """
        Args:
            spec: Of the environments; actions must be discrete.
            config: Hyper-parameters.
            device: Where networks live.
            precision: Of the networks; targets are float32.
            noise: Streams of random numbers of this rank.
            average: Replaces a flat gradient by its mean over ranks.
            world_size: Ranks that explore at the same time (epsilon falls with the steps of all).

        Raises:
            ValueError: Continuous actions, or communication without agents.
        """
        if spec.num_actions is None:
            raise ValueError("DDPG here chooses among discrete moves, this action is continuous; use SAC or PPO.")
        if config.communicate == "lstm" and spec.num_agents is None:
            raise ValueError('communicate="lstm" needs an agent axis, this environment has none; use "none".')
        self.config, self.precision, self.noise = config, precision, noise
        self.num_actions, self.world_size = spec.num_actions, world_size
        self.leading = 1 if spec.num_agents is None else 2
        inputs = num_features(spec.obs, spec.num_agents)
        self.actor = TeamMLP(inputs, config.hidden, self.num_actions, config.communicate).to(device)
        self.critic = TeamMLP(inputs + self.num_actions, config.hidden, 1, config.communicate).to(device)
        self.target_actor, self.target_critic = copy.deepcopy(self.actor), copy.deepcopy(self.critic)
        shared = {"precision": precision, "max_grad_norm": config.max_grad_norm, "average": average}
        self.actor_adam = FlatAdam([self.actor], config.actor_lr, **shared)
        self.critic_adam = FlatAdam([self.critic], config.critic_lr, **shared)
        self.actor_target = FlatTarget(self.actor_adam, [self.target_actor], config.tau)
        self.critic_target = FlatTarget(self.critic_adam, [self.target_critic], config.tau)
        self.epsilon = torch.tensor(config.epsilon, device=device)
        self._critic_loss = compiled(self._critic_loss, config.compile)
        self._actor_loss = compiled(self._actor_loss, config.compile)

    @torch.no_grad()
    def act(self, obs: Tree, carry: None, explore: bool) -> tuple[Tensor, dict[str, Tensor], None]:
        """Chooses moves.

        With probability epsilon, one coin an environment, the vectors of its agents are uniform points: each entry
        uniform on [0, 1), divided by their sum, as the actor's own vectors are. The move is sampled from the vector;
        with explore=False it is the largest entry.

        Returns:
            Moves (N,) or (N, A) int64; {"action_probs": (..., K) float32}; None.
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
        action = pick(probs.flatten(0, -2).t(), draw.reshape(-1)).view(probs.shape[:-1])
        self.epsilon.mul_(self.config.epsilon_decay ** (probs.shape[0] * self.world_size))
        return action, {"action_probs": probs}, None

    def update(self, batch: dict[str, Tree]) -> dict[str, Tensor]:
        """One step of critic, actor and targets.

        Args:
            batch: obs, next_obs (B, [A,] ...), action_probs (B, [A,] K), reward (B, [A]), terminated (B,).

        Returns:
            0-d figures, detached.
        """
        obs, next_obs = features(batch["obs"], self.leading), features(batch["next_obs"], self.leading)
        goes_on = (~batch["terminated"]).float().view(-1, *(1,) * (batch["reward"].dim() - 1))
        with self.precision.autocast():
            critic_loss, q_mean = self._critic_loss(obs, batch["action_probs"], batch["reward"], next_obs, goes_on)
        critic_norm = self.critic_adam.step(critic_loss)
        with self.critic_adam.frozen():
            with self.precision.autocast():
                actor_loss = self._actor_loss(obs)
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
        self, obs: Tensor, probs: Tensor, reward: Tensor, next_obs: Tensor, goes_on: Tensor
    ) -> tuple[Tensor, Tensor]:
        """mean (Q(s, a) - y)^2 with y = r + gamma (1 - terminated) Q'(s', mu'(s'))."""
        with torch.no_grad():
            next_q = self.target_critic(torch.cat([next_obs, softmax(self.target_actor(next_obs))], -1)).squeeze(-1)
            target = reward + self.config.gamma * goes_on * next_q
        q = self.critic(torch.cat([obs, probs], -1)).squeeze(-1)
        return F.mse_loss(q, target), q.detach().mean()

    def _actor_loss(self, obs: Tensor) -> Tensor:
        """-mean Q(s, mu(s)) + logit_penalty mean logit^2; the critic's weights get no gradient.

        Source of the penalty: the code of Lowe et al. 2017 (MADDPG).
        """
        logits = self.actor(obs)
        q = self.critic(torch.cat([obs, softmax(logits)], -1)).mean()
        return self.config.logit_penalty * logits.float().square().mean() - q

    def initial_carry(self, num_envs: int) -> None:
        return None

    def policy_state(self) -> dict[str, Tensor]:
        """Parameters of the actor, for the exported policy."""
        return self.actor.state_dict()

    def state_dict(self) -> dict:
        """Everything that training goes on from (live tensors, not copies)."""
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
        """Restores `state_dict`, in place."""
        for name in ("actor", "critic", "target_actor", "target_critic", "actor_adam", "critic_adam", "noise"):
            getattr(self, name).load_state_dict(state[name])
        self.epsilon.copy_(state["epsilon"])
