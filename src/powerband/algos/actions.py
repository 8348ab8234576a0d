"""Actions: checks of action spaces, the units of networks and environments, and the distributions of policies."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from powerband.core.errors import ConfigError
from powerband.core.noise import Noise
from powerband.data.types import EnvSpec, Tree
from powerband.nets.distributions import Categorical, DiagGaussian, MultiCategorical

Distribution = Categorical | MultiCategorical | DiagGaussian

SMALLEST_SCALE = 1e-8
"""Half the width between equal bounds, so that a constant entry of an action divides nothing by 0."""
FLATTEN = (
    "Flatten the actions with gymnasium.wrappers.TransformAction; wrap.wrappers=MODULE:NAME applies a wrapper of your "
    "own."
)


def action_scale(algo: str, spec: EnvSpec, device: torch.device) -> tuple[Tensor, Tensor]:
    """Returns the centre and half the width of the bounds, (D,) float32 each, of actions of D entries.

    Args:
        algo: Name of the algorithm, for the error messages.
        spec: Spaces of the environments.
        device: Device of the result.

    Raises:
        ConfigError: The actions are discrete or unbounded, or are not one vector per environment.
    """
    if spec.low is None or spec.high is None or not bool(torch.isfinite(torch.stack([spec.low, spec.high])).all()):
        raise ConfigError(
            f"algo={algo} needs continuous actions with finite bounds. Bound the actions, or write algo=ppo. Write "
            f"algo=ppo for discrete actions too."
        )
    if spec.num_agents is not None:
        raise ConfigError(
            f"algo={algo} needs one action vector per environment, but this one has {spec.num_agents} agents. Write "
            f"algo=ppo."
        )
    if len(spec.action.shape) != 1:
        raise ConfigError(
            f"algo={algo} needs one action vector per environment, not the shape {spec.action.shape}. {FLATTEN}"
        )
    return centre_and_scale(spec.low, spec.high, device)


def centre_and_scale(low: Tensor, high: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
    """Returns the centre and half the width of finite bounds (..., D) on `device`; the width is above 0."""
    scale = ((high - low) / 2).clamp(min=SMALLEST_SCALE)
    return ((high + low) / 2).to(device, torch.float32), scale.to(device, torch.float32)


class PolicyActions:
    """Actions of a stochastic policy: their distribution, their samples, and what the environment receives.

    Continuous actions are sampled in units of half their range around its centre. The environment receives them clipped
    to the bounds; the rollout stores the unclipped sample as ``raw_action``, to which the log-probability refers.

    Shapes: N environments, A agents if there are several, R rows (one per environment and agent), K discrete actions, D
    entries of a continuous or MultiDiscrete action.

    Args:
        algo: Name of the algorithm, for the error messages.
        spec: Spaces of the environments.
        device: Device of the actions.

    Raises:
        ConfigError: Continuous actions are not one vector per environment or agent.

    Attributes:
        discrete: True for discrete actions, of one entry or several.
        heads: Number of choices of each of D entries of a MultiDiscrete action; () for other actions.
        outputs: Number of outputs of the network per row.
        field: Name of the field of a rollout that contains the samples.
    """

    def __init__(self, algo: str, spec: EnvSpec, device: torch.device) -> None:
        self.discrete, self.heads = spec.num_actions is not None, spec.action_heads
        leading = 1 if spec.num_agents is None else 2
        if not self.discrete and len(spec.action.shape) != leading:
            raise ConfigError(
                f"algo={algo} needs continuous actions of one vector per environment or agent, not the shape "
                f"{spec.action.shape}. {FLATTEN}"
            )
        self._dim = spec.action.shape[-1] if self.heads or not self.discrete else 1
        self._rows = (-1,) if self.discrete and not self.heads else (-1, self._dim)
        self.outputs = self._dim if spec.num_actions is None else spec.num_actions
        self.field = "action" if self.discrete else "raw_action"
        if not self.discrete:
            unit = torch.ones(spec.action.shape)
            low, high = -unit if spec.low is None else spec.low, unit if spec.high is None else spec.high
            bounded = torch.isfinite(low) & torch.isfinite(high)  # entries without bounds are not clipped
            low, high = torch.where(bounded, low, -unit), torch.where(bounded, high, unit)
            self._centre, self._scale = centre_and_scale(low, high, device)
            self._limit = torch.where(bounded, 1.0, torch.inf).to(device)

    def distribution(
        self, outputs: Tensor, log_std: Tensor | None, mask: Tensor | None, temperature: float = 1.0
    ) -> Distribution:
        """Returns the distribution of the actions.

        Args:
            outputs: Outputs of the network (R, K) or (R, D).
            log_std: Log standard deviations (D,) of continuous actions; None for discrete ones.
            mask: Bools (R, K), True for allowed discrete actions; None allows all.
            temperature: Raises the probabilities to the power of 1 / temperature and normalises them.
        """
        if log_std is not None:
            return DiagGaussian(outputs, log_std if temperature == 1 else log_std + 0.5 * math.log(temperature))
        logits = outputs if temperature == 1 else outputs.float() / temperature
        return MultiCategorical(logits, self.heads, mask) if self.heads else Categorical(logits, mask)

    def sample(self, policy: Distribution, noise: Noise, agents: int, pink: bool = False) -> Tensor:
        """Samples actions (R,) or (R, D).

        Args:
            policy: The distribution.
            noise: Random numbers of N environments.
            agents: Rows per environment.
            pink: Noise of continuous actions that is correlated in time, in place of white noise.
        """
        if self.discrete:
            return policy.sample(noise.uniform(agents * self._dim).view(self._rows))
        normal = noise.pink(agents, self._dim) if pink else noise.normal(agents, self._dim)
        return policy.sample(normal.view(-1, self._dim))

    def rows(self, stored: Tree) -> Tensor:
        """Folds the samples in a batch (..., [D]) to rows (R,) or (R, D)."""
        return stored.reshape(self._rows)

    def for_env(self, sampled: Tensor, lead: torch.Size) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns what the environment receives, and what the rollout stores in addition.

        Args:
            sampled: Samples (R,) or (R, D).
            lead: Shape (N, [A]) of the leading axes.

        Returns:
            Actions (N, [A]) int64 if discrete, (N, D) int64 if MultiDiscrete, else (N, [A,] D) float32; and for
            continuous actions the field ``raw_action`` (N, [A,] D).
        """
        if self.discrete:
            return sampled.view(*lead, self._dim) if self.heads else sampled.view(lead), {}
        raw = sampled.view(*lead, self._dim)
        return torch.addcmul(self._centre, self._scale, raw.clamp(-self._limit, self._limit)), {"raw_action": raw}
