"""TrialScheduler: decides which trial (training run) starts next, and when the search ends.

The present settings run first. Their time to the score limits the budget of every other trial. New settings start on
the lowest rung and are paused there; promising ones continue. In the second half of the search, the best settings
repeat with more seeds, because one seed may be luck.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from powerband.core.errors import ConfigError
from powerband.tune.score.curve import time_to_score
from powerband.tune.score.options import ScoreOptions
from powerband.tune.score.setting_space import SettingSpace
from powerband.tune.score.study import SharedStudy
from powerband.tune.score.trials.own_cores import core_groups, pinned
from powerband.tune.score.trials.rungs import (
    RUNGS,
    Goal,
    SettingResult,
    TrialRecord,
    newest,
    promotable,
    setting_key,
    settings_of,
)
from powerband.tune.score.trials.trial_runner import EVALUATIONS, Job, TrialRunner

TRIAL_SHARE = 1 / 16
"""Largest share of the budget that one trial may train, unless the user states a number of seconds."""
MARGIN = 0.9
"""A setting looks better than the present one below this multiple of its time; smaller gains disappear in the noise."""
FEWEST_INTERVALS = 5
"""A time of the present settings below this number of intervals between evaluations is too rough to compare with."""
MIN_BUDGET_S = 2.0
"""Smallest budget of a trial; evaluations would otherwise follow each other without training."""
VERIFICATION_RUNS = 6
"""Once a setting looks better, the search ends while this number of runs of the present settings still fits."""
VERIFICATION_SLACK = 2
"""Budget of a run of the verification as a multiple of a trial's, so that slow seeds of the present settings count
fully. Without a time of the present settings it is that of a trial."""
LEAST_RESERVE, LARGEST_RESERVE = 0.3, 0.6
"""Smallest and largest share of the budget that is reserved for the verification."""
REPEATED, SEARCH_SEEDS = 2, 3
"""Number of best settings that repeat with more seeds in the second half of the search, and seeds of each. The present
settings repeat, too, once another setting looks better."""
SEARCH_SEED, FRESH_SEED = 100, 10_000
"""Offsets of the seeds of the search and of the verification from the user's seed; seeds of evaluations are skipped."""
REFUSED, USED_SEEDS = "refused", "used_seeds"
"""Attributes of a study: keys of the settings that a verification refused, and number of seeds that these used up."""


class TrialScheduler:
    """Schedules the trials (training runs) of a search on this machine, with asynchronous successive halving.

    Args:
        space: Settings that the search may try.
        arguments: Command line arguments of the user, without options that the search sets for each trial, such as
            seed.
        options: Options of the search.
        study: Database that stores the trials.
        folder: Folder for the run folders of the trials.
        seed: Seed from the user's settings.
        progress: Called with the current step and the share of the budget that is spent, 0 to 1.
        began: Value of ``time.monotonic()`` at the start of the command.

    Attributes:
        present: Coordinates of the present settings in the search space: name of a dimension -> value.
        seeds: Seeds of the trials of one setting, in this order.
        deadline: Value of ``time.monotonic()`` at the end of the budget.
        core_groups: Set of core numbers for each of the parallel trials; one empty set stands for all cores.
        runner: Runs the trials and stores their results.
    """

    def __init__(
        self,
        space: SettingSpace,
        arguments: list[str],
        options: ScoreOptions,
        study: SharedStudy,
        folder: Path,
        seed: int,
        progress: Callable[[str, float], object],
        began: float,
    ) -> None:
        self.space, self.options, self.study, self.folder = space, options, study, folder
        self.progress, self.began, self.deadline = progress, began, began + options.seconds
        self.seeds = list(islice(space.recipe.training_seeds(seed + SEARCH_SEED), SEARCH_SEEDS))
        self.used_seeds = study.attributes().get(USED_SEEDS, 0)
        self.unused_seeds = islice(space.recipe.training_seeds(seed + FRESH_SEED), self.used_seeds, None)
        self.score, self.target = space.recipe.score, options.goal(space.recipe.score)
        self.present = space.present()
        self.runner = TrialRunner(space, arguments, self.target, study, folder)
        self.reserve, self.has_candidate = LEAST_RESERVE, False
        self.active: set[tuple[str, int]] = set()
        self.lock = threading.Lock()
        self.core_groups = core_groups(options.parallel) if options.parallel > 1 else [set()]

    def run(self) -> None:
        """Runs trials until the search ends.

        Raises:
            ConfigError: The present settings cannot be trained, or the database of the trials cannot be used.
        """
        self.study.enqueue(self.space)
        self._run_present()
        self.search()

    def search(self) -> None:
        """Runs trials of other settings than the present ones until the search ends; a later call continues it."""
        if self.options.parallel == 1:
            self._work(set())
            return
        with ThreadPoolExecutor(self.options.parallel) as pool:
            slots = [pool.submit(self._work, own) for own in self.core_groups]
            try:
                for slot in as_completed(slots):
                    slot.result()
            except BaseException:  # a signal or an error, after which the other trials would go on to the end
                self.runner.ended.set()
                raise

    def refuse(self, params: Mapping[str, Any]) -> None:
        """Excludes a setting that a verification found slower than the present one from later candidates.

        The study stores this, so that a later search neither verifies the setting again nor uses these seeds again.
        """
        refused = self.study.attributes().get(REFUSED, [])
        self.study.set(**{REFUSED: [*refused, setting_key(params)], USED_SEEDS: self.used_seeds})
        self.has_candidate = self.candidate(self.study.records(), self.goal()) is not None

    def fresh_seeds(self) -> list[int]:
        """Returns the seeds of the next verification, which no trial and no refused setting used."""
        self.used_seeds += self.options.seeds
        return list(islice(self.unused_seeds, self.options.seeds))

    def goal(self) -> Goal:
        """Returns the target score and the present time budget of a trial, in seconds of this machine."""
        shared = self.study.attributes()
        own = self.options.trial_seconds or TRIAL_SHARE * self.options.seconds
        budget = self.study.own_seconds(shared["trial_steps"]) if "trial_steps" in shared else own
        return Goal(self.target, shared.get("start_score", self.target - 1.0), budget)

    def notice(self) -> str:
        """Returns a message about an option that has no effect in a continued study; "" if there is none."""
        wanted, shared = self.options.trial_seconds, self.study.attributes()
        if not wanted or "trial_steps" not in shared:
            return ""
        budget = self.study.own_seconds(shared["trial_steps"])
        return (
            f"trial_seconds={wanted:g}: no effect, because the present settings reached the score in this study. A "
            f"trial takes at most {budget:.3g} s, as they did. For another limit, write another study_dir."
        )

    def report(self, text: str) -> None:
        """Passes the description `text` of the current step to `progress`."""
        self.progress(text, min(1.0, (time.monotonic() - self.began) / self.options.seconds))

    def _run_present(self) -> None:
        """Trains the present settings to the score or the budget of a trial, unless the study has them already."""
        records = self.study.records()
        self.has_candidate = self.candidate(records, self.goal()) is not None
        for each in records:
            if each.params == self.present and each.is_done:
                self._reserve_for(each)
                return
        goal, seed, trial, paused = self.goal(), self.seeds[0], None, None
        if self.study.is_pending(self.present):
            trial = self.study.ask(self.space)
            if trial.params != self.present:  # another machine runs them at this moment
                self._run(Job(dict(trial.params), seed, 0, trial), goal)
                return
        else:  # an earlier search was interrupted before they were done
            own = [each for each in newest(records) if each.params == self.present and each.seed == seed]
            paused = next((each for each in own if each.outcome == "paused" and self._is_own(each)), None)
        job = Job(self.present, seed, RUNGS - 1, trial, paused, first=True)
        record = self._run(job, goal)
        reached = self._limit_trials(record, goal)
        if reached is not None and reached < FEWEST_INTERVALS * goal.budget / EVALUATIONS:
            goal = self.goal()  # its evaluations are closer
            record = self._run(replace(job, trial=None, paused=None), goal, VERIFICATION_SLACK)
            self._limit_trials(record, goal)
        self._reserve_for(record)

    def _limit_trials(self, present: TrialRecord, goal: Goal) -> float | None:
        """Limits all other trials to the time to the score of the present settings, and stores their first score.

        Returns:
            Seconds in which the present settings reached the score; None if they did not, because a later search with
            more seconds may train longer.

        Raises:
            ConfigError: The run failed.
        """
        if present.outcome == "failed":
            raise ConfigError(f"The present settings cannot be trained: {present.message}")
        scores = [point.score for point in present.curve if math.isfinite(point.score)]
        self.study.set(start_score=scores[0] if scores else self.target - 1.0)
        reached = time_to_score(present.curve, self.target)
        if reached is not None:
            budget = min(goal.budget, max(reached, MIN_BUDGET_S))
            self.study.set(trial_steps=self.study.shared_steps(budget))
        return reached

    def _reserve_for(self, present: TrialRecord) -> None:
        """Reserves time for the verification, by the duration of a run of the present settings with its evaluations."""
        longest_s = present.wall_s * (1 if time_to_score(present.curve, self.target) is None else VERIFICATION_SLACK)
        share = VERIFICATION_RUNS * longest_s / self.options.seconds
        self.reserve = min(LARGEST_RESERVE, max(LEAST_RESERVE, share))

    @property
    def search_end(self) -> float:
        """Value of ``time.monotonic()`` at which the search ends.

        The rest of the budget is for the verification; it is reserved once a setting looks better than the present one.
        """
        return self.deadline - (self.reserve if self.has_candidate else 0.0) * self.options.seconds

    def candidate(self, records: list[TrialRecord], goal: Goal) -> SettingResult | None:
        """Returns the setting to verify: the best one that looks at least 10 % better than the present one.

        Settings with several seeds are preferred, because a single seed may be luck. Settings that a verification has
        refused are left out.

        Args:
            records: All records of the search.
            goal: Target score and time budget, by which trials are compared.

        Returns:
            Results of the setting; None if no setting looks better.
        """
        results = settings_of(records, goal)
        limit = min([goal.budget, *(each.value for each in results if each.params == self.present)])
        better = [each for each in results if each.params != self.present and each.value < MARGIN * limit]
        refused = self.study.attributes().get(REFUSED, [])
        better = [each for each in better if setting_key(each.params) not in refused]
        repeated = [each for each in better if len(each.records) > 1]
        return next(iter(repeated or better), None)

    def _work(self, own_cores: set[int]) -> None:
        """Runs jobs on `own_cores` until the search ends."""
        with pinned(own_cores):
            while time.monotonic() < self.search_end and not self.runner.ended.is_set():
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
            repeated = [each.params for each in others[:REPEATED] if each.value < goal.budget]
            repeated += [self.present] if self.has_candidate else []  # its first seed may be luck, too
            for params in repeated:
                seed = self._fresh_seed(params, records)
                if seed in self.seeds:
                    return Job(params, seed, RUNGS - 1)
        idle = [each for each in records if (each.setting_key, each.seed) not in self.active]
        paused = promotable(idle, goal, self._is_own)
        if paused is not None:
            return Job(paused.params, paused.seed, paused.rung + 1, paused=paused)
        trial = self.study.ask(self.space)
        return Job(dict(trial.params), self._fresh_seed(trial.params, records), 0, trial)

    def _fresh_seed(self, params: Mapping[str, Any], records: list[TrialRecord]) -> int:
        """Returns the first seed of the search with which no trial of a setting has been started."""
        started = {(each.setting_key, each.seed) for each in records} | self.active
        seeds = self.space.recipe.training_seeds(self.seeds[0])
        return next(seed for seed in seeds if (setting_key(params), seed) not in started)

    def _run(self, job: Job, goal: Goal, slack: float = 1.0) -> TrialRecord:
        """Runs a job and stores its result; the trial may take `slack` times the seconds of its rung."""
        changed = [f"{name.rpartition('.')[2]}={value}" for name, value in self.space.settings(job.params).items()]
        self.report(" ".join(changed) or "present settings")
        # The present settings may use the time of the verification, because they set the budget of all others.
        record = self.runner.run(job, goal, self.deadline if job.first else self.search_end, slack)
        self.has_candidate = self.candidate(self.study.records(), goal) is not None
        return record

    def _is_own(self, record: TrialRecord) -> bool:
        """Returns whether this search can continue a trial: its run folder belongs to the folder of this search."""
        return record.machine == self.study.machine and Path(record.folder).is_relative_to(self.folder)
