"""Configuration of snakes: its options, algorithms and named variants. This file does not import torch."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from fractions import Fraction
from typing import Annotated, Any, Literal

from powerband.algos.settings import DDPGConfig, PPOConfig
from powerband.core.config import RunConfig
from powerband.core.config.ranges import Interval, Range, Share, SizeOrZero, check_ranges
from powerband.core.config.saved import named_run, recipe_of
from powerband.core.config.schema import not_default
from powerband.core.config.texts import shortened
from powerband.core.errors import ConfigError
from powerband.core.machine.device import expected_ranks
from powerband.core.recipe import Algorithm
from powerband.loops.config import OffPolicyConfig, OnPolicyConfig

EPISODE_STEPS = 200
"""Number of moves after which a game ends."""

SCRIPTED = ("random", "greedy", "greedy_torus")
"""Players that follow a fixed rule."""
OPPONENTS = ("auto", "self", *SCRIPTED)
"""Values of `Config.opponent` that are not the folder of a run or checkpoint."""

Games = Annotated[int, Range(at_least=2, at_most=10_000_000)]

ALGORITHMS = {
    "ddpg": Algorithm("powerband.algos.ddpg:DDPG", DDPGConfig(), "off_policy"),
    "bicnet": Algorithm("powerband.algos.ddpg:DDPG", DDPGConfig(), "off_policy", section="ddpg"),
    "ppo": Algorithm("powerband.algos.ppo:PPO", PPOConfig(lr=1e-3, activation="relu"), "on_policy"),
}


@dataclass(frozen=True)
@check_ranges
class Config:
    algo: str = "ppo"
    """Algorithm: ddpg and bicnet as in the guide, or ppo, which supports self-play and is the strongest."""
    observation: Literal["auto", "features", "planes", "fork35", "baseline26"] = "auto"
    """Observation of a snake; auto is features for ppo, fork35 for ddpg and bicnet."""
    plane_channels: Annotated[int, Range(at_least=1, at_most=512)] = 32
    """Channels of the first convolution of observation=planes; the other two have twice as many."""
    reward: Literal["auto", "mixed", "game", "shaped"] = "auto"
    """Reward: mixed is 0.8 own + 0.1 team difference; auto is mixed for ppo, shaped for ddpg and bicnet."""
    opponent: str = "auto"
    """Player of the other team in training: self, random, greedy, greedy_torus, or the folder of a run or checkpoint,
    whose policy does not learn; auto is self for ppo, random for ddpg and bicnet."""
    mirrored: Share = 0.75
    """Share of the boards on which the learner plays both teams (opponent=self); past policies play on the others."""
    pool_size: Annotated[int, Range(at_least=1, at_most=10_000)] = 4
    """Past policies in the pool (opponent=self)."""
    snapshot_interval: Interval = 20
    """Rollouts between two snapshots for the pool."""
    episodes: SizeOrZero = 0
    """Budget in episodes of 200 steps over all ranks, instead of env_steps; 0 uses env_steps."""
    eval_games: Games = 100
    """Games against random and against greedy in an evaluation during training."""
    run: RunConfig = field(
        default_factory=lambda: RunConfig(env_steps=100_000_000, precision="auto", save_interval=5_000_000)
    )
    off_policy: OffPolicyConfig = field(default_factory=lambda: OffPolicyConfig(num_envs=1, global_batch_size=512))
    on_policy: OnPolicyConfig = field(default_factory=lambda: OnPolicyConfig(num_envs=256, gamma=0.98))
    ddpg: DDPGConfig = field(default_factory=DDPGConfig)
    ppo: PPOConfig = field(default_factory=lambda: PPOConfig(lr=1e-3, activation="relu"))

    def __post_init__(self) -> None:
        if self.eval_games % 2:
            raise ConfigError(
                f"eval_games={self.eval_games} is not an even number. The teams swap sides after half of the "
                f"games. Write an even number of games, for example eval_games=100."
            )
        if not self.opponent:
            raise ConfigError(f"opponent is empty. Write {', '.join(OPPONENTS)}, or the folder of a run or checkpoint.")
        if self.algo != "ppo" and self.opponent == "self":
            raise ConfigError(
                f"opponent=self needs algo=ppo. With algo={self.algo}, write opponent=random, greedy or greedy_torus."
            )

    @property
    def loop(self) -> OffPolicyConfig | OnPolicyConfig:
        """Settings of the training loop of the algorithm: `on_policy` for ppo, `off_policy` for ddpg and bicnet."""
        return self.on_policy if self.algo == "ppo" else self.off_policy


def finalize(config: Config, stage: str) -> Config:
    """Replaces the automatic choices of a configuration with values.

    Args:
        config: Configuration as the user wrote it.
        stage: Name of the stage of the recipe, here always train. It changes nothing.

    Returns:
        The configuration without options that are ``auto``. If `episodes` was not 0, ``run.env_steps`` is the same
        budget in environment steps, and `episodes` is 0.

    Raises:
        ConfigError: The policy of ppo has a memory, or `opponent` names no run of snakes.
    """
    ppo = config.algo == "ppo"
    if ppo and config.ppo.gru:
        raise ConfigError(
            f"ppo.gru={config.ppo.gru} is not supported by snakes, whose players have no memory from move to move. "
            f"Write ppo.gru=0."
        )
    run = replace(config.run, env_steps=EPISODE_STEPS * config.episodes) if config.episodes else config.run
    chosen = replace(config, run=run, episodes=0)
    if chosen.observation == "auto":
        chosen = replace(chosen, observation="features" if ppo else "fork35")
    if chosen.reward == "auto":
        chosen = replace(chosen, reward="mixed" if ppo else "shaped")
    if chosen.opponent == "auto":
        chosen = replace(chosen, opponent="self" if ppo else "random")
    if chosen.opponent not in OPPONENTS:
        chosen = replace(chosen, opponent=_stored_opponent(chosen))
    return chosen


def _stored_opponent(config: Config) -> str:
    """Returns the absolute path of the run or checkpoint that `opponent` names.

    A resumed run has the policy in its checkpoint, so its opponent may no longer exist.

    Raises:
        ConfigError: The run does not exist or belongs to another recipe.
    """
    named = config.opponent
    if named == "last":
        raise ConfigError("opponent=last names another run after each start. Write the folder of the run.")
    path = os.path.abspath(os.path.expanduser(named))
    if config.run.resume and not os.path.exists(path):
        return path
    if not os.path.exists(path) and os.sep not in named:
        raise unknown_opponent(named, OPPONENTS)
    run = named_run(path, "opponent")
    if (recipe := recipe_of(run)) != "snakes":
        raise ConfigError(f"opponent={shortened(named)} is a run of {recipe}. Name a run of snakes.")
    return path


def unknown_opponent(name: str, available: tuple[str, ...]) -> ConfigError:
    """Returns the error for a name that is neither a folder nor one of the `available` players."""
    near = get_close_matches(name, available, 1)
    hint = f"Did you mean {near[0]!r}? " if near else ""
    return ConfigError(
        f"Unknown opponent {shortened(name)!r}. {hint}Available: {', '.join(available)}, or the folder of a run or "
        f"checkpoint of snakes."
    )


def notices(config: Config) -> list[str]:
    """Returns messages about options that have no effect, or another effect than their value says.

    Args:
        config: Configuration as the user wrote it, before `finalize` replaces opponent=auto.
    """
    found = []
    if config.observation != "planes" and (unused := _changed(config, "plane_channels")):
        found.append(f"{unused}: no effect without observation=planes. Leave it out.")
    if config.algo == "ppo" and config.opponent in ("auto", "self"):
        return found + _notices_of_mirrored(config)
    if unused := _changed(config, "mirrored", "pool_size", "snapshot_interval"):
        found.append(f"{unused}: no effect without self-play, which is algo=ppo with opponent=self. Leave it out.")
    return found


def _changed(config: Config, *options: str) -> str:
    """Returns those of the options that do not have their default, as the user writes them; "" if none."""
    return ", ".join(f"{name}={value}" for name, value in not_default(config, options).items())


def _notices_of_mirrored(config: Config) -> list[str]:
    """Returns messages about a share of mirrored boards that is rounded on each rank."""
    boards, ranks = config.on_policy.num_envs, expected_ranks(config.run)
    if boards % ranks:
        return []  # `check` refuses it
    found, boards = [], boards // ranks
    exact = config.mirrored * boards
    mirrored = round(exact)
    if ranks > 1 and abs(exact - mirrored) > 1e-6:
        whole = Fraction(config.mirrored).limit_denominator(1000).denominator * ranks
        found.append(
            f"mirrored={config.mirrored:g} of the {boards} boards on each of {ranks} ranks is rounded to {mirrored} "
            f"boards, so another number of ranks has another share. Write on_policy.num_envs="
            f"{-(-boards * ranks // whole) * whole} for a whole number."
        )
    if mirrored == boards and config.mirrored < 1:
        found.append(
            f"mirrored={config.mirrored:g} leaves none of the {boards} boards on each rank to past policies, so "
            f"pool_size and snapshot_interval have no effect. Write mirrored={(boards - 1) / boards:g} or less, or "
            f"mirrored=1."
        )
    return found


def check(config: Config, world_size: int) -> None:
    """Checks that the numbers of boards and the batch sizes of the training loop are divisible by the number of ranks.

    A rank is one training process; `world_size` is their number.

    Raises:
        ConfigError: A size is not divisible.
    """
    config.loop.check(world_size)


VARIANTS: dict[str, dict[str, Any]] = {
    "demo": {  # sizes from `tune snakes objective=score target=0.9`: 90 % against greedy in a third of the time
        "run.time_limit_s": 75,
        "run.env_steps": 1_000_000_000,
        "run.log_interval_s": 5,
        "on_policy.num_envs": 512,
        "on_policy.num_steps": 16,
        "on_policy.epochs": 4,
        "on_policy.minibatches": 8,
        "on_policy.gamma": 0.96,
        "ppo.lr": 1.6e-3,
        "ppo.hidden": (64, 64),
    },
    "full": {"run.time_limit_s": 720, "run.env_steps": 1_000_000_000, "ppo.hidden": (256, 256)},
    "guide": {  # 1/32 of the updates of the guide: 10 minutes on one core instead of hours
        "algo": "ddpg",
        "episodes": 3600,
        "off_policy.num_envs": 32,
        "off_policy.update_interval": 32,
        "off_policy.updates_per_interval": 1,
    },
    "smoke": {
        "run.threads": 1,  # loops for several threads take twice as long to compile
        "run.env_steps": 4_000,
        "on_policy.num_envs": 16,
        "ppo.hidden": (32, 32),
    },
}
IMPLIED_ALGO = dict.fromkeys(("update_interval", "batch_size", "max_episodes", "a_lr", "c_lr"), "ddpg")
"""Option of the guide -> its algorithm, which the option implies if the user names none."""
OLD_NAMES = {
    "batch_size": ("off_policy.global_batch_size", "sizes are over all ranks; the guide's was per rank"),
    "max_episodes": ("episodes", "over all ranks; the guide's was per rank"),
    "a_lr": "ddpg.actor_lr",
    "c_lr": "ddpg.critic_lr",
    "warmup": "off_policy.learning_starts",
    "off_policy.warmup": "off_policy.learning_starts",
    "num_boards": "on_policy.num_envs",
}
