"""ScoreSearch: finds the settings with the shortest time to a score, by training runs in child processes.

The present settings run first. What they need sets the budget of every other trial. New settings start on the lowest
rung and are paused there; promising ones continue. In the second half of the search, the best settings repeat with more
seeds, because one seed may be luck.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from powerband.core.errors import ConfigError
from powerband.core.machine.device import cores
from powerband.core.run_folder import process_facts
from powerband.tune.score.curve import best_score, time_to_score
from powerband.tune.score.options import ScoreOptions
from powerband.tune.score.rungs import (
    RUNGS,
    Goal,
    SettingResult,
    TrialRecord,
    promotable,
    rung_seconds,
    setting_key,
    settings_of,
)
from powerband.tune.score.setting_space import SettingSpace
from powerband.tune.score.study import SharedStudy
from powerband.tune.score.trial import TrialRun, resume_command, run_trial, train_command
from powerband.tune.score.verification import EVALUATIONS, Runner, Verification, verified

TRIAL_SHARE = 1 / 12
"""Largest share of the budget that one trial may train, unless the user states a number of seconds."""
SLACK = 1.5
"""Once the present settings have reached the score, no trial trains longer than this multiple of their time."""
VERIFICATION_SLACK = 2
"""Budget of a run of the verification as a multiple of a trial's, so that slow seeds of the present settings count
fully. Without a time of the present settings it is that of a trial."""
VERIFICATION_RUNS = 8
"""The search ends while this number of runs of the present settings still fits into the budget."""
LEAST_RESERVE, LARGEST_RESERVE = 0.3, 0.6
"""Smallest and largest share of the budget that is reserved for the verification."""
REPEATED, SEARCH_SEEDS = 2, 3
"""Number of best settings that repeat with more seeds in the second half of the search, and seeds of each."""
SEARCH_SEED = 100
"""Offset of the seeds of the search; those of the verification differ (`verification.VERIFICATION_SEED`)."""


@dataclass(frozen=True)
class Job:
    """One start of a trial.

    Attributes:
        params: Coordinates of the setting.
        seed: Seed of the run.
        rung: Rung at which it is paused.
        trial: Trial of Optuna that asks for it; None for another start or seed of a known setting.
        paused: Record of the trial to continue; None starts a new one.
    """

    params: Mapping[str, Any]
    seed: int
    rung: int
    trial: Any = None
    paused: TrialRecord | None = None


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


class ScoreSearch:
    """One search on one machine.

    Args:
        space: Settings that the search may try.
        arguments: Arguments of the user, without those that the search sets (`trial.OWN_OPTIONS`).
        options: Options of the search.
        study: Study that stores the trials.
        folder: Folder of the study.
        rate: Environment steps per second that this machine measured for the present settings.
        every: Environment steps between two evaluations; 0 chooses them.
        seed: Seed of the user.
        progress: Called with the current step and the share of the budget that is spent, 0 to 1.
        began: Value of ``time.monotonic()`` at the start of the command.
    """

    def __init__(
        self,
        space: SettingSpace,
        arguments: list[str],
        options: ScoreOptions,
        study: SharedStudy,
        folder: Path,
        rate: float,
        every: int,
        seed: int,
        progress: Callable[[str, float], object],
        began: float,
    ) -> None:
        self.space, self.arguments, self.options, self.study, self.folder = space, arguments, options, study, folder
        self.rate, self.every, self.seed, self.progress, self.began = rate, every, seed, progress, began
        self.score, self.target = space.recipe.score, options.goal(space.recipe.score)
        self.deadline = began + options.seconds
        self.reserve = LEAST_RESERVE
        self.is_reached = False
        self.machine = study.machine
        self.active: set[tuple[str, int]] = set()
        self.lock = threading.Lock()
        self.present = space.present()

    def run(self) -> ScoreResult:
        """Searches, verifies and returns the result.

        Raises:
            ConfigError: The present settings cannot be trained, or the study cannot be used.
        """
        self.study.enqueue(self.space)
        self._run_present()
        if self.options.parallel == 1:
            self._work()
        else:
            with ThreadPoolExecutor(self.options.parallel) as pool:
                slots = [pool.submit(self._work, own) for own in core_groups(self.options.parallel)]
                for slot in slots:
                    slot.result()
        goal, records = self.goal(), self.study.records()
        results = settings_of(records, goal)
        verification, chosen = self._verify(results, goal)
        unfinished = settings_of(records, goal, done=False)
        scores = [score for each in records if (score := best_score(each.curve)) is not None]
        importances = self.study.importances([(each.params, each.value) for each in unfinished])
        return ScoreResult(
            self.score,
            goal,
            self.space,
            self.present,
            results or unfinished,
            records,
            verification,
            chosen,
            importances,
            max(scores, default=None),
            time.monotonic() - self.began,
            self.folder,
        )

    def goal(self) -> Goal:
        """Returns what trials are compared by at present, in seconds of this machine."""
        shared = self.study.attributes()
        own = self.options.trial_seconds or TRIAL_SHARE * self.options.seconds
        budget = self.study.own_seconds(shared["trial_seconds"]) if "trial_seconds" in shared else own
        return Goal(self.target, shared.get("start_score", self.target - 1.0), budget)

    def interval(self, goal: Goal) -> int:
        """Returns the environment steps between two evaluations, equal on all machines of the study."""
        shared = self.study.attributes()
        return self.every or shared.get("eval_interval") or max(1, round(self.rate * goal.budget / EVALUATIONS))

    # -- trials -----------------------------------------------------------------------------------------------------

    def _run_present(self) -> None:
        """Trains the present settings to the score or the budget of a trial, unless the study has them already."""
        records = self.study.records()
        self.is_reached = any(each.outcome == "reached" for each in records)
        for each in records:
            if each.params == self.present and each.is_done:
                self._reserve_for(each)
                return
        goal = self.goal()
        trial = self.study.ask(self.space)
        if trial.params != self.present:  # another machine runs them at this moment
            self._run(Job(dict(trial.params), self.seed + SEARCH_SEED, 0, trial), goal)
            return
        record = self._run(Job(self.present, self.seed + SEARCH_SEED, RUNGS - 1, trial), goal)
        if record.outcome == "failed":
            raise ConfigError(f"The present settings cannot be trained: {record.message}")
        reached = time_to_score(record.curve, self.target)
        budget = goal.budget if reached is None else min(goal.budget, max(SLACK * reached, EVALUATIONS * 0.1))
        self.study.set(
            start_score=record.curve[0].score if record.curve else self.target - 1.0,
            trial_seconds=self.study.shared_seconds(budget),
            eval_interval=max(1, round(record.env_steps / max(record.seconds, 1e-9) * budget / EVALUATIONS)),
        )
        self._reserve_for(record)

    def _reserve_for(self, present: TrialRecord) -> None:
        """Reserves time for the verification, by the duration of a run of the present settings."""
        share = VERIFICATION_RUNS * present.wall_s / self.options.seconds
        self.reserve = min(LARGEST_RESERVE, max(LEAST_RESERVE, share))

    @property
    def search_end(self) -> float:
        """End of the search; until a trial has reached the score there is nothing to reserve time for."""
        return self.deadline - (self.reserve if self.is_reached else 0.0) * self.options.seconds

    def _work(self, own_cores: set[int] | None = None) -> None:
        """Runs jobs until the search ends, on `own_cores` if they are given; child processes inherit them."""
        if own_cores:
            os.sched_setaffinity(0, own_cores)  # of this thread alone
        while time.monotonic() < self.search_end:
            with self.lock:
                goal = self.goal()
                job = self._next_job(goal)
                self.active.add((setting_key(job.params), job.seed))
            try:
                self._run(job, goal)
            finally:
                with self.lock:
                    self.active.discard((setting_key(job.params), job.seed))

    def _next_job(self, goal: Goal) -> Job:
        """Returns the next start: another seed of a good setting, a promotion, or a new setting."""
        records = self.study.records()
        if time.monotonic() > self.began + (self.search_end - self.began) / 2:
            others = [each for each in settings_of(records, goal) if each.params != self.present]
            for result in others[:REPEATED]:
                seed = self._fresh_seed(result.params, records)
                if seed < self.seed + SEARCH_SEED + SEARCH_SEEDS and result.value < goal.budget:
                    return Job(result.params, seed, RUNGS - 1)
        idle = [each for each in records if (each.setting_key, each.seed) not in self.active]
        paused = promotable(idle, goal, self.machine)
        if paused is not None:
            return Job(paused.params, paused.seed, paused.rung + 1, paused=paused)
        trial = self.study.ask(self.space)
        return Job(dict(trial.params), self._fresh_seed(trial.params, records), 0, trial)

    def _fresh_seed(self, params: Mapping[str, Any], records: list[TrialRecord]) -> int:
        """Returns the first seed of the search with which no trial of a setting has been started."""
        started = {(each.setting_key, each.seed) for each in records} | self.active
        return next(
            seed for seed in range(self.seed + SEARCH_SEED, 2**31) if (setting_key(params), seed) not in started
        )

    def _run(self, job: Job, goal: Goal) -> TrialRecord:
        """Runs a job and stores its result."""
        settings = self.space.settings(job.params)
        self.progress(
            " ".join(f"{name.rpartition('.')[2]}={value}" for name, value in settings.items()) or "present settings",
            min(1.0, (time.monotonic() - self.began) / self.options.seconds),
        )
        limit = rung_seconds(goal.budget)[job.rung]
        if job.paused is not None:
            folder = Path(job.paused.folder)
            command = resume_command(self.space.recipe.name, self.space.stage, folder)
        else:
            folder = self._new_folder()
            command = self._command(settings, folder, job.seed, self.interval(goal))
        try:
            self.space.config(job.params)
            run = run_trial(command, folder, self.score, self.target, limit, self._deadline(job))
        except (ConfigError, ValueError) as error:
            run = TrialRun("failed", [], 0, 0.0, 0.0, str(error))
        rung = job.rung - (run.outcome == "stopped")
        record = TrialRecord(
            job.params,
            job.seed,
            rung,
            run.outcome,
            run.curve,
            run.env_steps,
            run.seconds,
            run.wall_s,
            self.machine,
            str(folder),
            run.message,
        )
        with self.lock:
            self.is_reached = self.is_reached or record.outcome == "reached"
            if job.trial is not None:
                self.study.tell(job.trial, record, goal)
            else:
                self.study.add(record, goal)
        if record.outcome != "paused" or record.is_done:
            shutil.rmtree(folder / "checkpoints", ignore_errors=True)
        return record

    def _deadline(self, job: Job) -> float:
        """The present settings may use the time of the verification, because they set the budget of all others."""
        return self.deadline if job.params == self.present else self.search_end

    def _command(self, settings: Mapping[str, Any], folder: Path, seed: int, every: int) -> list[str]:
        return train_command(
            self.space.recipe.name, self.space.stage, self.arguments, settings, folder, seed, every
        )

    def _new_folder(self) -> Path:
        with self.lock:
            trials = self.folder / "trials"
            number = 1 + max((int(path.name) for path in trials.glob("[0-9]*")), default=0)
            folder = trials / f"{number:04d}"
            folder.mkdir(parents=True)
            return folder

    # -- verification -----------------------------------------------------------------------------------------------

    def _verify(
        self, results: list[SettingResult], goal: Goal
    ) -> tuple[Verification | None, Mapping[str, Any] | None]:
        """Compares the best setting with the present one on fresh seeds; (None, None) if there is nothing to compare."""
        present = next((each for each in results if each.params == self.present), None)
        others = [each for each in results if each.params != self.present]
        repeated = [each for each in others if len(each.records) > 1]  # a single seed may be luck
        best = (repeated or others or [None])[0]
        if best is None or best.value >= min(goal.budget, present.value if present else goal.budget):
            return None, None

        def runner(result: SettingResult | None, name: str) -> Runner:
            params = self.present if result is None else result.params
            rates = [each.env_steps / each.seconds for each in (result.records if result else ()) if each.seconds]
            rate = sum(rates) / len(rates) if rates else self.rate
            every = self.every or max(1, round(rate * goal.budget / EVALUATIONS))
            settings = self.space.settings(params)

            def run(seed: int, limit_s: float) -> TrialRun:
                self.progress(f"verification: {name}", min(1.0, (time.monotonic() - self.began) / self.options.seconds))
                folder = self.folder / "verification" / f"{name}-{seed}-{int(time.time())}"
                command = self._command(settings, folder, seed, every)
                done = run_trial(command, folder, self.score, self.target, limit_s, self.deadline)
                shutil.rmtree(folder / "checkpoints", ignore_errors=True)
                return done

            return run

        verification = verified(
            runner(best, "best"),
            runner(present, "present"),
            self.target,
            goal.budget * (VERIFICATION_SLACK if present and None not in present.times else 1),
            self.options.seeds,
            self.seed,
            lambda: self.deadline - time.monotonic(),
        )
        return verification, best.params if verification.is_faster else None


def machine_name() -> str:
    """Name of this machine in a study."""
    return process_facts()["hostname"]


def core_groups(parallel: int) -> list[set[int]]:
    """Divides the cores of this process into `parallel` groups of equal size."""
    own = sorted(os.sched_getaffinity(0))
    each = len(own) // parallel
    return [set(own[index * each : (index + 1) * each]) for index in range(parallel)]


def check_parallel(parallel: int, threads: int) -> None:
    """Checks that timed trials run alone on their cores.

    Args:
        parallel: Trials at a time.
        threads: Threads of a trial; 0 uses all cores.

    Raises:
        ConfigError: There are not enough cores.
    """
    available = cores()
    most = max(1, available // (threads or available))
    if parallel > most:
        raise ConfigError(
            f"parallel={parallel} is above {most}: {available} cores divided by threads={threads or available}. Trials "
            f"are timed, so each needs its own cores. Write parallel={most}, or fewer threads."
        )
