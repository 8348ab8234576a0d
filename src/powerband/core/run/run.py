"""Run: what a loop is handed. One training run on this rank: its device, folder, counters, clock, metrics, checkpoints.

A loop calls `attach` for everything that has state, `restore` once, `learned` after each update and `tick` after each
of its iterations; `tick` counts, logs, evaluates and saves, each at its own cadence, and ends the run at its budget, at
a signal, at its time limit, or where a loss is not finite any more. All ranks decide alike: what depends on a clock, a
signal or a batch is agreed between them first.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import torch
from torch import Tensor

from powerband import __version__
from powerband.core.config import RunConfig, to_json
from powerband.core.errors import ConfigError
from powerband.core.machine import rendering
from powerband.core.machine.device import device_names, host_facts, set_backend_flags, set_threads
from powerband.core.noise import NoiseSource
from powerband.core.optim.precision import Precision, resolve_precision
from powerband.core.rank_context import RankContext
from powerband.core.ranks.agreement import RankAgreement
from powerband.core.ranks.ranks import Ranks
from powerband.core.run import checkpoint
from powerband.core.run.failures import end_if_not_finite, final_error
from powerband.core.run.nan_guard import NanGuard
from powerband.core.run.state_registry import Stateful, StateRegistry
from powerband.core.run_folder import (
    claim_run_folder,
    process_facts,
    remove_unused_run,
    write_end_reason,
    write_processes,
)
from powerband.core.schedule import Every
from powerband.core.telemetry.journal import Journal


@dataclass(frozen=True)
class RunHooks:
    """Functions of a recipe that a run calls.

    Attributes:
        evaluate: Plays an evaluation and returns its figures; called on rank 0 every ``eval_interval`` steps.
        before_save: Called on all ranks before each checkpoint, such as to gather weights that lie in shards.
    """

    evaluate: Callable[[], dict[str, float]] | None = None
    before_save: Callable[[], None] | None = None


class RunObserver(Protocol):
    """A measurement of a run. It must not change what is learned."""

    def on_tick(self, run: Run) -> None:
        """Called at the end of each iteration, outside of all spans of the clock."""

    def on_batch(self, batch: Any) -> None:
        """Called with the batch of each update."""

    def on_average(self, flat: Tensor) -> None:
        """Called with each gradient that the ranks average."""


class Run:
    """One training run as seen by one rank. Use as a context manager: ``with Run.start(config, ...) as run:``.

    Attributes:
        config: The recipe's whole configuration; ``config.run`` is the RunConfig.
        dir: The run folder.
        ranks: This process among the others.
        device: Where this rank's networks and batches live.
        journal: What the run says about itself.
        clock: Phase clock; loops put their phases in ``with run.clock("env"):``.
        metrics: Accumulators of the interval that is under way.
        console: What a person sees.
        guard: Looks for losses that are not finite.
        env_steps, grad_steps: Global counters over ranks.
        signalled: Name of the signal that asked this rank to end, "" for none.
        hooks: Functions of the recipe that the run calls.
        observer: Measurement that watches this run; None for a normal run.
    """

    def __init__(self, config: Any, folder: Path, ranks: Ranks, observer: RunObserver | None = None) -> None:
        settings: RunConfig = config.run
        self.config, self.settings = config, settings
        self.dir, self.ranks, self.device = folder, ranks, ranks.device
        self.journal = Journal(folder, settings, ranks)
        self.clock, self.metrics, self.console = self.journal.clock, self.journal.metrics, self.journal.console
        self.precision = Precision(settings.precision, self.device)
        self.guard = NanGuard(ranks, scaled=settings.precision == "fp16")
        self.noise = NoiseSource(settings.seed, self.device, ranks.rank)
        self.env_steps = self.grad_steps = self._new_updates = 0
        self.running = True
        self.observer = observer
        self.hooks = RunHooks()
        self._banner: dict[str, str] = {}
        if observer is not None:
            ranks.on_average = observer.on_average
        self.recipe, self._created_folder = "", False
        self._noted = False
        self._saved_at = -1
        self._elapsed_before_s = 0.0
        self.received_signal = self._stop_requested = self._stop_reason = ""
        self._eval_every = Every(settings.eval_interval)
        self._save_every = Every(settings.save_interval)
        self._agreement = RankAgreement(ranks, self.clock)
        self._attached = StateRegistry(ranks)
        self.register("noise", self.noise)
        self.register("metrics", self.metrics)

    # -- start and end ------------------------------------------------------------------------------------------

    @classmethod
    def start(
        cls, config: Any, *, recipe: str, stage: str, argv: list[str], observer: RunObserver | None = None
    ) -> Run:
        """Joins the ranks, claims the run folder and writes what the run is into it.

        Args:
            config: The recipe's configuration.
            recipe: Name of the recipe.
            stage: Name of its stage.
            argv: The command line after ``powerband``.
            observer: Is called during training; a measurement of the run.

        Raises:
            ConfigError: The run folder holds another run, or cannot be written.
        """
        settings: RunConfig = config.run
        ranks = Ranks.from_environment(device_names(settings))
        set_threads(settings.threads, ranks.world_size)
        switches = set_backend_flags(settings)
        config, choices = resolve_precision(config, ranks)
        renders = rendering.prepare(ranks.device)  # before any simulator is imported; worker processes inherit it
        claimed, created = claim_run_folder(settings.resume, settings.run_dir, recipe) if ranks.leads else ("", False)
        folder = Path(ranks.gather(str(claimed))[0])
        facts = {
            "recipe": recipe,
            "stage": stage,
            "command": "powerband " + " ".join(argv),
            "powerband": __version__,
            "world_size": ranks.world_size,
            "host": host_facts(),
            "choices": choices,
        }
        if ranks.leads and not settings.resume:  # a resume may still be refused: it must leave these files alone
            (folder / "config.json").write_text(to_json(config))
            (folder / "run.json").write_text(json.dumps(facts, indent=2))
        ranks.barrier()
        torch.manual_seed(settings.seed)  # the same initial weights on every rank; all later draws are the streams' own
        run = cls(config, folder, ranks, observer)
        run.recipe, run._created_folder = recipe, created
        run.describe(choices)
        if ranks.device.type == "cuda" or settings.detect_anomaly:
            run.describe({"switches": switches})
        if renders.line:
            run.describe({"rendering": renders.line})
        for notice in sorted({line for lines in ranks.gather(list(renders.notices)) for line in lines}):
            run.console.note(notice)
        if not settings.resume:
            run._note_processes()
        return run

    def _note_processes(self) -> None:
        """Lets others find the processes of this run; a collective."""
        processes = self.ranks.gather(process_facts())
        if self.ranks.leads:
            write_processes(self.dir, processes)
        self._noted = self.ranks.leads

    def __enter__(self) -> Run:
        self._previous_handlers = {
            number: signal.signal(number, self._on_signal) for number in (signal.SIGTERM, signal.SIGINT)
        }
        self.restart_clocks()
        return self

    def restart_clocks(self) -> None:
        """Starts the clocks; again just before the first step, so that compiling and reading count as no training."""
        self._started = time.perf_counter()
        self._agreement.restart()
        self.journal.restart(self.env_steps, self.grad_steps)

    def __exit__(self, kind: type | None, error: BaseException | None, trace: Any) -> None:
        if self.ranks.world_size == 1:  # of several, one that ends makes the launcher end the others: they finish first
            for number, handler in self._previous_handlers.items():
                signal.signal(number, handler)
        final = final_error(self, error)
        reason = f"{type(final).__name__}: {final}" if final else self._stop_reason or "budget reached"
        if self._noted:
            write_end_reason(self.dir, reason)
        self.journal.close("" if final else f"{reason}; run folder: {self.dir}")
        if isinstance(final, ConfigError) and self.ranks.leads and not self.settings.resume and not self.env_steps:
            remove_unused_run(self.dir, self._created_folder)
        self.ranks.close()
        if final is not error:
            raise final from error

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.received_signal:
            raise KeyboardInterrupt
        self.received_signal = signal.Signals(number).name

    @property
    def context(self) -> RankContext:
        """What the learners of this rank need to know about it."""
        return RankContext(self.ranks, self.precision, self.noise)

    def describe(self, rows: Mapping[str, str]) -> None:
        """Adds rows to the start banner."""
        self._banner |= rows

    def stop(self, reason: str) -> None:
        """Asks all ranks to end the run after this iteration; the first reason is printed."""
        self._stop_requested = self._stop_requested or reason

    # -- state --------------------------------------------------------------------------------------------------

    def register(self, name: str, part: Stateful, shared: bool = False) -> None:
        """Makes `part` belong to the run's whole state; `shared` parts are equal on all ranks and saved once."""
        self._attached.add(name, part, shared)

    def registered(self, name: str) -> Any:
        """What was attached as `name`; None where nothing was."""
        return self._attached.get(name)

    def restore(self) -> bool:
        """Loads the checkpoint that ``resume=`` named into everything attached; False where the run is a new one.

        Raises:
            CheckpointError: No checkpoint can be verified, or it belongs to another number of ranks or other shapes.
        """
        self.restart_clocks()
        if not self.settings.resume:
            return False
        path, notices = checkpoint.resolve_resume(self.settings.resume)
        for notice in notices:
            self.console.note(notice)
        self.load_state_dict(self._attached.load(path))
        if self.ranks.leads:
            (self.dir / "config.json").write_text(to_json(self.config))
        self._note_processes()
        self.metrics.rewind(self.journal.logged[0])
        self.console.note(f"resumed from {path} at {self.env_steps} env steps, {self.grad_steps} grad steps")
        return True

    def state_dict(self) -> dict:
        """Counters and cadences; equal on all ranks."""
        return {
            "env_steps": self.env_steps,
            "grad_steps": self.grad_steps,
            "elapsed_s": self.elapsed_s,
            "eval_every": self._eval_every.state_dict(),
            "save_every": self._save_every.state_dict(),
            **self.journal.state_dict(),
        }

    def load_state_dict(self, state: dict) -> None:
        """Restores `state_dict`."""
        self.env_steps = self._saved_at = state["env_steps"]
        self.grad_steps = self.guard.updates = state["grad_steps"]
        self.journal.load_state_dict(state)
        self._elapsed_before_s = state["elapsed_s"]
        self._eval_every.load_state_dict(state["eval_every"])
        self._save_every.load_state_dict(state["save_every"])

    def export_policy(self, tensors: dict[str, Tensor]) -> None:
        """Writes ``policy/``: the weights that act, and the configuration they were trained with."""
        if self.ranks.leads:
            checkpoint.export_policy(self.dir, json.loads(to_json(self.config)), tensors)

    def save(self) -> None:
        """Writes a whole-state checkpoint of all ranks; the one before it stays until this one is complete.

        Raises:
            NonFiniteError: It would hold what is not finite; nothing is written.
        """
        with self.clock("save"):
            end_if_not_finite(self, inspect=True)
            if self.hooks.before_save is not None:
                self.hooks.before_save()
            self._attached.save(self.dir, self.state_dict(), self.settings.keep_checkpoints)
        self._saved_at = self.env_steps

    # -- one iteration of a loop --------------------------------------------------------------------------------

    @property
    def elapsed_s(self) -> float:
        """Seconds of training, those before a resume included."""
        return self._elapsed_before_s + time.perf_counter() - self._started

    @property
    def progress(self) -> float:
        """Share of the budget that is spent, 0 to 1: of env steps, or of seconds where they run out first."""
        limit = self.settings.time_limit_s
        spent = self.elapsed_s / limit if limit > 0 else 0.0
        return min(1.0, max(self.env_steps / max(self.settings.env_steps, 1), spent))

    def learned(self, losses: dict[str, Tensor], updates: int = 1) -> None:
        """Counts `updates` updates and records their losses. No host synchronisation on CUDA.

        Args:
            losses: 0-d figures of the update, or their means over `updates` updates.
            updates: Number of updates.
        """
        self.guard.record(tuple(losses), self.metrics.add(losses, updates), updates)
        self._new_updates += updates

    def tick(self, env_steps: int) -> None:
        """Ends one iteration of a loop, and logs, evaluates, saves and stops if that is due.

        Args:
            env_steps: Environment steps of this iteration over all ranks.
        """
        grad_steps, self._new_updates = self._new_updates, 0
        if grad_steps and not self.grad_steps:  # from here on an iteration takes many times as long
            self._agreement.restart()
        self.env_steps += env_steps
        self.grad_steps += grad_steps
        self.journal.step(self.env_steps, self.grad_steps, self.elapsed_s)
        self.guard.tick()
        stop, log = self._agree()
        if self.journal.line_due(self.env_steps, log):
            self.log()
        if self.hooks.evaluate is not None and self._eval_every.ready(self.env_steps):
            self.run_evaluation()
        if self._save_every.ready(self.env_steps):
            self.save()
        self.journal.trace(env_steps, grad_steps)
        self.running = not stop and self.env_steps < self.settings.env_steps
        if self.observer is not None:
            self.observer.on_tick(self)

    def finish(self) -> None:
        """Ends the loop: the last checkpoint, then the last line. A resume goes on with the interval under way."""
        if self._saved_at != self.env_steps:
            self.save()
        self.log()
        self.journal.finish()

    def _agree(self) -> tuple[bool, bool]:
        """(stop, log): what clocks and signals ask for, the same on every rank; a loss not finite ends the run."""
        if not self._agreement.due():
            return False, False
        limit = self.settings.time_limit_s
        wants_stop = bool(self.received_signal or self._stop_requested) or (limit > 0 and self.elapsed_s >= limit)
        stop, log, bad = self._agreement.any_rank_wants(
            wants_stop, self.journal.wants_line(), self.guard.fault is not None
        )
        if bad:
            end_if_not_finite(self)
        if stop and not self._stop_reason:
            said = f"{self.received_signal}: saved" if self.received_signal else self._stop_requested
            self._stop_reason = said or f"time limit of {limit:g} s reached"
        return stop, log

    def run_evaluation(self) -> None:
        """Runs the recipe's evaluation and logs its figures under ``eval/``; rank 0 plays, the others wait."""
        end_if_not_finite(self)
        with self.clock("eval"):
            if self.ranks.leads and self.hooks.evaluate is not None:
                for name, value in self.hooks.evaluate().items():
                    self.metrics.set_scalar(f"eval/{name}", value)
            self.ranks.barrier()

    def log(self) -> None:
        """Ends the interval: rates, phase shares and the means of what was accumulated, to every sink."""
        self.guard.record_norms(self.journal.write(self.env_steps, self.grad_steps, self.elapsed_s))

    def begin(self, sizes: Mapping[str, str], hooks: RunHooks | None = None) -> bool:
        """Prints the start banner and restores the checkpoint that ``resume=`` names. A loop calls it once.

        Args:
            sizes: Last rows of the banner: the sizes of the loop.
            hooks: Functions of the recipe that the run calls.

        Returns:
            True if a checkpoint was restored.
        """
        self.hooks = hooks or self.hooks
        self.journal.banner({**self._banner, **sizes})
        return self.restore()
