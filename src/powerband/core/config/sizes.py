"""Sizes: divides global sizes among the ranks, and scales learning rates by ``lr_scale``."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal

from powerband.core.errors import ConfigError


def per_rank(name: str, total: int, world_size: int) -> int:
    """Divides a global size, such as a number of environments, equally among the ranks.

    Args:
        name: Name of the setting, for the message.
        total: Size over all ranks.
        world_size: Number of ranks.

    Returns:
        The size of one rank.

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
    """Scales the learning rates of an algorithm by the number of ranks.

    Args:
        section: Settings of the algorithm, a frozen dataclass. Its learning rates are the fields named lr or ending
            in _lr.
        rule: "linear" multiplies by `world_size`, "sqrt" by its square root, "none" by 1.
        world_size: Number of ranks.

    Returns:
        A copy of `section` with the scaled rates, and a text about them for the banner that a run prints at its start.

    Source: linear, Goyal et al. 2017; sqrt, Krizhevsky 2014.
    """
    factor = {"none": 1.0, "sqrt": math.sqrt(world_size), "linear": float(world_size)}[rule]
    rates = {f.name: getattr(section, f.name) for f in dataclasses.fields(section) if f.name.split("_")[-1] == "lr"}
    scaled = {name: rate * factor for name, rate in rates.items()}
    line = ", ".join(f"{name} {rate:g}" for name, rate in scaled.items())
    line += f" (lr_scale={rule}: times {factor:g} for {world_size} rank(s))"
    return dataclasses.replace(section, **scaled), line
