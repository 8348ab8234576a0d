"""Trial: one training run in a child process, followed through its metrics until it reaches the score or its limit.

A trial is an ordinary run of ``powerband train`` in a run folder of its own. It is paused by a signal, after which it
saves a checkpoint, and continued with ``resume=``.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any, Literal

from powerband.core.config.schema import value_text
from powerband.core.machine.parent_death import signal_at_parent_death
from powerband.core.ranks.subprocesses import describe_exit, kill_session
from powerband.tune.score.curve import CurvePoint, is_unconfirmed, time_to_score

Outcome = Literal["reached", "paused", "ended", "stopped", "failed"]
"""reached the score; paused at the limit; ended by itself, because its budget of steps is spent; stopped because the
budget of the search is spent; failed."""
POLL_S = 0.2
SAVE_S = 120.0
"""Seconds that a run may take to save after a signal."""
PAUSED_STATUS = (0, 128 + signal.SIGTERM)
"""Exit status of a run that saved after the signal: of one rank, and of a launcher of several ranks."""
SILENT_S = 600.0
"""A run that writes no metrics for more seconds than this has failed."""
MAX_ERROR_CHARS = 300
OWN_OPTIONS = (
    *(
        "run_dir",
        "resume",
        "seed",
        "eval_interval",
        "eval_interval_s",
        "eval_process",
        "save_interval",
        "save_interval_s",
        "keep_checkpoints",
        "tensorboard",
    ),
    *("log_interval", "log_interval_s", "time_limit_s"),
)
"""Options of a run that the search sets for each trial."""


@dataclass(frozen=True)
class TrialRun:
    """Result of one start of a trial, a training run that can be paused and continued.

    Attributes:
        outcome: How it ended: reached (the score), paused (at its limit), ended (its steps are spent), stopped (the
            search is over), or failed.
        curve: All evaluations of the run, including those before a pause.
        env_steps: Environment steps at the last line of metrics.
        seconds: Seconds of training at the last line of metrics.
        wall_s: Duration of this start in seconds, including the start of the process and evaluations.
        message: Reason of a failure; "" otherwise.
    """

    outcome: Outcome
    curve: list[CurvePoint]
    env_steps: int
    seconds: float
    wall_s: float
    message: str = ""

    @property
    def rate(self) -> float:
        """Environment steps per second of training; 0 if unknown."""
        return self.env_steps / self.seconds if self.seconds > 0 else 0.0


def train_command(
    recipe: str,
    stage: str,
    arguments: Sequence[str],
    settings: Mapping[str, Any],
    folder: Path,
    seed: int,
    every_s: float,
) -> list[str]:
    """Returns the command line arguments of ``powerband`` that start a training run.

    Args:
        recipe: Name of the recipe.
        stage: Name of the stage (function of the recipe) to run, such as ``train``.
        arguments: Command line arguments of the user, without options that this function sets, such as seed.
        settings: Qualified name, such as ``run.threads``, -> value, in addition to the arguments.
        folder: Run folder.
        seed: Seed of the run.
        every_s: Seconds of training between two evaluations.
    """
    changed = [f"{name}={value_text(value)}" for name, value in settings.items()]
    own = [f"run.run_dir={folder}", f"run.seed={seed}", "run.eval_interval=0", f"run.eval_interval_s={every_s:.4g}"]
    own += ["run.eval_process=off"]  # a trial has one core
    own += ["run.tensorboard=false", "run.save_interval=0", "run.save_interval_s=0", "run.keep_checkpoints=1"]
    own += ["run.log_interval=0", "run.log_interval_s=1"]
    return ["train", recipe, stage, *arguments, *changed, *own]


def resume_command(recipe: str, stage: str, folder: Path) -> list[str]:
    """Returns the command line arguments of ``powerband`` that continue the paused training run in `folder`.

    The search has written the folder itself, so it trusts the modules that the folder names.
    """
    return ["train", recipe, stage, f"run.resume={folder}", "--trust"]


def run_trial(
    command: Sequence[str],
    folder: Path,
    score: str,
    target: float,
    limit_s: float,
    deadline: float,
    ended: Event | None = None,
) -> TrialRun:
    """Starts or continues a training run, and waits until it reaches the target, the limit or its end.

    Args:
        command: Result of `train_command` or `resume_command`.
        folder: Run folder.
        score: Name of the evaluation result that is compared with the target.
        target: Score at which the run is ended; infinity never ends it early.
        limit_s: Seconds of training at which the run is paused, unless its last evaluations reach the target from a
            time within the limit on: then it trains until they are confirmed or not.
        deadline: Value of ``time.monotonic()`` at which the run is stopped.
        ended: If another thread sets it, the run is stopped.
    """
    began = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    metrics, message = Metrics(folder / "metrics.jsonl", score), ""
    metrics.read()
    reached = time_to_score(metrics.curve, target) is not None
    if reached or is_over(metrics, target, limit_s):  # a long iteration before the pause has passed this limit, too
        return TrialRun("reached" if reached else "paused", metrics.curve, metrics.env_steps, metrics.seconds, 0.0)
    output = folder / "output.txt"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    with output.open("wb") as sink:
        process = subprocess.Popen(
            [sys.executable, "-u", "-P", "-m", "powerband", *command],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            env=environment,
            start_new_session=True,
            preexec_fn=partial(signal_at_parent_death, signal.SIGTERM),  # SIGKILL of the search leaves no trial behind
        )
    outcome: Outcome | None = None
    try:
        while outcome is None and process.poll() is None:
            time.sleep(POLL_S)
            metrics.read()
            if time_to_score(metrics.curve, target) is not None:
                outcome = "reached"
            elif is_over(metrics, target, limit_s):
                outcome = "paused"
            elif metrics.missing:
                outcome, message = "failed", f"the evaluation has no figure {score}, only {metrics.missing}"
            elif time.monotonic() >= deadline or (ended is not None and ended.is_set()):
                outcome = "stopped"
            elif metrics.silent_s() > SILENT_S:
                outcome, message = "failed", f"no metrics for {SILENT_S:g} s"
        if outcome is not None and process.poll() is None:
            process.send_signal(signal.SIGTERM)  # the run saves and ends
        try:
            status = process.wait(SAVE_S)
        except subprocess.TimeoutExpired:
            status = -signal.SIGKILL
    finally:
        kill_session(process)
    metrics.read()
    if outcome is None or (outcome == "paused" and status not in PAUSED_STATUS):
        outcome, message = ("failed", _error(output, status)) if status else ("ended", "")
        if time_to_score(metrics.curve, target) is not None:
            outcome, message = "reached", ""
    if outcome == "ended" and not metrics.curve:
        outcome, message = "failed", "the run ended before its first evaluation; raise env_steps"
    return TrialRun(outcome, metrics.curve, metrics.env_steps, metrics.seconds, time.monotonic() - began, message)


def is_over(metrics: Metrics, target: float, limit_s: float) -> bool:
    """Returns whether a run has passed its limit, and no evaluation within the limit waits to be confirmed."""
    return metrics.seconds >= limit_s and not is_unconfirmed(metrics.curve, target, limit_s)


class Metrics:
    """Reads the evaluations of a run from its ``metrics.jsonl``.

    Args:
        path: The file; it may not exist yet.
        score: Name of the evaluation result to read.

    Attributes:
        curve: Evaluations so far.
        env_steps, seconds: Environment steps and seconds of training at the last line.
        missing: Names of the results of an evaluation that has no `score`; "" if there was no such evaluation.
    """

    def __init__(self, path: Path, score: str) -> None:
        self.path, self.score = path, score
        self.curve: list[CurvePoint] = []
        self.env_steps, self.seconds, self.missing = 0, 0.0, ""
        self._size, self._changed = -1, time.monotonic()

    def read(self) -> None:
        """Reads the file if it has changed. A line that is not complete yet is left for the next call."""
        size = self.path.stat().st_size if self.path.exists() else 0
        if size == self._size:
            return
        self._size, self._changed = size, time.monotonic()
        self.curve = []
        for text in self.path.read_text(encoding="utf-8").splitlines() if size else ():
            try:
                line = json.loads(text)
            except json.JSONDecodeError:
                continue
            self.env_steps, self.seconds = line["env_steps"], line["time/training_s"]
            figures = [name.removeprefix("eval/") for name in line if name.startswith("eval/")]
            if self.score in figures:
                value = line[f"eval/{self.score}"]
                self.curve.append(
                    CurvePoint(self.env_steps, self.seconds, -math.inf if value is None else float(value))
                )
            elif figures:
                self.missing = ", ".join(figures)

    def silent_s(self) -> float:
        """Returns the seconds since the last change of the file."""
        return time.monotonic() - self._changed


def _error(output: Path, status: int) -> str:
    """Returns the last line that a failed run printed, or how its process ended."""
    lines = [line.strip() for line in output.read_text(errors="replace").splitlines() if line.strip()]
    own = [line.removeprefix("powerband: ") for line in lines if line.startswith("powerband: ")]
    text = (own or lines or [describe_exit(status)])[-1]
    return text[:MAX_ERROR_CHARS] if status > 0 else f"{describe_exit(status)}: {text}"[:MAX_ERROR_CHARS]
