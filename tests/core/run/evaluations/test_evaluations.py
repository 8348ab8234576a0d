"""Evaluations during training: each has its own line of metrics, and their time is not time of training."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import runs
from powerband.core.config import RunConfig
from powerband.core.run.checkpoints.checkpoint_marks import Mark
from powerband.core.run.evaluations.evaluations import Evaluations


def all_lines(run: Path) -> list[dict]:
    return [json.loads(text) for text in (run / "metrics.jsonl").read_text().splitlines()]


def lines_of(run_dir: Path, *words: str) -> list[dict]:
    run = runs.train("cartpole", run_dir, "num_workers=0", "eval_episodes=2", *words)
    return [line for line in all_lines(run) if "eval/return" in line]


def test_every_evaluation_has_a_line_at_its_own_step(tmp_path: Path) -> None:
    lines = lines_of(tmp_path / "run", "env_steps=640", "eval_interval=128")
    assert [line["env_steps"] for line in lines] == [128, 256, 384, 512, 640]
    assert all(line["perf/share/eval"] > 0 for line in lines)
    for before, after in zip(lines, lines[1:], strict=False):
        spent, trained = (after[name] - before[name] for name in ("time_s", "time/training_s"))
        assert trained == pytest.approx(spent * (1 - after["perf/share/eval"]), abs=0.02)


def test_evaluations_by_seconds_of_training_and_after_a_resume(tmp_path: Path) -> None:
    run = tmp_path / "run"
    lines = lines_of(run, "env_steps=100000", "eval_interval_s=0.1", "time_limit_s=1.5")
    seconds = [line["time/training_s"] for line in lines]
    assert len(seconds) >= 2 and all(b - a >= 0.1 for a, b in zip(seconds, seconds[1:], strict=False))
    runs.resume("cartpole", run, "time_limit_s=2.5")
    resumed = [line["time/training_s"] for line in all_lines(run) if "eval/return" in line]
    assert resumed[: len(seconds)] == seconds and len(resumed) > len(seconds)
    assert all(b - a >= 0.1 for a, b in zip(resumed, resumed[1:], strict=False))


class OtherRank:
    """Run of a rank that waits while rank 0 waits for the evaluating process; records the phase of each collective."""

    def __init__(self) -> None:
        self.phases: list[tuple[str, str]] = []
        self.phase, self.saved_at, self.env_steps, self.training_s, self.received_signal = "other", 7, 7, 1.0, ""
        self.ranks, self.hooks = self, SimpleNamespace(evaluate=dict, evaluator="")
        self.leads, self.grad_steps, self.elapsed_s = False, 1, 1.0
        self.settings = RunConfig(eval_interval=7)
        self.journal = SimpleNamespace(evaluation_s=0.0)

    @contextlib.contextmanager
    def clock(self, name: str) -> Iterator[None]:
        self.phase, before = name, self.phase
        yield
        self.phase = before

    def gather(self, value: str) -> list[str]:
        self.phases.append(("gather", self.phase))
        return ["process"]

    def barrier(self) -> None:
        self.phases.append(("barrier", self.phase))


def test_other_ranks_wait_for_the_evaluating_process_in_the_phase_of_an_evaluation() -> None:
    """In an ordinary phase they would count as stalled after `stall_s`."""
    run: Any = OtherRank()
    evaluations = Evaluations(run, "")
    evaluations.due()
    evaluations.finish(interrupted=False)
    evaluations.finish(interrupted=True)
    assert run.phases == [("gather", "other"), ("barrier", "eval"), ("gather", "other"), ("barrier", "eval")]


def test_a_signal_during_the_wait_leaves_both_evaluations_to_the_resumed_run(tmp_path: Path, monkeypatch) -> None:
    run: Any = OtherRank()
    run.leads, run.dir = True, tmp_path
    run.console, run.progress = SimpleNamespace(note=lambda _: None), SimpleNamespace(set_evaluator=lambda _: None)
    run.gather = lambda value: [value]
    for step in (3, 7):
        (tmp_path / "checkpoints" / str(step)).mkdir(parents=True)

    def answer(_: float) -> None:
        run.received_signal = "SIGTERM"

    process = SimpleNamespace(answer=answer, close=lambda: None, send=lambda path: sent.append(path.name))
    first, sent = Evaluations(run, ""), []
    first._process = process
    monkeypatch.setattr(Evaluations, "_may_start_process", lambda _: True)
    first._submit(Mark(3, {}))
    first.due()
    assert sent == ["3"]
    run.received_signal, sent[:] = "", []
    resumed = Evaluations(run, "")
    resumed._process = process
    process.answer = lambda _: SimpleNamespace(error="", figures={})
    run.metrics = SimpleNamespace(write=lambda _: None)
    resumed.resumed()
    resumed.finish(interrupted=False)
    assert sent == ["3", "7"] and not list((tmp_path / "checkpoints").glob("[a-z]*"))


def test_a_failure_of_the_evaluating_process_drops_no_due_evaluation(tmp_path: Path, monkeypatch) -> None:
    """Rank 0 waits for the evaluation before; that one fails, so this one takes place in the training process."""
    (tmp_path / "checkpoints").mkdir()
    run: Any = OtherRank()
    run.leads, run.dir, run.notes = True, tmp_path, []
    run.console = SimpleNamespace(note=run.notes.append)
    run.gather = lambda value: [value]
    evaluations, played = Evaluations(run, ""), []
    evaluations._process = SimpleNamespace(answer=lambda _: SimpleNamespace(error="killed"), close=lambda: None)
    evaluations._pending, run.progress = Mark(3, {}), SimpleNamespace(set_evaluator=lambda _: None)
    monkeypatch.setattr(evaluations, "_may_start_process", lambda: not evaluations._failed)
    monkeypatch.setattr(evaluations, "_play", lambda: played.append(run.env_steps) or {})
    run.metrics, run.log = SimpleNamespace(set_scalar=None), lambda: None
    evaluations.due()
    assert played == [7] and evaluations._pending is None and "step 3 failed (killed)" in run.notes[-1]
