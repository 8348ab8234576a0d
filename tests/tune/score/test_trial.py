"""A trial is a real training run: it is paused at its limit, continues from its checkpoint, and reaches its score."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import powerband
from powerband.tune.score.trials.trial import Metrics, is_over, resume_command, run_trial, train_command

SMALL = ["env_id=CartPole-v1", "algo=ppo", "ppo.hidden=16", "on_policy.num_envs=4", "num_steps=16", "minibatches=2"]
SMALL += ["num_workers=0", "gpus=none", "threads=1", "eval_episodes=2"]


def soon() -> float:
    return time.monotonic() + 120


def test_a_trial_is_paused_continued_and_ends_at_its_score(tmp_path: Path, monkeypatch) -> None:
    """The environment is a module of the user, which a stored run imports only if it is trusted."""
    monkeypatch.syspath_prepend(str(Path(powerband.__file__).parents[2] / "examples"))
    folder, own = tmp_path / "trial", ["env_id=corridor:Corridor-v0", *SMALL[1:]]
    command = train_command("gym", "train", own, {"ppo.lr": 1e-3, "on_policy.gamma": 0.98}, folder, 7, 0.1)
    first = run_trial(command, folder, "return", math.inf, 0.3, soon())
    assert (first.outcome, first.message) == ("paused", "") and first.seconds >= 0.3 and first.curve
    gaps = [b.seconds - a.seconds for a, b in zip(first.curve, first.curve[1:], strict=False)]
    assert all(gap >= 0.1 for gap in gaps)
    config = json.loads((folder / "config.json").read_text())
    assert config["on_policy"]["gamma"] == 0.98 and config["run"]["seed"] == 7
    resume = resume_command("gym", "train", folder)
    second = run_trial(resume, folder, "return", math.inf, first.seconds + 0.3, soon())
    assert second.outcome == "paused" and second.seconds > first.seconds and second.rate > 0
    assert list(second.curve[: len(first.curve)]) == list(first.curve) and len(second.curve) > len(first.curve)
    assert run_trial(resume, folder, "return", -1e6, 60.0, soon()).outcome == "reached"  # any return is above that
    lines = [json.loads(text) for text in (folder / "metrics.jsonl").read_text().splitlines()]
    seconds = [line["time/training_s"] for line in lines]
    assert seconds == sorted(seconds) and all(s <= line["time_s"] for s, line in zip(seconds, lines, strict=True))


@pytest.mark.parametrize(("target", "outcome"), [(1000.0, "paused"), (1.0, "reached")])
def test_a_paused_trial_that_has_passed_the_next_limit_is_not_started(tmp_path: Path, target, outcome) -> None:
    """A signal to a process that starts kills it before it can save, and the trial would count as failed."""
    lines = [{"env_steps": 10 * n, "time/training_s": n, "eval/return": 5.0} for n in (1, 2, 3)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    run = run_trial(resume_command("gym", "train", tmp_path), tmp_path, "return", target, 2.5, soon())
    assert (run.outcome, run.message, run.env_steps, run.wall_s) == (outcome, "", 30, 0.0)
    assert len(run.curve) == 3 and not (tmp_path / "output.txt").exists()


@pytest.mark.slow
def test_a_trial_that_fails_states_why_and_one_without_the_figure_is_refused(tmp_path: Path) -> None:
    command = train_command("gym", "train", [*SMALL, "on_policy.minibatches=7"], {}, tmp_path / "a", 0, 0.1)
    failed = run_trial([word for word in command if word != "minibatches=2"], tmp_path / "a", "return", 1, 9, soon())
    assert failed.outcome == "failed" and "minibatches=7 does not divide" in failed.message
    command = train_command("gym", "train", SMALL, {}, tmp_path / "b", 0, 0.1)
    refused = run_trial(command, tmp_path / "b", "success", 1.0, 60.0, soon())
    assert refused.outcome == "failed" and "no figure success, only return" in refused.message


def test_a_trial_is_not_over_while_its_score_waits_to_be_confirmed(tmp_path: Path) -> None:
    lines = [
        {"env_steps": n, "time/training_s": n, "eval/return": score} for n, score in ((1, 0.0), (2, 5.0), (3, 5.0))
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    metrics = Metrics(tmp_path / "metrics.jsonl", "return")
    metrics.read()
    assert not is_over(metrics, target=5.0, limit_s=2.5)
    assert is_over(metrics, target=5.0, limit_s=1.5) and is_over(metrics, target=6.0, limit_s=2.5)


def test_metrics_ignore_a_line_that_is_not_complete(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    metrics = Metrics(path, "return")
    metrics.read()
    assert metrics.curve == [] and metrics.seconds == 0
    lines = [{"env_steps": 10, "time/training_s": 1.5}, {"env_steps": 20, "time/training_s": 3.0, "eval/return": 5.0}]
    path.write_text("\n".join(map(json.dumps, lines)) + '\n{"env_steps": 3')
    metrics.read()
    assert (metrics.env_steps, metrics.seconds, metrics.missing) == (20, 3.0, "")
    assert [(point.seconds, point.score) for point in metrics.curve] == [(3.0, 5.0)]


def test_another_thread_ends_a_trial(tmp_path: Path) -> None:
    ended = threading.Event()
    ended.set()
    run = run_trial(["train", "gym"], tmp_path, "return", math.inf, 60.0, soon(), ended)
    assert run.outcome == "stopped" and run.wall_s < 30


def test_a_killed_search_leaves_no_trial_behind(tmp_path: Path) -> None:
    search = (
        "import sys; from pathlib import Path; from powerband.tune.score.trials.trial import run_trial; "
        "run_trial(['train', 'gym'], Path(sys.argv[1]), 'return', 1.0, 60.0, float('inf'))"
    )
    process = subprocess.Popen([sys.executable, "-c", search, str(tmp_path)])
    try:
        children: list[str] = []
        while not children or b"train" not in Path(f"/proc/{children[0]}/cmdline").read_bytes().split(b"\0"):
            time.sleep(0.05)
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    finally:
        process.kill()
        process.wait()
    end = time.monotonic() + 60
    while Path(f"/proc/{children[0]}/cmdline").exists() and Path(f"/proc/{children[0]}/cmdline").read_bytes():
        assert time.monotonic() < end
        time.sleep(0.05)
