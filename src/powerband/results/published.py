"""Published rows: the training, the evaluation and the figures of each seed, and the interval of one more run."""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from powerband.core.config.command_line import checked_choice

T_975 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}
"""Quantile 0.975 of Student's t by degrees of freedom."""
SHARES = ("decided_won", "success")
"""Metrics that are a share of the trials of an evaluation."""


@dataclass(frozen=True)
class Figure:
    """One metric of the trained policy in one part of an evaluation.

    Attributes:
        label: Part of the evaluation, such as the opponent, the policy or the task.
        metric: Key of the metric in the rows of the evaluation.
        values: Value of each seed.
        trials: Episodes, games or missions of each value.
    """

    label: str
    metric: str
    values: tuple[float, ...]
    trials: int

    def prediction_interval(self) -> tuple[float, float]:
        """Returns the interval that contains the value of one further seed with a probability of 95 %.

        It is mean +- t sqrt(s² (1 + 1/n)) with the variance s² of n seeds, which assumes a normal distribution. The
        variance of a share is at least the binomial one of its trials, and the interval of a share stays in 0..1.
        """
        count, mean = len(self.values), statistics.fmean(self.values)
        variance = statistics.variance(self.values)
        if self.metric in SHARES:
            share = (mean * self.trials * count + 1) / (self.trials * count + 2)  # never 0 or 1
            variance = max(variance, share * (1 - share) / self.trials)
        half_width = T_975[count - 1] * math.sqrt(variance * (1 + 1 / count))
        low, high = mean - half_width, mean + half_width
        return (max(0.0, low), min(1.0, high)) if self.metric in SHARES else (low, high)


@dataclass(frozen=True)
class Row:
    """One published row.

    Attributes:
        name: Name of the row.
        train: Arguments after ``powerband train``, without seed and run folder.
        evaluate: Arguments after ``powerband eval RUN``.
        seeds: Seeds of the published runs.
        seconds: Mean duration of a training in seconds.
        machine: Processor, cores and GPU of the published runs.
        figures: Figures of the trained policy.
    """

    name: str
    train: tuple[str, ...]
    evaluate: tuple[str, ...]
    seeds: tuple[int, ...]
    seconds: float
    machine: str
    figures: tuple[Figure, ...]


@cache
def rows() -> dict[str, Row]:
    """Returns name -> published row, in alphabetical order."""
    stored = json.loads(files("powerband.results").joinpath("rows.json").read_text(encoding="utf-8"))
    return {row["name"]: _row(row) for row in stored}


def row(name: str) -> Row:
    """Returns the row `name`.

    Raises:
        ConfigError: No published row has this name.
    """
    return rows()[checked_choice(name, tuple(rows()), "row")]


def row_label(evaluated: dict) -> str:
    """Returns the part of an evaluation that a row of its JSON describes; it is the same for all seeds."""
    if "env_id" in evaluated:
        policy = evaluated.get("policy", "policy")
        return str(evaluated["env_id"]) if policy == "policy" else f"{evaluated['env_id']} {policy}"
    label = next((str(evaluated[key]) for key in ("opponent", "policy") if key in evaluated), "")
    return f"{label} on {evaluated['task']}" if "task" in evaluated and "policy" in evaluated else label


def trials(evaluated: dict) -> int:
    """Returns the number of episodes, games or missions of a row of an evaluation."""
    return next(int(evaluated[key]) for key in ("games", "missions", "episodes") if key in evaluated)


def _row(stored: dict) -> Row:
    figures = tuple(Figure(**{**figure, "values": tuple(figure["values"])}) for figure in stored["figures"])
    lists = {key: tuple(stored[key]) for key in ("train", "evaluate", "seeds")}
    return Row(**{**stored, **lists, "figures": figures})
