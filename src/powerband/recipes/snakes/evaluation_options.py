"""Defines the options of ``powerband eval`` for a run of snakes, without importing torch."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Literal

from powerband.core.config.ranges import Range, Seed, Threads, check_ranges
from powerband.core.config.texts import shortened
from powerband.core.errors import ConfigError
from powerband.recipes.snakes.config import Games

OLD_EVALUATION_NAMES = {"opponents": "policies", "threads": "workers"}


@dataclass(frozen=True)
@check_ranges
class Evaluation:
    """Options of ``powerband eval`` for a run of the recipe snakes, such as the opponents and the number of games."""

    episodes: Games = 100
    """Games against each opponent; the sides are swapped half way."""
    policies: tuple[str, ...] = ("random", "greedy", "greedy_torus")
    """Opponents of the run's policy: random, greedy, greedy_torus, or the folder of another run or checkpoint."""
    seed: Seed = 10_000
    """Seed of the games."""
    video: bool = True
    """Record the first game against each opponent."""
    gpus: str = "none"
    """Device of the policy: none for the CPU, or the index of one GPU, such as 0."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Precision of the networks."""
    workers: Threads = 0
    """CPU threads of the games and of the policy; 0 is the number of the run (threads)."""
    play: Literal["", "terminal", "browser"] = ""
    """Play by hand against the run, in the terminal or on a local page for the browser, instead of an evaluation."""
    human: Literal["snake", "team"] = "snake"
    """What a person plays (play): the first snake, whose mates the run plays, or all three snakes of the team."""
    moves_per_s: Annotated[float, Range(at_least=0, at_most=20)] = 4.0
    """Moves per second (play); 0 waits for a key before each move."""
    port: Annotated[int, Range(at_least=0, at_most=65_535)] = 0
    """Port of the page (play=browser); 0 takes a free one."""
    export: str = ""
    """Write the policy as a submission for a platform instead of an evaluation: jidi:FOLDER, a new folder."""

    def __post_init__(self) -> None:
        platform, _, folder = self.export.partition(":")
        if self.export and (platform != "jidi" or not folder):
            raise ConfigError(
                f"export={shortened(self.export)} names no platform and folder. Write export=jidi:FOLDER."
            )
        if self.export and self.play:
            raise ConfigError(f"export and play={self.play} cannot be combined. Write one of them.")
        self._refuse_unused()
        if self.episodes % 2:
            raise ConfigError(
                f"episodes={self.episodes} is not an even number. The teams swap sides after half of the "
                f"games. Write an even number of games, for example episodes=100."
            )

    def _refuse_unused(self) -> None:
        """Refuses options that have no effect with, or without, `play` and `export`."""
        table, game = ("episodes", "policies", "gpus", "precision", "workers"), ("human", "moves_per_s")
        if self.export:
            unused = dict.fromkeys((*table, "seed", *game, "port"), "with export")
        elif self.play:
            unused = dict.fromkeys(table, f"with play={self.play}")
        else:
            unused = dict.fromkeys(game, "without play=terminal or play=browser")
        if self.play != "browser":
            unused["port"] = "without play=browser"
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name in unused and value != each.default:
                shown = ",".join(value) if isinstance(value, tuple) else value
                raise ConfigError(f"{each.name}={shown} has no effect {unused[each.name]}. Leave {each.name} out.")
