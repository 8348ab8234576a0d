"""Options of ``powerband tune objective=score``. This file does not import torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from powerband.core.config.ranges import MAX_PROCESSES, FilePath, Finite, Range, Seconds, check_ranges
from powerband.core.errors import ConfigError

Objective = Literal["throughput", "score"]
MIN_SECONDS = 60.0
MIN_VERIFICATION_SEEDS = 3
"""Fresh seeds per setting below which no preset is written."""


@dataclass(frozen=True)
class ObjectiveOptions:
    """Option ``objective`` of ``powerband tune``, which determines the other options of the command."""

    objective: Objective = "throughput"
    """throughput finds the settings with the most environment steps per second, score those with the shortest time to
    a score."""


@dataclass(frozen=True)
@check_ranges
class ScoreOptions:
    """Options of ``powerband tune objective=score``, such as the target score and the time budget of the search."""

    target: Finite | None = None
    """Score to reach: the figure of an evaluation that the recipe names, such as the return. It has no default."""
    seconds: Annotated[float, Range(at_least=MIN_SECONDS, at_most=1e9)] = 1800.0
    """Budget of the command in seconds, with starting processes, evaluations and the verification."""
    trial_seconds: Seconds = 0.0
    """Largest number of training seconds of a trial; 0 is a sixteenth of the budget, and what the present settings
    need once they have reached the score."""
    seeds: Annotated[int, Range(at_least=MIN_VERIFICATION_SEEDS, at_most=1000)] = 10
    """Fresh seeds of each setting in the verification; fewer run if the budget ends."""
    parallel: Annotated[int, Range(at_least=1, at_most=MAX_PROCESSES)] = 1
    """Trials at a time, each on its own cores; at most cores / threads, so write threads= too."""
    storage: str = ""
    """Study to share: a file of Optuna's journal on a shared disk, or a URL such as postgresql://user@host/name. Every
    machine runs the same command. Empty uses a SQLite file in study_dir."""
    study_dir: FilePath = ""
    """Folder of the study with the run folders of its trials; empty is a new one under runs. An existing study goes
    on."""

    def goal(self, score: str) -> float:
        """Returns the score to reach, the option ``target``.

        Args:
            score: Name of the score, for the error message.

        Raises:
            ConfigError: The target is missing.
        """
        if self.target is None:
            raise ConfigError(
                f"objective=score needs a target: the {score} of an evaluation that a policy must reach. Write "
                f"target=VALUE."
            )
        return self.target
