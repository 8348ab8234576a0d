"""Sizes: divides global sizes among the ranks, and scales learning rates by ``lr_scale``."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal

from powerband.core.errors import ConfigError


def per_rank(name: str, total: int, world_size: int) -> int:
    """One rank's part of a global size.

    Args:
        name: Name of the setting, for the message.
        total: Size over all ranks.
        world_size: Number of ranks.

    Raises:
        ConfigError: `total` is not divisible by `world_size`.
    """
    assert world_size >= 1, world_size
    if total % world_size == 0:
        return total // world_size
    below = total // world_size * world_size
    near = f"{below} or {below + world_size}" if below > 0 else str(world_size)
    raise ConfigError(
        f"{name}={total} counts all ranks and is not divisible by {world_size} ranks. Write {name}={near}."
    )


def scaled_lr(section: Any, rule: Literal["none", "sqrt", "linear"], world_size: int) -> tuple[Any, str]:
    """An algorithm's section with its learning rates scaled by ``lr_scale``.

    Args:
        section: Frozen dataclass whose learning rates are the fields named lr or ending in _lr.
        rule: Value of ``lr_scale``.
        world_size: Number of ranks.

    Returns:
        The section, and a line for the start banner.

    Source: linear, Goyal et al. 2017; sqrt, Krizhevsky 2014.
    """
    factor = {"none": 1.0, "sqrt": math.sqrt(world_size), "linear": float(world_size)}[rule]
    rates = {f.name: getattr(section, f.name) for f in dataclasses.fields(section) if f.name.split("_")[-1] == "lr"}
    scaled = {name: rate * factor for name, rate in rates.items()}
    line = ", ".join(f"{name} {rate:g}" for name, rate in scaled.items())
    line += f" (lr_scale={rule}: times {factor:g} for {world_size} rank(s))"
    return dataclasses.replace(section, **scaled), line
