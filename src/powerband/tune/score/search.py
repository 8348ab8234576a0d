"""ScoreSearch: finds the settings with the shortest time to a score, by training runs in child processes."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from powerband.tune.score.curve import best_score
from powerband.tune.score.setting_space import SettingSpace
from powerband.tune.score.trials.own_cores import pinned
from powerband.tune.score.trials.rungs import Goal, SettingResult, TrialRecord, settings_of
from powerband.tune.score.trials.scheduler import TrialScheduler
from powerband.tune.score.trials.trial import TrialRun, run_trial
from powerband.tune.score.verification import Runner, Verification, verified

VERIFICATION_SLACK = 2
"""Budget of a run of the verification as a multiple of a trial's, so that slow seeds of the present settings count
fully. Without a time of the present settings it is that of a trial."""


@dataclass(frozen=True)
class ScoreResult:
    """Result of a search for the time to a score.

    Attributes:
        score: Name of the score.
        goal: Target, start and budget, in seconds of this machine.
        space: Settings of the search.
        present: Coordinates of the present settings.
        settings: Settings whose trials ended, the best first.
        records: All starts of trials, in seconds of this machine.
        verification: Runs on fresh seeds; None if no setting was better than the present one, or none was reached.
        chosen: Coordinates of the setting that the verification confirmed; None keeps the present settings.
        importances: Dimension -> share of its importance.
        best_score: Best score of any trial.
        seconds: Duration of the search and the verification.
        folder: Folder of the study.
    """

    score: str
    goal: Goal
    space: SettingSpace
    present: Mapping[str, Any]
    settings: list[SettingResult]
    records: list[TrialRecord]
    verification: Verification | None
    chosen: Mapping[str, Any] | None
    importances: dict[str, float]
    best_score: float | None
    seconds: float
    folder: Path


def search_and_verify(trials: TrialScheduler) -> ScoreResult:
    """Runs the trials of a search, compares the best setting with the present one, and returns the result.

    Raises:
        ConfigError: The present settings cannot be trained, or the study cannot be used.
    """
    with pinned(trials.core_groups[0]):  # the present settings and the verification have as many cores as any trial
        trials.run()
        goal, records = trials.goal(), trials.study.records()
        results, unfinished = settings_of(records, goal), settings_of(records, goal, done=False)
        best = trials.candidate(records, goal)
        present = next((each for each in results if each.params == trials.present), None)
        verification = compare(trials, best, present, goal) if best is not None else None
    chosen = best.params if best is not None and verification is not None and verification.is_faster else None
    scores = [score for each in records if (score := best_score(each.curve)) is not None]
    return ScoreResult(
        score=trials.score,
        goal=goal,
        space=trials.space,
        present=trials.present,
        settings=results or unfinished,
        records=records,
        verification=verification,
        chosen=chosen,
        importances=trials.study.importances([(each.params, each.value) for each in unfinished]),
        best_score=max(scores, default=None),
        seconds=time.monotonic() - trials.began,
        folder=trials.folder,
    )


def compare(trials: TrialScheduler, best: SettingResult, present: SettingResult | None, goal: Goal) -> Verification:
    """Runs the best and the present setting on fresh seeds.

    Args:
        trials: Scheduler of the search.
        best: Setting that looks better than the present one.
        present: Result of the present setting; None if its trial did not end.
        goal: What trials are compared by.
    """

    def runner(params: Mapping[str, Any], name: str) -> Runner:
        settings = trials.space.settings(params)

        def run(seed: int, limit_s: float) -> TrialRun:
            trials.report(f"verification: {name}")
            folder = trials.folder / "verification" / f"{name}-{seed}-{int(time.time())}"
            command = trials.command(settings, folder, seed, goal)
            done = run_trial(command, folder, trials.score, trials.target, limit_s, trials.deadline)
            shutil.rmtree(folder / "checkpoints", ignore_errors=True)
            return done

        return run

    return verified(
        runner(best.params, "best"),
        runner(trials.present, "present"),
        trials.target,
        goal.budget * (VERIFICATION_SLACK if present and None not in present.times else 1),
        trials.options.seeds,
        trials.seed,
        lambda: trials.deadline - time.monotonic(),
    )
