"""MAPPO: PPO for a team of agents that share one actor, with a central critic of state values.

Source: Yu et al. 2022, "The Surprising Effectiveness of PPO in Cooperative Multi-Agent Games" (arXiv 2103.01955),
appendix A; its critic for each agent observes the maps of this agent and the state of the team.
Suffixes: T steps, N environments, A agents, K actions, C channels, R rows (of T, N and A).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from powerband.algos.coma import CHUNK, Choose, all_actions_allowed
from powerband.algos.ppo import clipped_policy_loss
from powerband.algos.team_settings import MAPPOConfig
from powerband.core.optim.compile import compile_if
from powerband.core.optim.flat_adam import FlatAdam
from powerband.core.optim.learning_rate import LearnerLr
from powerband.core.rank_context import RankContext
from powerband.core.schedule import UpdateCycle
from powerband.data.rollout import gae
from powerband.data.types import EnvSpec, Tree

StateInputs = Callable[[Tree], Tensor]
"""Function from observations (T, N, A, ...) to the inputs (T * N * A, C, H, W) of the central critic."""


class MAPPO:
    """On-policy learner for a team of agents that share one actor network over feature maps.

    Observations are a dict: ``maps`` (N, A, C, 11, 11) of each agent, and ``state`` (N, C', 11, 11), which only the
    critic observes. The critic is central: it estimates one value per agent from the maps of the agent and the state.

    Shapes: N environments, A agents, K actions, C channels of an agent's maps, C' channels of the state, T steps,
    R rows (one per agent, environment and step).
    """

    lr = LearnerLr("actor_adam", "critic_adam")

    def __init__(
        self,
        spec: EnvSpec,
        config: MAPPOConfig,
        context: RankContext,
        build_network: Callable[[int, int], nn.Module],
        state_inputs: StateInputs,
        choose: Choose | None = None,
    ):
        """
        Args:
            spec: Spaces of the environments.
            config: Hyper-parameters.
            context: Device, precision, random numbers and gradient averaging of this rank.
            build_network: Function (channels, outputs) -> network from feature maps (R, channels, 11, 11) to
                (R, outputs). It is called for the actor, then for the critic.
            state_inputs: Function that joins the maps of each agent and the state to the inputs of the critic. The
                first C channels are the maps.
            choose: Function that samples the actions and returns the mask of allowed actions; needed if the mask of
                one agent depends on the choices of others. None allows all actions.
        """
        self.spec, self.config, self.precision, self.noise = spec, config, context.precision, context.noise
        self.average, self.choose, self.state_inputs = context.average, choose or all_actions_allowed, state_inputs
        assert spec.num_actions is not None
        self.channels = spec.obs["maps"].shape[1]
        self.actor = build_network(self.channels, spec.num_actions).to(context.device)
        self.critic = build_network(self.channels + spec.obs["state"].shape[0], 1).to(context.device)
        shared: dict[str, Any] = {
            "precision": context.precision,
            "eps": 1e-5,
            "max_grad_norm": config.max_grad_norm,
            "average": context.average,
        }
        self.actor_adam = FlatAdam([self.actor], config.actor_lr, **shared)
        self.critic_adam = FlatAdam([self.critic], config.critic_lr, **shared)
        self.cycle = UpdateCycle(1)
        self.rollouts = 0
        self._critic_loss_fn = compile_if(self._critic_loss, config.compile)
        self._actor_loss_fn = compile_if(self._actor_loss, config.compile)

    # -- acting -----------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def probability(self, obs: Tree) -> Tensor:
        """Computes the probabilities of all actions, before actions that are not allowed are masked.

        Args:
            obs: Dict with ``maps`` (N, A, C, 11, 11) of N environments, A agents and C channels.

        Returns:
            Probabilities (N, A, K) float32 of K actions.
        """
        return self._logits(obs).softmax(-1)

    def _logits(self, obs: Tree) -> Tensor:
        """Computes the logits (N, A, K) float32 of all actions."""
        maps = obs["maps"]
        with self.precision.autocast(maps.shape[0] * maps.shape[1]):
            logits = self.actor(maps.flatten(0, 1))
        return logits.float().view(*maps.shape[:2], -1)

    @torch.no_grad()
    def act(self, obs: Tree, carry: Tensor | None, explore: bool) -> tuple[Tensor, dict[str, Tensor], Tensor | None]:
        """Samples actions; explore=False takes the likeliest.

        Args:
            obs: Dict with ``maps`` (N, A, C, 11, 11) of N environments, A agents and C channels.
            carry: Not used; the policy has no recurrent state.
            explore: Samples if true.

        Returns:
            Actions (N, A) int64; a dict with ``mask`` (N, A, K) bool, True for allowed actions out of K, and
            ``log_prob`` (N, A); None, because the policy has no recurrent state.
        """
        logits = self._logits(obs)
        n, agents = logits.shape[:2]
        noise = self.noise("mappo/act", n).uniform(agents) if explore else None
        action, mask = self.choose(logits.softmax(-1), noise)
        log_prob = masked_log_policy(logits, mask).gather(-1, action.unsqueeze(-1)).squeeze(-1)
        return action, {"mask": mask, "log_prob": log_prob}, None

    # -- learning ---------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def targets(self, data: dict[str, Tree], gamma: float, td_lambda: float) -> dict[str, Tensor]:
        """Computes the data for `update` from a rollout of complete episodes.

        Args:
            data: Rollout of T steps, N environments and A agents: ``obs`` (T, N, A, ...), ``action``, ``log_prob`` and
                ``reward`` (T, N, A), ``mask`` (T, N, A, K) of K actions, ``terminated`` and ``truncated`` (T, N).
            gamma: Discount per step.
            td_lambda: Lambda of generalised advantage estimation, 0 to 1.

        Returns:
            Dict with ``inputs`` (T, N * A, C + C', 11, 11) of the critic, whose first C channels are the actor's
            inputs; ``action``, ``log_prob``, ``advantages`` and ``returns`` (T, N * A); ``mask`` (T, N * A, K). The
            advantages have mean 0 and standard deviation 1 over the rollouts of all ranks.
        """
        steps = data["terminated"].shape[0]
        inputs = self.state_inputs(data["obs"])
        values = torch.cat([self._values(part) for part in inputs.split(CHUNK)]).view(data["action"].shape)
        # The last entry is never read, because all episodes end at the last step.
        following = torch.cat([values[1:], torch.zeros_like(values[:1])])
        ends = data["terminated"], data["truncated"]
        advantages, returns = gae(data["reward"], values, following, *ends, gamma, td_lambda)
        moments = torch.stack([advantages.mean(), advantages.square().mean()])
        self.average(moments)
        mean, square = moments.unbind()
        deviation = (square - mean * mean).clamp(min=0).sqrt()
        return {
            "inputs": inputs.view(steps, -1, *inputs.shape[1:]),
            "action": data["action"].flatten(1),
            "log_prob": data["log_prob"].flatten(1),
            "mask": data["mask"].flatten(1, 2),
            "advantages": ((advantages - mean) / (deviation + 1e-8)).flatten(1),
            "returns": returns.flatten(1),
        }

    def update(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Takes one step of the critic towards the returns, and one of the actor.

        Args:
            batch: Rows of the result of `targets`: ``inputs`` (R, C + C', 11, 11), ``action`` (R,) int64, ``mask``
                (R, K) bool, ``log_prob``, ``advantages`` and ``returns`` (R,).

        Returns:
            Losses and statistics of the update by name, detached 0-d tensors.
        """
        loss, figures = self._critic_loss_fn(batch)
        figures["losses/critic_grad_norm"] = self.critic_adam.step(loss)
        loss, actor_figures = self._actor_loss_fn(batch)
        figures |= actor_figures
        figures["losses/actor_grad_norm"] = self.actor_adam.step(loss)
        return figures

    def _values(self, inputs: Tensor) -> Tensor:
        """Computes the state values (R,) of the agents."""
        with self.precision.autocast():
            return self.critic(inputs).squeeze(-1)

    def _critic_loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the loss of the critic, the mean of (V - returns)^2, and {"losses/critic": its detached value}."""
        loss = (self._values(batch["inputs"]) - batch["returns"]).square().mean()
        return loss, {"losses/critic": loss.detach()}

    def _actor_loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the clipped loss of the policy minus the entropy bonus, and statistics by name for the log."""
        with self.precision.autocast():
            logits = self.actor(batch["inputs"][:, : self.channels])
        log_policy = masked_log_policy(logits, batch["mask"])
        log_prob = log_policy.gather(1, batch["action"].unsqueeze(1)).squeeze(1)
        loss, figures = clipped_policy_loss(log_prob, batch["log_prob"], batch["advantages"], self.config.clip)
        entropy = -(log_policy.exp() * log_policy).sum(1).mean()
        figures |= {"losses/actor": loss.detach(), "losses/entropy": entropy.detach()}
        return loss - self.config.entropy_coef * entropy, figures

    def after_rollout(self, obs: Tree) -> None:
        """Counts the rollouts. `obs`, the observations (T, N, A, ...) of the rollout, is not used."""
        self.rollouts += 1

    # -- state ------------------------------------------------------------------------------------------------------

    def initial_carry(self, num_envs: int) -> None:
        """Returns None: the policy has no recurrent state."""

    def policy_state(self) -> dict[str, Tensor]:
        """Returns the parameters of the actor, for the exported policy."""
        return self.actor.state_dict()

    def state_dict(self) -> dict:
        """Returns the complete training state for a checkpoint: the tensors themselves, not copies."""
        names = ("actor", "critic", "actor_adam", "critic_adam", "noise")
        return {**{name: getattr(self, name).state_dict() for name in names}, "rollouts": self.rollouts}

    def load_state_dict(self, state: dict) -> None:
        """Restores a result of `state_dict` in place."""
        for name in ("actor", "critic", "actor_adam", "critic_adam", "noise"):
            getattr(self, name).load_state_dict(state[name])
        self.rollouts = state["rollouts"]


def masked_log_policy(logits: Tensor, mask: Tensor) -> Tensor:
    """Computes the log-probabilities (..., K) of actions; those that `mask` (..., K) excludes get a finite minimum."""
    return logits.float().masked_fill(~mask, torch.finfo(torch.float32).min).log_softmax(-1)
