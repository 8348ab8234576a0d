"""Evaluations during training: each has its own line of metrics, and their time is not time of training."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import runs


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
