"""Bounds: checks of continuous actions, and the scale between the units of an environment and those of a network."""

from __future__ import annotations

import torch
from torch import Tensor

from powerband.core.errors import ConfigError
from powerband.data.types import EnvSpec

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
