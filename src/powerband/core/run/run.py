"""Run: one training run on this rank, with its device, folder, counters, clock, metrics and checkpoints.

A loop calls `register` for each part with state, `begin` once, `learned` after each update, and `tick` after each
iteration. `tick` counts, logs, evaluates and saves, each at its own interval. It ends the run at its budget, after a
signal, at its time limit, or if a loss is not finite. All ranks make the same decisions: they first agree on everything
that depends on a clock, a signal or a batch.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from powerband.core.config import RunConfig, to_json
from powerband.core.errors import ConfigError
from powerband.core.noise import NoiseSource
from powerband.core.optim.precision import Precision
from powerband.core.rank_context import RankContext
from powerband.core.ranks.ranks import Ranks
from powerband.core.run.checkpoints import checkpoint_writer
from powerband.core.run.checkpoints.checkpoint_files import verify_kept
from powerband.core.run.checkpoints.disk_use import disk_use
from powerband.core.run.due_actions import DueActions
from powerband.core.run.evaluations.evaluations import Evaluations
from powerband.core.run.failures import end_if_not_finite, final_error
from powerband.core.run.folders.owned_folder import OwnedFolder
from powerband.core.run.folders.roll_call import CheckSizes
from powerband.core.run.folders.storage import Storage
from powerband.core.run.hooks import RunHooks
from powerband.core.run.nan.nan_guard import NanGuard
from powerband.core.run.restore import restore
from powerband.core.run.startup import prepare_run
from powerband.core.run.state_registry import Redistribute, Stateful, StateRegistry
from powerband.core.stalls.watched_rank import WatchedRank
from powerband.core.telemetry.compilation import exclude_compilation, running_time
from powerband.core.telemetry.journal import Journal


class RunObserver(Protocol):
    """Interface of a measurement that a run calls at certain points. It must not change the training."""

    def on_tick(self, run: Run) -> None:
        """Called at the end of each iteration, outside of all ``with run.clock(name)`` blocks."""

    def on_batch(self, batch: Any) -> None:
        """Called with the batch of each update."""

    def on_average(self, flat: Tensor) -> None:
        """Called with each flat tensor (P,), P numbers, before the ranks average it.

        That is the gradient of an update, another number of it, such as PPO's KL divergence, or the mean or the
        variance of new rows of running statistics.
        """


def _no_spares() -> None:
    """Tells no process that the run has ended."""


class Run:
    """One training run on one rank. Use it as a context manager: ``with Run.start(config, ...) as run:``.

    Attributes:
        config: The configuration of the recipe; ``config.run`` is the RunConfig.
        dir: The run folder on this rank's machine.
        storage: Folders of all ranks.
        owned_folder: The lock on the run folder, and the files that name the processes of the run.
        registry: The parts whose state checkpoints contain.
        evaluations: The evaluations during training.
        ranks: Process group, with the rank of this process.
        device: Device of this rank's networks and batches.
        precision: Floating point type of networks.
        noise: Random streams of this rank.
        journal: Writes the logs of the run.
        clock: Measures the time of the loop by category; loops put their phases in ``with run.clock("env"):``.
        metrics: Accumulators of the current log interval.
        console: Prints messages and progress.
        guard: Detects losses that are not finite.
        env_steps: Environment steps so far, over all ranks.
        grad_steps: Updates so far.
        running: False once the loop must end.
        hooks: Functions of the recipe that the run calls.
        observer: Receives batches and iterations for a measurement of this run; None for a normal run.
        ranks_changed: True after a resume with another number of ranks; the loop then starts new episodes.
        saved_at: Environment steps of the newest checkpoint of this process; -1 before the first.
    """

    def __init__(
        self,
        config: Any,
        folder: Path,
        ranks: Ranks,
        observer: RunObserver | None = None,
        storage: Storage | None = None,
        score: str = "",
    ) -> None:
        settings: RunConfig = config.run
        self.config, self.settings, self.storage = config, settings, storage or Storage.shared(ranks, folder)
        self.dir, self.ranks, self.device = folder, ranks, ranks.device
        self.journal = Journal(folder, settings, ranks)
        self.clock, self.metrics, self.console = self.journal.clock, self.journal.metrics, self.journal.console
        assert settings.precision != "auto"  # `prepare_run` replaces it
        self.precision = Precision(settings.precision, self.device)
        self.guard = NanGuard(ranks, scaled=settings.precision == "fp16")
        self.noise = NoiseSource(settings.seed, self.device, ranks.rank)
        self.env_steps = self.grad_steps = self._new_updates = 0
        self.running, self.ranks_changed = True, False
        self._began = False
        self.observer = observer
        self.hooks = RunHooks()
        self._banner: dict[str, str] = {}
        if observer is not None:
            ranks.on_average = observer.on_average
        self.recipe = ""
        self.owned_folder = OwnedFolder(self.storage)
        self._end_spares: Callable[[], None] = _no_spares
        self._watched: WatchedRank | None = None
        self.saved_at = -1
        self._elapsed_before_s = 0.0
        self._due = DueActions(settings, ranks, self.journal, self.guard)
        self.evaluations = Evaluations(self, score)
        self.registry = StateRegistry(ranks)
        self.register("noise", self.noise, redistribute=lambda states: self.noise.continue_from(states[0]))
        self.register("metrics", self.metrics, redistribute=self.metrics.load_sums)

    # -- start and end ------------------------------------------------------------------------------------------

    @classmethod
    def start(
        cls,
        config: Any,
        *,
        recipe: str,
        stage: str,
        argv: list[str],
        observer: RunObserver | None = None,
        restarted: bool = False,
        new_folder: str = "",
        check_sizes: CheckSizes | None = None,
        score: str = "",
    ) -> Run:
        """Starts a run: joins the ranks, creates or finds the run folder, and writes the configuration.

        Args:
            config: Configuration of the recipe; its field ``run`` is a `RunConfig`.
            recipe: Name of the recipe.
            stage: Name of the stage (function of the recipe) that runs, such as train.
            argv: The command line after ``powerband``.
            observer: Receives batches and iterations for a measurement of the run; None for a normal run.
            restarted: True if a launcher has started the ranks again, so that they continue the run in their folder.
            new_folder: Folder of a new run without ``run_dir``.
            check_sizes: Checks the sizes for a number of ranks, so that ranks that do not fit wait as spares; None
                lets all of them work.
            score: Figure of the evaluations that selects the best checkpoint, larger is better; "" keeps none.

        Raises:
            ConfigError: The run folder contains another run, is in use, or cannot be written.
        """
        startup = prepare_run(config, recipe, stage, argv, restarted, new_folder, check_sizes)
        own = startup.own
        try:
            run = cls(startup.config, own.folder, startup.ranks, observer, startup.storage, score)
        except BaseException:  # such as a log of another user
            own.give_up()
            startup.watched.close()
            startup.meeting.end(startup.spares)
            raise
        run.recipe = recipe
        run._watched = startup.watched
        run.owned_folder = OwnedFolder(startup.storage, own, startup.jobs)
        run._end_spares = partial(startup.meeting.end, startup.spares)
        run.describe(startup.banner)
        if own.lock is not None and not run.ranks.leads:  # a machine with a private folder
            print(f"powerband: {run.storage.description}", file=sys.stderr)
        for notice in sorted({line for lines in run.ranks.gather(startup.notices) for line in lines}):
            run.console.note(notice)
        if not run.settings.resume:
            run.owned_folder.write_processes()
        return run

    def __enter__(self) -> Run:
        self._due.stop_request.handle_signals()
        self.restart_clocks()
        return self

    def restart_clocks(self) -> None:
        """Restarts the elapsed time, the phase clock and the log interval.

        `restore` calls it before the first step, to exclude loading of data and other preparation. Compilation in
        later steps is excluded, too.
        """
        exclude_compilation(self.clock)
        self._started = running_time()
        self._due.restart()
        self.journal.restart(self.env_steps, self.grad_steps)

    def __exit__(self, kind: type | None, error: BaseException | None, trace: Any) -> None:
        # With several ranks the handlers stay: when one rank ends, the launcher signals the others, which must finish.
        if self.ranks.world_size == 1:
            self._due.stop_request.restore_handlers()
        final = final_error(self, error)
        ended = self._due.stop_request.reason or self.received_signal or "budget reached"
        reason = f"{type(final).__name__}: {final}" if final else ended
        self.owned_folder.write_end(reason)
        self.evaluations.close()
        try:
            place = f"run folder: {self.dir}"
            if self.received_signal:
                place = f"continue with: powerband train {self.recipe} resume={self.dir}"
            self.journal.close("" if final else f"{reason}; {place}")
        finally:
            self.owned_folder.own.release()
            if self._watched is not None:
                self._watched.close()
        if final is not None and not self.env_steps and (isinstance(final, ConfigError) or not self._began):
            self.owned_folder.own.give_up()  # nothing is lost, and the user can use the folder again
        if isinstance(final, ConfigError) or (final is None and not self.received_signal):  # no launcher restarts it
            self._end_spares()
        self.ranks.close()
        if final is not None and final is not error:
            raise final from error

    @property
    def received_signal(self) -> str:
        """Name of the signal that ends the run, received on this rank or another one; "" without a signal."""
        return self._due.stop_request.received_signal

    @property
    def exit_status(self) -> int:
        """Exit status of the command: 128 + its number after a signal, otherwise 0."""
        return self._due.stop_request.exit_status

    @property
    def context(self) -> RankContext:
        """Device, precision and random streams for the learners of this rank."""
        return RankContext(self.ranks, self.precision, self.noise)

    def describe(self, rows: Mapping[str, str]) -> None:
        """Adds lines to the banner that the run prints at its start: `rows` is label -> text."""
        self._banner |= rows

    def stop(self, reason: str) -> None:
        """Requests the end of the run on all ranks, at the next iteration at which they agree.

        The run saves a checkpoint and prints `reason`. If there are several reasons, it prints the first.
        """
        self._due.stop_request.request(reason)

    # -- state --------------------------------------------------------------------------------------------------

    def register(
        self, name: str, part: Stateful, shared: bool = False, redistribute: Redistribute | None = None
    ) -> None:
        """Adds `part`, such as the learner, to the state that checkpoints of this run contain.

        Args:
            name: Name of the part, equal on all ranks.
            part: Object with ``state_dict`` and ``load_state_dict``.
            shared: True if the part is equal on all ranks, so that it is saved once.
            redistribute: Restores the part from its states on all saved ranks, a list in rank order, if the checkpoint
                has another number of ranks. None refuses such a checkpoint, unless the part is shared.
        """
        self.registry.add(name, part, shared, redistribute)

    def registered(self, name: str) -> Any:
        """The part registered as `name`; None if the name is unknown."""
        return self.registry.get(name)

    def restore(self) -> bool:
        """Loads the checkpoint of the setting ``resume`` into all registered parts.

        Returns:
            True if a checkpoint was loaded; False for a new run.

        Raises:
            CheckpointError: All checkpoints are damaged, or the shapes differ.
        """
        return restore(self)

    def state_dict(self) -> dict:
        """Counters, elapsed seconds and states of the periodic triggers; saved by rank 0 for all ranks."""
        return {
            "env_steps": self.env_steps,
            "grad_steps": self.grad_steps,
            "elapsed_s": self.elapsed_s,
            **self._due.state_dict(),
            **self.journal.state_dict(),
        }

    def load_state_dict(self, state: dict) -> None:
        """Restores counters, elapsed seconds and periodic triggers from a `state_dict`."""
        self.env_steps = self.saved_at = state["env_steps"]
        self.grad_steps = self.guard.updates = state["grad_steps"]
        self.journal.load_state_dict(state)
        self._elapsed_before_s = state["elapsed_s"]
        self._due.load_state_dict(state)

    def export_policy(self, tensors: dict[str, Tensor]) -> None:
        """Writes the weights of the policy and the configuration of the run to ``policy/`` in the run folder.

        `tensors` is name -> weight. Ranks other than rank 0 write nothing.
        """
        if self.ranks.leads:
            checkpoint_writer.export_policy(self.dir, json.loads(to_json(self.config)), tensors)

    def save(self) -> None:
        """Writes a checkpoint of all ranks. The previous checkpoint stays until this one is complete.

        Raises:
            NonFiniteError: A value of the checkpoint is not finite; nothing is written.
            ConfigError: Another process has taken the run folder over; nothing is written.
        """
        with self.clock("save"), self._due.save_timer:
            self.owned_folder.check_lock_on_all_ranks()
            end_if_not_finite(self, inspect=True)
            if self.hooks.before_save is not None:
                self.hooks.before_save()
            self.registry.save(self.storage, self.state_dict(), self.settings.keep_checkpoints, self.hooks.export)
        if self.saved_at < 0 and self.ranks.leads:
            replay = self.registered("replay") is not None
            path = self.dir / "checkpoints" / str(self.env_steps)
            self.console.note(disk_use(path, self.settings.keep_checkpoints, replay))
        self.saved_at = self.env_steps

    def may_save(self) -> bool:
        """True if one more checkpoint keeps saving within its share of the time, and this run saves at all."""
        return self._due.saves and self._due.save_timer.affordable()

    # -- one iteration of a loop --------------------------------------------------------------------------------

    @property
    def prepared_s(self) -> float:
        """Seconds since the start of the run or the last call of `restart_clocks`."""
        return running_time() - self._started

    @property
    def elapsed_s(self) -> float:
        """Seconds of training, including those before a resume."""
        return self._elapsed_before_s + self.prepared_s

    @property
    def training_s(self) -> float:
        """Seconds of training without evaluations, including those before a resume."""
        return self.elapsed_s - self.journal.evaluation_s

    @property
    def progress(self) -> float:
        """Spent share of the budget, 0 to 1: of the environment steps or of the time limit, whichever is larger.

        With a time limit all ranks must read it equally often: they agree on the largest share, because learning rates
        follow from it and the clocks of ranks differ.
        """
        limit = self.settings.time_limit_s
        spent = self.elapsed_s / limit if limit > 0 else 0.0
        if limit > 0 and self.ranks.world_size > 1:
            spent = float(self.ranks.max_(torch.tensor(spent, dtype=torch.float64, device=self.device)))
        return min(1.0, max(self.env_steps / max(self.settings.env_steps, 1), spent))

    def learned(self, losses: dict[str, Tensor], updates: int = 1) -> None:
        """Counts updates and records their losses, on CUDA without host-device synchronisation.

        Args:
            losses: Name -> 0-d tensor of the update, or its mean over `updates` updates.
            updates: Number of updates.
        """
        self.guard.record(tuple(losses), self.metrics.add(losses, updates), updates)
        self._new_updates += updates

    def tick(self, env_steps: int) -> None:
        """Ends one iteration of a loop; logs, evaluates, saves and stops if due.

        Args:
            env_steps: Environment steps of this iteration over all ranks.
        """
        grad_steps, self._new_updates = self._new_updates, 0
        if grad_steps and not self.grad_steps:  # iterations with updates take many times as long
            self._due.iterations_change()
        self.env_steps += env_steps
        self.grad_steps += grad_steps
        self.ranks.progress.iteration(self.env_steps, grad_steps)
        self.journal.step(self.env_steps, self.grad_steps, self.elapsed_s)
        self.guard.tick()
        self.owned_folder.check_lock()
        due = self._due.after_iteration(self.env_steps, self.elapsed_s, self.training_s)
        if due.not_finite:
            end_if_not_finite(self)
        self.evaluations.collect()
        log = self.journal.line_due(self.env_steps, due.log)
        if due.evaluate and self.hooks.evaluate is not None:
            end_if_not_finite(self)
            self._due.evaluation_begins(self.training_s)
            self.evaluations.due()
        if log:
            self.log()
        if due.save:
            if self.saved_at != self.env_steps:
                self.save()
            if not due.interrupted:
                self.evaluations.saved()
        self.journal.trace(env_steps, grad_steps)
        self.running = not due.end and self.env_steps < self.settings.env_steps
        if self.observer is not None:
            self.observer.on_tick(self)

    def finish(self) -> None:
        """Ends the run after its loop: writes the last checkpoint, log line and trace.

        The checkpoint comes first, so that a resumed run continues the current log interval. It is read again, so that
        no run ends well without a checkpoint that can be continued.

        Raises:
            CheckpointError: The checkpoint cannot be read again.
            ConfigError: Another process has taken the run folder over.
        """
        self.owned_folder.check_lock_on_all_ranks()
        if self.saved_at != self.env_steps:
            self.save()
        verify_kept(self.storage, self.env_steps)
        self.log()
        interrupted = any(self.ranks.gather(bool(self.received_signal)))  # a signal may come after the last agreement
        self.evaluations.finish(interrupted)
        if not interrupted:
            self.evaluations.saved(last=True)
            self.evaluations.finish(interrupted)
        self.journal.finish()
        self.ranks.progress.loop_ends()

    def log(self) -> None:
        """Ends the log interval and writes its rates, time shares and means to file, TensorBoard and console."""
        self.guard.record_norms(self.journal.write(self.env_steps, self.grad_steps, self.elapsed_s))

    def begin(self, sizes: Mapping[str, str], hooks: RunHooks | None = None) -> bool:
        """Prints the start banner and restores the checkpoint of the setting ``resume``. A loop calls it once.

        Args:
            sizes: Label -> text of the training loop's sizes, for the start banner.
            hooks: Functions of the recipe that the run calls, such as an evaluation; None calls nothing.

        Returns:
            True if a checkpoint was restored.
        """
        self.hooks = hooks or self.hooks
        self.journal.banner({**self._banner, **sizes})
        if notice := self.evaluations.notice():
            self.console.note(notice)
        restored = self.restore()
        self.ranks.progress.loop_begins()
        self._began = True
        return restored
