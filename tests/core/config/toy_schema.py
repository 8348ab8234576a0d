"""A small configuration with two algorithms, for the tests of core.config."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import pytest

from powerband.core.config import ResolvedConfig, RunConfig, resolve
from powerband.core.config.old_options import OldOptions
from powerband.core.errors import ConfigError


@dataclass(frozen=True)
class Loop:
    update_interval: int = 1
    """Transitions between updates."""
    global_batch_size: int = 256
    """Transitions of an update."""
    num_envs: int = 4
    """Environments."""


@dataclass(frozen=True)
class Rollouts:
    num_envs: int = 8
    """Environments."""


@dataclass(frozen=True)
class Sac:
    lr: float = 3e-4
    """Learning rate."""
    hidden: tuple[int, ...] = (256, 256)
    """Widths of the hidden layers."""
    target_entropy: float | None = None
    """Target entropy; None chooses it."""

    def __post_init__(self) -> None:
        if self.lr <= 0:
            raise ValueError(f"lr={self.lr} is not above 0. Write lr=3e-4.")


@dataclass(frozen=True)
class Ppo:
    lr: float = 1e-3
    """Learning rate."""
    clip_range: tuple[float, float] = (0.8, 1.2)
    """Two values."""


@dataclass(frozen=True)
class Config:
    algo: Literal["sac", "ppo", "both"] = "sac"
    """Algorithm."""
    note: str | None = None
    """Free text."""
    run: RunConfig = field(default_factory=lambda: RunConfig(env_steps=1000))
    loop: Loop = field(default_factory=Loop)
    rollouts: Rollouts = field(default_factory=Rollouts)
    sac: Sac = field(default_factory=Sac)
    ppo: Ppo = field(default_factory=Ppo)


VARIANTS = {"demo": ["loop.num_envs=32", "--sac.lr 1e-2"], "mapped": {"loop.num_envs": 64, "sac": {"hidden": (8, 8)}}}
RENAMED = {
    "batch_size": ("global_batch_size", "the guide's was per rank"),
    "old.interval": "loop.update_interval",
    "max_episodes": (None, "Write run.env_steps=episodes x 200."),
}
SECTIONS = {"sac": ("sac", "loop"), "ppo": ("ppo", "rollouts")}


def read(*arguments: str) -> ResolvedConfig:
    return resolve(
        Config, arguments, variants=VARIANTS, old=OldOptions(RENAMED), sections=SECTIONS, help_command="toy --help"
    )


def refused(*arguments: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read(*arguments)
    return str(caught.value)
