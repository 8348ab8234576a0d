"""Evaluations: when the policy of a run is evaluated, in which process, and what follows from the results.

With ``eval_interval`` or ``eval_interval_s`` every due evaluation takes place. Without them checkpoints are evaluated
after they were written: each that finds the evaluating process idle or, in the training process, as many as
``eval_share`` of the time allows. A checkpoint with the best score so far becomes ``checkpoints/best``.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any, Protocol

from powerband.core.config import RunConfig
from powerband.core.machine.free_cores import FreeCores
from powerband.core.ranks.ranks import Ranks
from powerband.core.run.checkpoints.checkpoint_marks import (
    BEST,
    EVALUATING,
    Mark,
    queued,
    read_marks,
    remove_mark,
    write_mark,
)
from powerband.core.run.evaluations.evaluator_process import LOG, EvaluatorProcess
from powerband.core.telemetry.compilation import running_time
from powerband.core.telemetry.console import Console, duration_text
from powerband.core.telemetry.journal import Journal
from powerband.core.telemetry.metrics import Metrics

FREE_CORES = 0.9
"""Free cores from which ``eval_process=auto`` starts a process."""
MIN_INTERVAL_S = 10.0
"""Seconds of training between two evaluations from which ``eval_process=auto`` starts a process."""
FIRST_AFTER_S = 30.0
"""Seconds of training before the first evaluation of a checkpoint, whose duration is not known yet."""
SHOWN_FIGURES = 4
PREFIX = "eval/"


class EvaluatedRun(Protocol):
    """What evaluations use of a `Run`."""

    settings: RunConfig
    dir: Path
    ranks: Ranks
    clock: Any
    metrics: Metrics
    journal: Journal
    console: Console
    hooks: Any
    env_steps: int
    grad_steps: int
    saved_at: int

    @property
    def received_signal(self) -> str: ...
    @property
    def elapsed_s(self) -> float: ...
    @property
    def training_s(self) -> float: ...
    def save(self) -> None: ...
    def log(self) -> None: ...
    def may_save(self) -> bool: ...


class Evaluations:
    """Evaluates the policy of a run. All ranks make the same calls; rank 0 evaluates, and decides for all.

    Args:
        run: The run.
        score: Figure that measures the policy, larger is better; "" keeps no best checkpoint.
    """

    def __init__(self, run: EvaluatedRun, score: str) -> None:
        self._run, self._score = run, score
        settings = run.settings
        self._of_checkpoints = not settings.eval_interval and not settings.eval_interval_s and settings.eval_share > 0
        self._process: EvaluatorProcess | None = None
        self._pending: Mark | None = None
        self._queue: list[Mark] = []
        self._failed = False
        self._best: float | None = None
        self._free_cores = FreeCores()
        self._began_s = self._evaluated_at_s = 0.0
        self._evaluated_step = -1
        self._affordable_at_s = FIRST_AFTER_S

    # -- moments of the run -------------------------------------------------------------------------------------

    def notice(self) -> str:
        """Notice about a setting without effect; "" if all have one."""
        hooks = self._run.hooks
        if self._run.settings.eval_process == "on" and hooks.evaluate is not None and not hooks.evaluator:
            return "eval_process=on has no effect: this stage can evaluate in the training process only"
        return ""

    def resumed(self) -> None:
        """Continues after a resume: with the best score so far, and with the evaluations that had not ended."""
        run = self._run
        if not run.ranks.leads:
            return
        marks = read_marks(run.dir)
        best = marks.pop(BEST, None)
        if best is not None and best.step <= run.env_steps:
            self._best = best.figures.get(self._score)
        self._evaluated_at_s = run.training_s
        self._affordable_at_s = run.training_s + FIRST_AFTER_S
        pending = sorted((mark for mark in marks.values() if mark.step <= run.env_steps), key=lambda mark: mark.step)
        for name in marks:
            remove_mark(run.dir, name)
        if pending and self._may_start_process():
            self._submit(pending[0])
            for mark in pending[1:]:
                self._enqueue(mark)

    def due(self) -> None:
        """Evaluates now, because an interval has passed."""
        run = self._run
        if self._decided("process" if self._wants_process() else "here") == "process" and self._submitted():
            return
        figures = self._play()
        for name, value in figures.items():
            run.metrics.set_scalar(name, value)
        improves = any(run.ranks.gather(run.ranks.leads and self._improves(figures)))
        run.log()  # each evaluation has its own line at its step
        if improves and run.saved_at != run.env_steps and all(run.ranks.gather(run.may_save())):
            run.save()
        if improves and run.saved_at == run.env_steps:
            self._mark_best(run.env_steps, figures)

    def _submitted(self) -> bool:
        """Saves, waits for the evaluating process, and lets it evaluate this step.

        Returns:
            False if that process has failed meanwhile. True also if a signal ends the run.
        """
        run = self._run
        if run.saved_at != run.env_steps:
            run.save()
        if run.ranks.leads and self._pending is not None:
            self._enqueue(self._now())  # before the wait, which a signal or a kill may end
        self._wait(for_results=False)
        if self._decided("failed" if self._failed else "") == "failed":
            return False
        if run.ranks.leads and self._pending is None:
            self._submit(self._now())
        return True

    def saved(self, last: bool = False) -> None:
        """Evaluates the checkpoint that was just written, if the time allows.

        Args:
            last: Whether the run has reached its budget. It then waits for the evaluating process, so the evaluation
                must be affordable there too.
        """
        run = self._run
        if not self._of_checkpoints or run.hooks.evaluate is None:
            return
        affordable = run.training_s >= self._affordable_at_s
        choice = "here" if affordable else ""
        if run.ranks.leads and self._evaluated_step == run.env_steps:
            choice = ""
        elif run.ranks.leads and (affordable or not last) and self._wants_process():
            choice = "" if self._pending is not None else "process"
        choice = self._decided(choice)
        if choice == "here":
            mark = self._now()
            self._record(mark, self._play())
        elif choice and run.ranks.leads:
            self._submit(self._now())

    def collect(self) -> None:
        """Takes the result of the evaluating process, if there is one."""
        if self._pending is not None:
            self._receive(0.0)

    def finish(self, interrupted: bool) -> None:
        """Waits for the evaluating process at the end of the run; a run that a signal ends does not wait."""
        if not interrupted and self._run.hooks.evaluate is not None:
            self._wait()
        if self._pending is not None:
            self._run.console.note(f"the evaluation of step {self._pending.step:,} has not ended; a resume repeats it")

    def close(self) -> None:
        """Ends the evaluating process."""
        if self._process is not None:
            self._process.close()
            self._process = None
            self._run.ranks.progress.set_evaluator(0)

    # -- where --------------------------------------------------------------------------------------------------

    def _decided(self, choice: str) -> str:
        """Returns the choice of rank 0 on all ranks."""
        return self._run.ranks.gather(choice)[0]

    def _may_start_process(self) -> bool:
        return self._run.settings.eval_process != "off" and bool(self._run.hooks.evaluator) and not self._failed

    def _wants_process(self) -> bool:
        """True if the evaluating process is to evaluate now. Called on rank 0; other ranks' answers do not count."""
        run = self._run
        if not run.ranks.leads or not self._may_start_process():
            return False
        if self._process is not None or run.settings.eval_process == "on":
            return True
        return run.training_s - self._evaluated_at_s >= MIN_INTERVAL_S and self._free_cores.read() >= FREE_CORES

    # -- in this process ----------------------------------------------------------------------------------------

    def _play(self) -> dict[str, float]:
        """Evaluates on rank 0, while the other ranks wait. Returns the figures with their prefix; {} elsewhere."""
        run, figures, began = self._run, {}, running_time()
        trained_s = run.training_s
        with run.clock("eval"):
            if run.ranks.leads and run.hooks.evaluate is not None:
                figures = {f"{PREFIX}{name}": float(value) for name, value in run.hooks.evaluate().items()}
            run.ranks.barrier()
        seconds = running_time() - began
        run.journal.evaluation_s += seconds
        self._evaluated_at_s, self._evaluated_step = trained_s, run.env_steps
        self._affordable_at_s = trained_s + seconds / max(run.settings.eval_share, 1e-9)
        return figures

    # -- in the evaluating process ------------------------------------------------------------------------------

    def _now(self) -> Mark:
        """Marks the current step with the counters of its line in the metrics."""
        run = self._run
        counters = {"grad_steps": run.grad_steps, "time_s": run.elapsed_s, "time/training_s": run.training_s}
        return Mark(run.env_steps, counters)

    def _submit(self, mark: Mark) -> None:
        run = self._run
        if self._process is None:
            self._process = EvaluatorProcess(run.hooks.evaluator, run.dir)
            run.ranks.progress.set_evaluator(self._process.pid)
            run.console.note(f"evaluations run in process {self._process.pid}, with low priority; it prints to {LOG}")
        write_mark(run.dir, EVALUATING, mark)
        self._process.send(run.dir / "checkpoints" / str(mark.step))
        self._pending, self._began_s = mark, time.perf_counter()
        self._evaluated_at_s, self._evaluated_step = run.training_s, mark.step

    def _enqueue(self, mark: Mark) -> None:
        """Lets the evaluating process evaluate a checkpoint after those that it has to evaluate."""
        write_mark(self._run.dir, queued(mark.step), mark)
        self._queue.append(mark)

    def _wait(self, for_results: bool = True) -> None:
        """Waits for the evaluating process on rank 0, or for a signal that ends the run.

        The other ranks wait for rank 0 in the phase of an evaluation, which may take long.

        Args:
            for_results: Wait for all results; false waits only until no step is queued.
        """

        def unfinished() -> bool:
            return self._pending is not None if for_results else bool(self._queue)

        if self._pending is not None:
            spent = duration_text(time.perf_counter() - self._began_s)
            note = f"waiting for the evaluation of step {self._pending.step:,}, which began {spent} ago"
            self._run.console.note(note)
        began = running_time()
        with self._run.clock("eval"):
            while unfinished() and not self._run.received_signal:
                self._receive(1.0)
            self._run.ranks.barrier()
        self._run.journal.evaluation_s += running_time() - began

    def _receive(self, wait_s: float) -> None:
        assert self._process is not None and self._pending is not None
        answer = self._process.answer(wait_s)
        if answer is None:
            return
        mark, self._pending = self._pending, None
        if answer.error:
            self._failed, self._evaluated_step = True, -1
            self.close()
            self._run.console.note(
                f"the evaluation of step {mark.step:,} failed ({answer.error}); see {LOG}. Later ones run in the "
                f"training process."
            )
        else:
            seconds = time.perf_counter() - self._began_s
            self._affordable_at_s = self._evaluated_at_s + seconds / max(self._run.settings.eval_share, 1e-9)
            self._record(mark, {f"{PREFIX}{name}": value for name, value in answer.figures.items()})
        remove_mark(self._run.dir, EVALUATING)
        if self._failed:
            for each in self._queue:
                remove_mark(self._run.dir, queued(each.step))
            self._queue.clear()
        if self._queue:
            self._submit(following := self._queue.pop(0))
            remove_mark(self._run.dir, queued(following.step))

    # -- results ------------------------------------------------------------------------------------------------

    def _record(self, mark: Mark, figures: dict[str, float]) -> None:
        """Writes a line of metrics at the step of the checkpoint, and marks that if it is the best, on rank 0."""
        if not self._run.ranks.leads:
            return
        self._run.metrics.write({"env_steps": mark.step, **mark.figures, **figures})
        shown = [f"{name.removeprefix(PREFIX)} {value:.4g}" for name, value in figures.items()][:SHOWN_FIGURES]
        best = self._improves(figures)
        if best:
            self._mark_best(mark.step, figures)
        text = f"evaluation of step {mark.step:,}: {', '.join(shown)}"
        self._run.console.note(text + (" (the best so far)" if best else ""))

    def _improves(self, figures: dict[str, float]) -> bool:
        value = figures.get(f"{PREFIX}{self._score}", math.nan)
        return math.isfinite(value) and (self._best is None or value > self._best)

    def _mark_best(self, step: int, figures: dict[str, float]) -> None:
        if self._run.ranks.leads:
            self._best = figures[f"{PREFIX}{self._score}"]
            write_mark(self._run.dir, BEST, Mark(step, {self._score: self._best}))
