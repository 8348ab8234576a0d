"""Short runs: measures whether a setting that changes learning lowers the score after equal seconds of training."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from powerband.tune.advise.advice import MIN_GAIN
from powerband.tune.score.trials.trial import run_trial, train_command
from powerband.tune.search.candidates import as_command_line
from powerband.tune.search.preset import remaining_arguments
from powerband.tune.search.score_comparison import ScoreComparison
from powerband.tune.search.search import TuningResult
from powerband.tune.search.space import by_qualified_name

SEEDS = 2
EVALUATIONS = 5
"""Evaluations of each run; the last one counts."""
LARGEST_OVERHEAD = 10.0
"""A run is stopped after this multiple of its seconds of training, for starts and evaluations, and a minute."""


def with_scores(
    result: TuningResult, stage: str, arguments: list[str], seconds: float, progress: Callable[[str, float], object]
) -> TuningResult:
    """Rejects the chosen setting if it changes learning and, in short training runs, scores lower than the present one.

    Args:
        result: Result of a search for throughput.
        stage: Name of the stage (function of the recipe) to run, such as ``train``.
        arguments: Command line arguments of the user, without options that each run sets itself, such as seed.
        seconds: Seconds of training of each run; 0 measures nothing.
        progress: Called with the current step and the share of the runs that are done.

    Returns:
        The result with the scores as `comparison`. If the chosen setting scores lower or its run fails, the fastest
        setting that leaves learning unchanged is chosen instead. If a run fails, a note replaces the comparison.
    """
    recipe, best = result.space.recipe, result.best
    if not seconds or not best.learning:
        return result
    if not recipe.score:
        return replace(result, notes=[*result.notes, "the score was not measured: the recipe names none."])
    settings: dict[str, Mapping[str, Any]] = {"setting": by_qualified_name(result.space, best.setting), "present": {}}
    own = {"setting": remaining_arguments(result, arguments), "present": arguments}  # a setting may replace an argument
    scores: dict[str, list[float]] = {"setting": [], "present": []}
    with tempfile.TemporaryDirectory(prefix="powerband-tune-") as root:
        for index in range(SEEDS):
            for name in ("setting", "present") if index % 2 == 0 else ("present", "setting"):
                progress(f"score: {name}", len(scores["setting"] + scores["present"]) / (2 * SEEDS))
                folder, seed = Path(root) / f"{name}-{index}", result.space.config.run.seed + index
                every_s = seconds / EVALUATIONS
                command = train_command(recipe.name, stage, own[name], settings[name], folder, seed, every_s)
                deadline = time.monotonic() + LARGEST_OVERHEAD * seconds + 60
                run = run_trial(command, folder, recipe.score, math.inf, seconds, deadline)
                if run.outcome in ("failed", "stopped") or not run.curve:
                    reason = run.message.rstrip(". ") or "no evaluation ended in time"
                    if name == "present":
                        return replace(result, notes=[*result.notes, f"the score was not measured: {reason}."])
                    return _rejected(result, f"its run did not end: {reason}")
                scores[name].append(run.curve[-1].score)
    comparison = ScoreComparison(recipe.score, seconds, scores["setting"], scores["present"])
    if not comparison.is_worse:
        return replace(result, comparison=comparison)
    return _rejected(replace(result, comparison=comparison), "its score is lower")


def _rejected(result: TuningResult, reason: str) -> TuningResult:
    """Returns a result that chooses the fastest setting which leaves learning unchanged, with a note on the reason."""
    neutral = [each for each in result.verified if not each.learning and len(each.rates) >= len(result.baseline.rates)]
    fastest = max(neutral, key=lambda each: each.measured)
    chosen = fastest if fastest.measured >= MIN_GAIN * result.baseline.measured else result.baseline
    note = f"{as_command_line(result.best.setting)}: faster, but not used, because {reason}."
    return replace(result, best=chosen, notes=[*result.notes, note])
