"""Study: stores the trials of a search in Optuna, and asks it for new settings.

One process uses a SQLite file. Several machines share an Optuna journal on a shared disk, or a database. Curves are
stored over environment steps with the seconds of the machine that ran them; every reader converts these seconds to its
own by the rates that both machines measured for the present settings. Each machine stores its own rate once, because
two measurements of one machine differ by noise alone.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
import warnings
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from powerband.core.errors import ConfigError
from powerband.tune.score.curve import CurvePoint
from powerband.tune.score.setting_space import SettingSpace
from powerband.tune.score.trials.coordinate_ranges import CoordinateRanges
from powerband.tune.score.trials.folder_lock import is_alive, lock_folder
from powerband.tune.score.trials.rungs import Goal, TrialRecord

START_TRIALS = 8
"""Finished trials before the sampler proposes settings by its model; before that it draws them at random."""
LOCK_TIMEOUT_S = 30.0
TRIES, PAUSE_S = 10, 1.0
"""Largest number of tries to open a database in which another search creates the tables, and the pause between them."""
PACKAGES = {"psycopg": "psycopg[binary]", "psycopg2": "psycopg2-binary", "MySQLdb": "mysqlclient"}
"""Module of a database driver -> what pip installs, where the names differ."""
RECORD = "record"
"""Attribute of a trial of Optuna that holds its `TrialRecord`; one value, because each one is a transaction."""
OWNER = "owner"
"""Attribute of a trial of Optuna that holds [name of the machine, process id] of the search that runs it."""


class SharedStudy:
    """Database of the trials (training runs) of a search, on top of an Optuna study; several machines can share it.

    Times are stored together with the speed of the machine that measured them, and are read in seconds of this machine.

    Args:
        storage: Journal file or database URL; empty uses ``study.db`` in `folder`.
        folder: Folder of the study.
        name: Name of the study; machines that use the same name and storage work on the same study.
        rate: Environment steps per second of training that this machine measured for the present settings. A study that
            has a rate of this machine keeps it.
        machine: Name of this machine.
        seed: Seed of the sampler. Searches that share a storage draw differently, also with equal seeds.

    Raises:
        ConfigError: Optuna is missing, the storage cannot be used, or another process works in `folder`.
    """

    def __init__(self, storage: str, folder: Path, name: str, rate: float, machine: str, seed: int = 0) -> None:
        try:
            import optuna
        except ImportError:
            raise ConfigError("objective=score needs the package optuna. Run pip install 'powerband[tune]'.") from None
        self.optuna, self.place, self.machine = optuna, storage or str(folder / "study.db"), machine
        self._shared, self._lock = bool(storage), lock_folder(folder, machine if storage else "")
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        try:
            self._join(folder, name, rate, seed)
        except BaseException:
            self.close()
            raise

    def _join(self, folder: Path, name: str, rate: float, seed: int) -> None:
        """Opens or creates the study in the storage, and stores the rate of this machine."""
        storage = self.place if self._shared else ""
        own = zlib.crc32(f"{seed} {self.machine} {os.getpid()}".encode()) if storage else seed
        with self._errors(), warnings.catch_warnings():
            warnings.simplefilter("ignore", self.optuna.exceptions.ExperimentalWarning)
            sampler = self.optuna.samplers.TPESampler(
                n_startup_trials=START_TRIALS, multivariate=True, group=True, constant_liar=True, seed=own
            )
            self._study = self._opened(storage, folder, name, sampler)
        attributes, name = self.attributes(), f"rate of {self.machine}"
        if "reference_rate" in attributes:
            raise ConfigError(f"{self.place} is a study of an older version. Start a new one with another study_dir.")
        if name not in attributes:
            self.set(**{name: rate})
        self.rate: float = attributes.get(name, rate)
        self._fail_dead()

    def close(self) -> None:
        """Lets another process use the folder of the study."""
        self._lock.close()

    def _opened(self, storage: str, folder: Path, name: str, sampler: Any) -> Any:
        """Opens the study of Optuna, or creates it.

        Searches that start at the same time may all create the tables of a new database. All but one get an error then,
        and find the tables when they try again.
        """
        from sqlalchemy.exc import IntegrityError, ProgrammingError

        for last in (*[False] * (TRIES - 1), True):
            try:
                return self.optuna.create_study(
                    storage=self._storage(storage, folder), study_name=name, sampler=sampler, load_if_exists=True
                )
            except (IntegrityError, ProgrammingError):
                if last:
                    raise
                time.sleep(PAUSE_S)

    def _storage(self, storage: str, folder: Path) -> Any:
        from optuna.storages import JournalStorage, RDBStorage
        from optuna.storages.journal import JournalFileBackend

        if "://" in storage:
            options = {"connect_args": {"timeout": LOCK_TIMEOUT_S}} if storage.startswith("sqlite") else {}
            return RDBStorage(storage, engine_kwargs=options)
        if storage:
            return JournalStorage(JournalFileBackend(storage))
        folder.mkdir(parents=True, exist_ok=True)
        path = (folder / "study.db").absolute()
        return RDBStorage(f"sqlite:///{path}", engine_kwargs={"connect_args": {"timeout": LOCK_TIMEOUT_S}})

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Turns errors of the storage into errors for the user."""
        from sqlalchemy.exc import SQLAlchemyError

        try:
            yield
        except ImportError as error:
            # SQLAlchemy 2.1 has another default driver of PostgreSQL than 2.0.
            driver = getattr(error.__cause__, "name", None) or str(error)
            raise ConfigError(
                f"storage={self.place} needs the package {driver}, which is not installed. Run pip install "
                f"'{PACKAGES.get(driver, driver)}'."
            ) from error
        except (SQLAlchemyError, self.optuna.exceptions.StorageInternalError, OSError) as error:
            reason = str(error.__cause__ or error).splitlines()[0]
            raise ConfigError(
                f"The study {self.place} cannot be used: {reason}. Check that the file or the database exists, that it "
                f"can be reached and written, and that no other process has locked it."
            ) from error

    # -- what all machines share ------------------------------------------------------------------------------------

    def attributes(self) -> dict[str, Any]:
        """Returns the values by name that the machines of the study share, see `set`."""
        with self._errors():
            return dict(self._study.user_attrs)

    def set(self, **attributes: Any) -> None:
        """Stores values by name for all machines of the study, such as the time budget of a trial."""
        with self._errors():
            for name, value in attributes.items():
                self._study.set_user_attr(name, value)

    def own_seconds(self, steps: float) -> float:
        """Converts steps of the present settings, the measure of time that all machines share, to seconds here."""
        return steps / self.rate

    def shared_steps(self, seconds: float) -> float:
        """Converts seconds of this machine to steps that the present settings make in them, which machines share."""
        return seconds * self.rate

    # -- trials -----------------------------------------------------------------------------------------------------

    def enqueue(self, space: SettingSpace) -> None:
        """Makes the present settings, then the points of `SettingSpace.first`, the first trials of a new study."""
        with self._errors():
            if not self._study.get_trials(deepcopy=False):
                for params in [space.present(), *space.first()]:
                    self._study.enqueue_trial(params, skip_if_exists=True)

    def ask(self, space: SettingSpace) -> Any:
        """Returns a new trial of Optuna; its ``params`` are the coordinates of the settings to train with."""
        with self._errors(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a queued trial with coordinates outside of a changed range
            trial = self._study.ask()
            trial.set_user_attr(OWNER, [self.machine, os.getpid()])
            space.suggest(trial)
            return trial

    def is_pending(self, params: Mapping[str, Any]) -> bool:
        """Returns whether a trial with these coordinates waits in the queue or runs at this moment."""
        states = self.optuna.trial.TrialState
        with self._errors():
            trials = self._study.get_trials(deepcopy=False, states=(states.WAITING, states.RUNNING))
        return any(each.system_attrs.get("fixed_params", each.params) == dict(params) for each in trials)

    def tell(self, trial: Any, record: TrialRecord, goal: Goal) -> None:
        """Stores the result of the first start of a trial.

        Args:
            trial: Result of `ask`.
            record: Result of the start, in seconds of this machine.
            goal: Target score and time budget, which give the value of the trial.
        """
        with self._errors():
            trial.set_user_attr(RECORD, self._stored(record))
            state, value = self._state(record, goal)
            if state == self.optuna.trial.TrialState.PRUNED:
                trial.report(value, record.rung + 1)
            self._study.tell(trial, value if state == self.optuna.trial.TrialState.COMPLETE else None, state=state)

    def add(self, record: TrialRecord, goal: Goal, space: SettingSpace) -> None:
        """Stores a further start of a paused trial, or a run of known settings with another seed.

        Args:
            record: Result of the start, in seconds of this machine.
            goal: Target score and time budget, which give the value of the trial.
            space: Search space, which has the ranges of coordinates that no trial of the study has.
        """
        with self._errors():
            state, value = self._state(record, goal)
            pruned = state == self.optuna.trial.TrialState.PRUNED
            self._study.add_trial(
                self.optuna.trial.create_trial(
                    state=state,
                    value=value if state == self.optuna.trial.TrialState.COMPLETE else None,
                    params=dict(record.params),
                    distributions=self._distributions(record.params, space),
                    intermediate_values={record.rung + 1: value} if pruned else {},
                    user_attrs={RECORD: self._stored(record)},
                )
            )

    def _distributions(self, params: Mapping[str, Any], space: SettingSpace) -> dict[str, Any]:
        """Returns the range of each coordinate that contains its value: that of a stored trial, or of the space."""
        ranges = CoordinateRanges(self.optuna, params)
        space.suggest(ranges)
        stored = [each.distributions for each in self._study.get_trials(deepcopy=False)]
        return {
            name: next(
                each[name]
                for each in [*stored, ranges.found]
                if name in each and each[name]._contains(each[name].to_internal_repr(value))
            )
            for name, value in params.items()
        }

    def records(self) -> list[TrialRecord]:
        """Returns the records of all starts of trials in the order in which they began, in seconds of this machine."""
        with self._errors():
            trials = self._study.get_trials(deepcopy=False)
        found = []
        for trial in trials:
            if RECORD not in trial.user_attrs:
                continue
            saved = trial.user_attrs[RECORD]
            factor = saved["rate"] / self.rate
            curve = [
                CurvePoint(steps, seconds * factor, -math.inf if score is None else score)
                for steps, seconds, score in saved["curve"]
            ]
            same = {name: saved[name] for name in ("seed", "rung", "outcome", "env_steps", "machine")}
            texts = {name: saved[name] for name in ("folder", "message")}
            found.append(
                TrialRecord(
                    params=trial.params,
                    curve=curve,
                    seconds=saved["seconds"] * factor,
                    wall_s=saved["wall_s"] * factor,
                    **same,
                    **texts,
                )
            )
        return found

    def _stored(self, record: TrialRecord) -> dict[str, Any]:
        curve = [
            [point.env_steps, point.seconds, point.score if math.isfinite(point.score) else None]
            for point in record.curve
        ]
        names = ("seed", "rung", "outcome", "env_steps", "seconds", "wall_s", "folder", "message")
        own: Mapping[str, Any] = {name: getattr(record, name) for name in names}
        return {**own, "curve": curve, "rate": self.rate, "machine": self.machine}

    def _state(self, record: TrialRecord, goal: Goal) -> tuple[Any, float]:
        """Returns Optuna's state of a record and its value, as steps of the present settings (`shared_steps`)."""
        states = self.optuna.trial.TrialState
        value = self.shared_steps(goal.value(record))
        unmeasured = record.outcome == "failed" or (record.outcome == "stopped" and not record.curve)
        if unmeasured or not math.isfinite(value):
            return states.FAIL, value
        return states.COMPLETE if record.is_done else states.PRUNED, value

    def _fail_dead(self) -> None:
        """Marks running trials as failed if their search was killed. Trials of other machines may still run."""
        states = self.optuna.trial.TrialState
        with self._errors():
            for trial in self._study.get_trials(deepcopy=False, states=(states.RUNNING,)):
                machine, process = trial.user_attrs.get(OWNER, ("", 0))
                if not self._shared or (machine == self.machine and not is_alive(process)):
                    self._study.tell(trial.number, state=states.FAIL)

    # -- importance -------------------------------------------------------------------------------------------------

    def importances(self, values: list[tuple[Mapping[str, Any], float]]) -> dict[str, float]:
        """Computes how much each dimension of the search space influences the time to the score, with PED-ANOVA.

        Args:
            values: (coordinates, seconds that count for them) of each setting that was tried.

        Returns:
            Name of a dimension -> share of the influence, 0 to 1, the largest first. Empty if too few settings were
            tried.
        """
        with self._errors(), warnings.catch_warnings():
            warnings.simplefilter("ignore", self.optuna.exceptions.ExperimentalWarning)
            distributions = {
                name: distribution
                for trial in self._study.get_trials(deepcopy=False)
                for name, distribution in trial.distributions.items()
            }
            study = self.optuna.create_study()
            for params, value in values:
                own = {name: distributions[name] for name in params}
                study.add_trial(self.optuna.trial.create_trial(params=dict(params), distributions=own, value=value))
            varied = [
                name
                for name in (values[0][0] if values else {})
                if all(name in params for params, _ in values) and len({params[name] for params, _ in values}) > 1
            ]
            if len(values) < START_TRIALS or not varied:
                return {}
            evaluator = self.optuna.importance.PedAnovaImportanceEvaluator()
            return dict(self.optuna.importance.get_param_importances(study, evaluator=evaluator, params=varied))
