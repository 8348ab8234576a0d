"""ScoreSearch: finds the settings with the shortest time to a score, by training runs in child processes."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from powerband.tune.score.curve import best_score
from powerband.tune.score.options import MIN_VERIFICATION_SEEDS
from powerband.tune.score.setting_space import SettingSpace
from powerband.tune.score.trials.own_cores import pinned
from powerband.tune.score.trials.rungs import Goal, SettingResult, TrialRecord, settings_of
from powerband.tune.score.trials.scheduler import VERIFICATION_SLACK, TrialScheduler
from powerband.tune.score.trials.trial import TrialRun, run_trial
from powerband.tune.score.verification import Runner, Verification, verified


@dataclass(frozen=True)
class ScoreResult:
    """Result of a search for the settings that reach a score soonest.

    "Coordinates" are a point of the search space: name of a dimension -> value.

    Attributes:
        score: Name of the score.
        goal: Target score, score of an untrained policy, and time budget of a trial (training run).
        space: Search space.
        present: Coordinates of the present settings.
        settings: Results of each setting whose trials ended, the best first.
        records: All starts of trials; a continued trial has several.
        verification: Comparison with the present settings on new seeds, the last one if there were several; None if no
            settings looked better.
        refused: Coordinates of settings that looked better in the search, and the verification that found them slower.
        chosen: Coordinates of the settings that the verification confirmed; None if the present ones are kept.
        importances: Name of a dimension -> share of its influence on the time to the score, 0 to 1.
        best_score: Best score of any trial.
        seconds: Duration of the search and the verification in seconds.
        folder: Folder with the trials of the search.
    """

    score: str
    goal: Goal
    space: SettingSpace
    present: Mapping[str, Any]
    settings: list[SettingResult]
    records: list[TrialRecord]
    verification: Verification | None
    refused: list[tuple[Mapping[str, Any], Verification]]
    chosen: Mapping[str, Any] | None
    importances: dict[str, float]
    best_score: float | None
    seconds: float
    folder: Path


def search_and_verify(trials: TrialScheduler) -> ScoreResult:
    """Runs the trials (training runs) of a search, and compares the best settings with the present ones on new seeds.

    If these seeds show soon that the settings are slower, the search continues, and verifies the next best settings.

    Raises:
        ConfigError: The present settings cannot be trained, or the database of the trials cannot be used.
    """
    with pinned(trials.core_groups[0]):  # the present settings and the verification have as many cores as any trial
        trials.run()
        verification, refused = None, []
        while True:
            goal, records = trials.goal(), trials.study.records()
            results, unfinished = settings_of(records, goal), settings_of(records, goal, done=False)
            best = trials.candidate(records, goal)
            present = next((each for each in results if each.params == trials.present), None)
            if best is None:
                break
            verification = compare(trials, best, present, goal)
            if not verification.is_slower:
                break
            refused.append((best.params, verification))
            trials.refuse(best.params)
            if trials.deadline - time.monotonic() < MIN_VERIFICATION_SEEDS * verification.longest_pair_s:
                break
            trials.search()
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
        refused=refused,
        chosen=chosen,
        importances=trials.study.importances([(each.params, each.value) for each in unfinished]),
        best_score=max(scores, default=None),
        seconds=time.monotonic() - trials.began,
        folder=trials.folder,
    )


def compare(trials: TrialScheduler, best: SettingResult, present: SettingResult | None, goal: Goal) -> Verification:
    """Trains with the best and with the present settings on seeds that the search did not use.

    Args:
        trials: Scheduler of the search, which knows its options and its deadline.
        best: Settings that looked better than the present ones in the search.
        present: Result of the present settings in the search; None if their trial did not end.
        goal: Target score and time budget of a run.
    """

    def runner(params: Mapping[str, Any], name: str) -> Runner:
        settings = trials.space.settings(params)

        def run(seed: int, limit_s: float) -> TrialRun:
            trials.report(f"verification: {name}")
            folder = trials.folder / "verification" / f"{name}-{seed}-{int(time.time())}"
            command = trials.runner.command(settings, folder, seed, goal)
            done = run_trial(command, folder, trials.score, trials.target, limit_s, trials.deadline)
            shutil.rmtree(folder / "checkpoints", ignore_errors=True)
            return done

        return run

    return verified(
        runner(best.params, "best"),
        runner(trials.present, "present"),
        trials.target,
        goal.budget * (VERIFICATION_SLACK if present and any(reached is not None for reached in present.times) else 1),
        trials.fresh_seeds(),
        lambda: trials.deadline - time.monotonic(),
    )
