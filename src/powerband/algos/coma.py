"""COMA: multi-agent actor-critic with a central critic and counterfactual baselines.

The module also contains independent actor-critic (IAC), whose critics are local.

Source: Foerster et al. 2018 (arXiv 1705.08926), equations 3 and 4; sizes and schedules of Westheider et al. 2023
(arXiv 2303.01150). Suffixes: T steps, N environments, A agents, K actions, C channels, R rows (of T, N and A).
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from powerband.algos.team_settings import COMAConfig
from powerband.core.optim.compile import compile_if
from powerband.core.optim.flat_adam import FlatAdam, FlatTarget
from powerband.core.optim.learning_rate import LearnerLr
from powerband.core.rank_context import RankContext
from powerband.core.schedule import UpdateCycle
from powerband.data.rollout import lambda_returns
from powerband.data.types import EnvSpec, Tree

Choose = Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor]]
"""Sampler (probability (N, A, K), noise (N, A) in [0, 1) or None for the likeliest) -> action, mask.

Shapes: action (N, A) int64, mask (N, A, K) bool of the allowed actions; N environments, A agents, K actions.
"""
CriticInputs = Callable[[Tree, Tensor, int], Tensor]
"""Function (obs (T, N, A, ...), action (T, N, A), number of actions) -> inputs (T * N * A, C, H, W).

The inputs are feature maps of the central critic; T steps, N environments, A agents, C channels of H by W cells.
"""
CHUNK = 2048
"""Rows per critic call in `COMA.targets`; the activations of a complete rollout would be too large for the memory."""


class COMA:
    """On-policy learner for a team of agents that share one actor network over feature maps.

    The policy is pi = (1 - epsilon) softmax + epsilon / K, masked and normalised to sum 1. Epsilon changes only after
    the updates of a rollout. Observations are a dict: ``maps`` (N, A, C, 11, 11) of each agent, ``state``
    (N, C', 11, 11) for the critic only, and ``cell`` (N, A) int64, the position of each agent on the maps. The critic
    also observes the actions of the other agents, as one map with the value (a + 1) / K at the cells of these agents.

    Shapes: N environments, A agents, K actions, C channels of an agent's maps, C' channels of the state, T steps,
    R rows (one per agent, environment and step).
    """

    lr = LearnerLr("actor_adam", "critic_adam")

    def __init__(
        self,
        spec: EnvSpec,
        config: COMAConfig,
        context: RankContext,
        build_network: Callable[[int, int], nn.Module],
        critic_inputs: CriticInputs,
        choose: Choose | None = None,
        counterfactual: bool = True,
    ):
        """
        Args:
            spec: Spaces of the environments.
            config: Hyper-parameters.
            context: Device, precision, random numbers and gradient averaging of this rank.
            build_network: Function (channels, outputs) -> network from feature maps (R, channels, 11, 11) to
                (R, outputs). It is called for the actor, then for the critic.
            critic_inputs: Function that builds the feature maps of the central critic.
            choose: Function that samples the actions and returns the mask of allowed actions; needed if the mask of
                one agent depends on the choices of others. None allows all actions.
            counterfactual: True is COMA: a central critic of all actions; the baseline is the mean of Q over the policy
                of the agent. False is IAC: each agent's critic estimates state values from the inputs of its actor.
        """
        self.spec, self.config, self.precision, self.noise = spec, config, context.precision, context.noise
        self.counterfactual, self.critic_inputs = counterfactual, critic_inputs
        self.world_size, self.choose = context.world_size, choose or all_actions_allowed
        assert spec.num_actions is not None
        self.num_actions, channels = spec.num_actions, spec.obs["maps"].shape[1]
        inputs = channels + spec.obs["state"].shape[0] + 1 if counterfactual else channels
        self.actor = build_network(channels, spec.num_actions).to(context.device)
        self.critic = build_network(inputs, spec.num_actions if counterfactual else 1).to(context.device)
        self.target = deepcopy(self.critic)
        shared: dict[str, Any] = {
            "precision": context.precision,
            "max_grad_norm": config.max_grad_norm,
            "average": context.average,
        }
        self.actor_adam = FlatAdam([self.actor], config.actor_lr, **shared)
        self.critic_adam = FlatAdam([self.critic], config.critic_lr, **shared)
        self.copied = FlatTarget(self.critic_adam, [self.target], tau=1.0)
        self.cycle = UpdateCycle(1)
        self.epsilon = torch.full((), config.epsilon_start, device=context.device)
        self.rollouts = self.episodes = 0
        self._critic_loss_fn = compile_if(self._critic_loss, config.compile)
        self._actor_loss_fn = compile_if(self._actor_loss, config.compile)

    # -- acting -----------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def probability(self, obs: Tree) -> Tensor:
        """Computes the probabilities of all actions, before actions that are not allowed are masked.

        Args:
            obs: Dict with ``maps`` (N, A, C, 11, 11) of N environments, A agents and C channels.

        Returns:
            Probabilities (N, A, K) float32 of K actions, mixed with epsilon of the uniform distribution.
        """
        maps = obs["maps"]
        with self.precision.autocast(maps.shape[0] * maps.shape[1]):
            logits = self.actor(maps.flatten(0, 1))
        return self._mixed(logits).view(*maps.shape[:2], -1)

    @torch.no_grad()
    def act(self, obs: Tree, carry: Tensor | None, explore: bool) -> tuple[Tensor, dict[str, Tensor], Tensor | None]:
        """Samples actions; explore=False takes the likeliest.

        Args:
            obs: Dict with ``maps`` (N, A, C, 11, 11) of N environments, A agents and C channels.
            carry: Not used; the policy has no recurrent state.
            explore: Samples if true.

        Returns:
            Actions (N, A) int64; {"mask": (N, A, K) bool, True for allowed actions out of K}; None, because the policy
            has no recurrent state.
        """
        probability = self.probability(obs)
        n, agents = probability.shape[:2]
        noise = self.noise("coma/act", n).uniform(agents) if explore else None
        action, mask = self.choose(probability, noise)
        return action, {"mask": mask}, None

    def _mixed(self, logits: Tensor) -> Tensor:
        """Mixes the softmax of logits (..., K) with the uniform distribution, whose share is epsilon."""
        return (1 - self.epsilon) * logits.float().softmax(-1) + self.epsilon / self.num_actions

    # -- learning ---------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def targets(self, data: dict[str, Tree], gamma: float, td_lambda: float) -> dict[str, Tensor]:
        """Computes the data for `update` from a rollout of complete episodes.

        Args:
            data: Rollout of T steps, N environments and A agents: ``obs`` (T, N, A, ...), ``action`` and ``reward``
                (T, N, A), ``mask`` (T, N, A, K) of K actions, ``terminated`` and ``truncated`` (T, N).
            gamma: Discount per step.
            td_lambda: Lambda of TD(lambda), 0 to 1.

        Returns:
            Dict with ``inputs`` (T, N * A, C, 11, 11) of the critic, whose first channels are the actor's inputs;
            ``action`` and TD(lambda) ``returns`` (T, N * A); ``mask`` (T, N * A, K).
        """
        steps, envs = data["terminated"].shape
        if self.counterfactual:
            inputs = self.critic_inputs(data["obs"], data["action"], self.num_actions)
        else:
            inputs = data["obs"]["maps"].flatten(0, 2)
        values = torch.cat([self._values(self.target, part) for part in inputs.split(CHUNK)])
        values = values.view(*data["action"].shape, -1)
        if self.counterfactual:
            values = values.gather(-1, data["action"].unsqueeze(-1))
        values = values.squeeze(-1)
        # The last entry is never read, because all episodes end at the last step.
        following = torch.cat([values[1:], torch.zeros_like(values[:1])])
        ends = data["terminated"], data["truncated"]
        returns = lambda_returns(data["reward"], following, *ends, gamma, td_lambda)
        return {
            "inputs": inputs.view(steps, -1, *inputs.shape[1:]),
            "action": data["action"].flatten(1),
            "mask": data["mask"].flatten(1, 2),
            "returns": returns.flatten(1),
        }

    def update(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Takes one step of the critic towards the targets, then one of the actor.

        The advantage Q(s, a) - sum pi Q is that of the new critic. An advantage that contains the return has the
        baseline of the critic before its step, because the new critic has already been fitted to this return.

        Args:
            batch: Rows of the result of `targets`: ``inputs`` (R, C, 11, 11), ``action`` (R,) int64, ``mask`` (R, K)
                bool and ``returns`` (R,); R rows, C channels, K actions.

        Returns:
            Losses and statistics of the update by name, detached 0-d tensors.
        """
        values = None
        if self._sampled:
            with torch.no_grad():
                values = self._values(self.critic, batch["inputs"])
        loss, figures = self._critic_loss_fn(batch)
        figures["losses/critic_grad_norm"] = self.critic_adam.step(loss)
        loss, actor_figures = self._actor_loss_fn(batch, values)
        figures |= actor_figures
        figures["losses/actor_grad_norm"] = self.actor_adam.step(loss)
        return figures

    def _values(self, critic: nn.Module, inputs: Tensor) -> Tensor:
        """Computes the action values Q (R, K) of an agent with `critic`; for IAC the state values V (R, 1)."""
        with self.precision.autocast():
            return critic(inputs)

    def _critic_loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the loss of the critic, and {"losses/critic": its detached value} for the log.

        The loss is the mean of (Q(s, a) - G)^2, or for IAC of (V(s) - G)^2. G is the TD(lambda) return.
        """
        values = self._values(self.critic, batch["inputs"])
        if self.counterfactual:
            values = values.gather(1, batch["action"].unsqueeze(1))
        loss = (values.squeeze(1) - batch["returns"]).square().mean()
        return loss, {"losses/critic": loss.detach()}

    @property
    def _sampled(self) -> bool:
        """True if the advantage contains the TD(lambda) return instead of Q(s, a)."""
        return self.config.sampled_advantage or not self.counterfactual

    def _actor_loss(self, batch: dict[str, Tensor], values: Tensor | None = None) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the loss of the actor, and statistics by name for the log.

        The loss is -mean(A log pi(a)) with the advantage A = Q(s, a) - sum pi Q, minus the entropy bonus. A is
        G - sum pi Q with `sampled_advantage`, and G - V(s) for IAC; G is the TD(lambda) return. `values` are Q(s) or
        V(s); None computes them with the current critic.
        """
        config, action = self.config, batch["action"].unsqueeze(1)
        channels = self.spec.obs["maps"].shape[1]
        with self.precision.autocast():
            logits = self.actor(batch["inputs"][:, :channels])
        allowed = self._mixed(logits) * batch["mask"]
        policy = allowed / allowed.sum(1, keepdim=True)
        with torch.no_grad():
            if values is None:
                values = self._values(self.critic, batch["inputs"])
            baseline = (policy * values).sum(1) if self.counterfactual else values.squeeze(1)
            action_value = batch["returns"] if self._sampled else values.gather(1, action).squeeze(1)
            advantage = action_value - baseline
            deviation = advantage.std(correction=0)  # the last mini-batch may be a single row
            if config.normalize_advantage:
                advantage = (advantage - advantage.mean()) / (deviation + 1e-8)
        log_prob = policy.gather(1, action).squeeze(1).clamp(min=1e-8).log()
        entropy = -(policy * policy.clamp(min=1e-8).log()).sum(1).mean()
        loss = -(advantage * log_prob).mean()
        figures = {"losses/actor": loss.detach(), "losses/entropy": entropy.detach(), "losses/advantage": deviation}
        return loss - config.entropy_coef * entropy, figures

    def after_rollout(self, obs: Tree) -> None:
        """Anneals epsilon, and copies the critic to the target critic after every `target_interval` rollouts.

        Args:
            obs: Observations (T steps, N environments, ...) of the rollout. Only their shape is used, to count the
                finished episodes.
        """
        config, steps = self.config, self.spec.max_episode_steps
        self.rollouts += 1
        self.episodes += obs["cell"].shape[0] * obs["cell"].shape[1] // steps * self.world_size
        progress = min(self.episodes / config.epsilon_episodes, 1.0)
        self.epsilon.fill_(config.epsilon_start + progress * (config.epsilon_end - config.epsilon_start))
        if self.rollouts % config.target_interval == 0:
            self.copied.update()

    # -- state ------------------------------------------------------------------------------------------------------

    def initial_carry(self, num_envs: int) -> None:
        """Returns None: the policy has no recurrent state."""

    def policy_state(self) -> dict[str, Tensor]:
        """Returns the parameters of the actor, for the exported policy."""
        return self.actor.state_dict()

    def state_dict(self) -> dict:
        """Returns the complete training state for a checkpoint: the tensors themselves, not copies."""
        names = ("actor", "critic", "target", "actor_adam", "critic_adam", "noise")
        parts = {name: getattr(self, name).state_dict() for name in names}
        return {**parts, "epsilon": self.epsilon, "rollouts": self.rollouts, "episodes": self.episodes}

    def load_state_dict(self, state: dict) -> None:
        """Restores a result of `state_dict` in place."""
        for name in ("actor", "critic", "target", "actor_adam", "critic_adam", "noise"):
            getattr(self, name).load_state_dict(state[name])
        self.epsilon.copy_(state["epsilon"])
        self.rollouts, self.episodes = state["rollouts"], state["episodes"]


def all_actions_allowed(probability: Tensor, noise: Tensor | None) -> tuple[Tensor, Tensor]:
    """Samples actions if all actions are allowed; the default of `choose` in `COMA`.

    Args:
        probability: Probabilities (N, A, K) of N environments, A agents and K actions.
        noise: Uniform random numbers (N, A) in [0, 1); None takes the likeliest actions.

    Returns:
        Actions (N, A) int64, and the mask of allowed actions (N, A, K), which is True everywhere.
    """
    mask = torch.ones_like(probability, dtype=torch.bool)
    if noise is None:
        return probability.argmax(-1), mask
    cumulative = probability.cumsum(-1)
    action = (noise.unsqueeze(-1) * cumulative[..., -1:] >= cumulative[..., :-1]).sum(-1)
    return action, mask
