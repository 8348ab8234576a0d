"""TrialRunner: starts the training run of a job, or continues it, and stores the result in the study."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from powerband.core.errors import ConfigError
from powerband.tune.score.setting_space import SettingSpace
from powerband.tune.score.study import SharedStudy
from powerband.tune.score.trials.rungs import Goal, TrialRecord, rung_seconds
from powerband.tune.score.trials.trial import TrialRun, resume_command, run_trial, train_command

EVALUATIONS = 20
"""Evaluations within the budget of a trial, at equal distances in seconds of training for all settings."""
MAX_FAILURES = 20
"""Successive trials that fail before the search ends."""


@dataclass(frozen=True)
class Job:
    """One start of a trial (training run) that the scheduler has decided on.

    Attributes:
        params: Settings as coordinates of the search space: name of a dimension -> value.
        seed: Seed of the run.
        rung: Index of the rung of successive halving up to which this job trains the policy; then the trial is paused.
        trial: Optuna trial for new settings; None if the settings have been tried before.
        paused: Record of the paused trial to continue; None starts a new run.
        first: Whether this is the run of the present settings that sets the budget of all other trials.
    """

    params: Mapping[str, Any]
    seed: int
    rung: int
    trial: Any = None
    paused: TrialRecord | None = None
    first: bool = False


class TrialRunner:
    """Runs jobs in run folders of one search, and stores their results; several threads may call it.

    Args:
        space: Settings that the search may try.
        arguments: Command line arguments of the user, without options that the search sets for each trial.
        target: Score to reach.
        study: Database that stores the trials.
        folder: Folder of the search; the run folders are in its subfolder ``trials``.

    Attributes:
        ended: Set if the search ends early, after which all running trials stop.
    """

    def __init__(
        self, space: SettingSpace, arguments: list[str], target: float, study: SharedStudy, folder: Path
    ) -> None:
        self.space, self.arguments, self.target, self.study, self.folder = space, arguments, target, study, folder
        self.failures = 0
        self.lock, self.ended = threading.Lock(), threading.Event()

    def run(self, job: Job, goal: Goal, deadline: float, slack: float = 1.0) -> TrialRecord:
        """Runs a job and stores its result.

        Args:
            job: Start of a trial.
            goal: Target score and time budget of a trial.
            deadline: Value of ``time.monotonic()`` at which the run is stopped.
            slack: Seconds of training that the run may take, as a multiple of those of its rung.

        Returns:
            Result of the run, also if it failed.

        Raises:
            ConfigError: Too many successive trials failed.
        """
        settings, limits = self.space.settings(job.params), rung_seconds(goal.budget)
        if job.paused is not None:
            folder = Path(job.paused.folder)
            command = resume_command(self.space.recipe.name, self.space.stage, folder)
        else:
            folder = self._new_folder()
            command = self.command(settings, folder, job.seed, goal)
        try:
            self.space.config(job.params)
            score = self.space.recipe.score
            run = run_trial(command, folder, score, self.target, slack * limits[job.rung], deadline, self.ended)
        except (ConfigError, ValueError) as error:
            run = TrialRun("failed", [], 0, 0.0, 0.0, str(error))
        rung, outcome = job.rung, run.outcome
        if outcome == "stopped":  # a later search continues the trial from the rung that it had reached
            rung = sum(run.seconds >= seconds for seconds in limits) - 1 if job.paused is None else job.paused.rung
            outcome = "paused" if rung >= 0 and (folder / "checkpoints").is_dir() else outcome
        record = TrialRecord(
            job.params,
            job.seed,
            rung,
            outcome,
            run.curve,
            run.env_steps,
            run.seconds,
            run.wall_s,
            self.study.machine,
            str(folder),
            run.message,
        )
        with self.lock:
            self.failures = self.failures + 1 if record.outcome == "failed" else 0
            if job.trial is not None:
                self.study.tell(job.trial, record, goal)
            else:
                self.study.add(record, goal, self.space)
        if record.outcome != "paused" or record.is_done:
            shutil.rmtree(folder / "checkpoints", ignore_errors=True)
        if self.failures >= MAX_FAILURES:
            raise ConfigError(f"The last {MAX_FAILURES} trials failed, so the search ends. The last: {record.message}")
        return record

    def command(self, settings: Mapping[str, Any], folder: Path, seed: int, goal: Goal) -> list[str]:
        """Returns the command line arguments that start a training run.

        Args:
            settings: Qualified name, such as ``run.threads``, -> value, in addition to the arguments of the user.
            folder: Run folder.
            seed: Seed of the run.
            goal: Target score and time budget, which give the interval of evaluations.
        """
        recipe, stage = self.space.recipe.name, self.space.stage
        return train_command(recipe, stage, self.arguments, settings, folder, seed, goal.budget / EVALUATIONS)

    def _new_folder(self) -> Path:
        with self.lock:
            trials = self.folder / "trials"
            number = 1 + max((int(path.name) for path in trials.glob("[0-9]*")), default=0)
            while True:
                folder = trials / f"{number:04d}"
                try:
                    folder.mkdir(parents=True)
                    return folder
                except FileExistsError:  # of another search in the same folder, with a shared storage
                    number += 1
