"""Sizes: divides global sizes among the ranks, and scales learning rates by ``lr_scale``."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Collection, Mapping
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


def largest_valid(check: Callable[[int], None], most: int) -> int:
    """Returns the largest number of ranks, at most `most`, for which sizes are valid.

    Args:
        check: Raises ConfigError if a size does not divide by a number of ranks.
        most: Largest number.

    Raises:
        ConfigError: The sizes are valid for no number.
    """
    for count in range(most, 1, -1):
        with contextlib.suppress(ConfigError):
            check(count)
            return count
    check(1)
    return 1


LOOPS = ("off_policy", "on_policy", "offline")
DIVIDED = ("num_envs", "replay_size", "global_batch_size", "minibatch_rows")
"""Sizes in the sections `LOOPS` that are divided among the ranks."""


def divisible_defaults(
    config: Any, sources: Mapping[str, str], used: Collection[str], world_size: int
) -> tuple[Any, str]:
    """Rounds sizes that the user did not choose up to a multiple of the number of ranks.

    Args:
        config: Configuration of a recipe.
        sources: Qualified name of a setting -> its source, as in `ResolvedConfig`. Defaults, variants and tuned
            sizes are rounded.
        used: Names of the sections that the run reads.
        world_size: Number of ranks.

    Returns:
        A copy of `config` with the rounded sizes, and a notice for the user ("" if no size changed).
    """
    changed: dict[str, int] = {}
    sections = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    for section in [name for name in LOOPS if name in sections and name in used]:
        values = {field.name: getattr(sections[section], field.name) for field in dataclasses.fields(sections[section])}
        own = {name: values[name] for name in DIVIDED if values.get(name)}
        if values.get("batch_size_per_rank"):
            own.pop("global_batch_size", None)
        sizes = {
            name: -(-size // world_size) * world_size
            for name, size in own.items()
            if size % world_size and sources[f"{section}.{name}"].split()[0] in ("default", "variant", "hyper=tuned")
        }
        if sizes:
            config = dataclasses.replace(config, **{section: dataclasses.replace(sections[section], **sizes)})
            changed |= {f"{section}.{name}": size for name, size in sizes.items()}
    if not changed:
        return config, ""
    settings = ", ".join(f"{name}={size}" for name, size in changed.items())
    return config, f"{settings}: rounded up to a multiple of {world_size} ranks."


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
