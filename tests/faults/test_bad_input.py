"""Bad input: one paragraph with value, limit and fix, exit status 2, nothing overwritten."""

from __future__ import annotations

import contextlib
import os
import re
import resource
from collections.abc import Iterator

import pytest

import runs
from powerband.cli import main as cli
from powerband.core.run.checkpoints.checkpoint import resolve_resume


def refusal(capsys, *arguments: str) -> str:
    """Returns the message of a command that must be refused."""
    assert cli.main(list(arguments)) == 2
    text = capsys.readouterr().err
    assert text.count("\n") <= 2 and "Traceback" not in text
    return text


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["train", "snake"], "snakes"),
        (["train", "snakes", "updte_interval=3"], "update_interval"),
        (["train", "snakes", "update_interval=3", "update_interval=4"], "given already"),
        (["train", "snakes", "update_interval=often"], "integer"),
        (["train", "snakes", "variant=demonstration"], "demo"),
        (["train", "snakes", "setup=gpu-sever"], "unknown preset"),
        (["train", "snakes", "algo=dqn"], "ddpg"),
        (["train", "snakes", "algo=ddpg", "opponent=self"], "greedy"),
        (["train", "snakes", "--gpu-ids", "7"], "nproc"),
        (["train", "gym", "env_id=Pendulm-v1"], "Pendulum-v1"),
        (["train", "gym", "env_id=CartPole-v1", "algo=sac"], "algo=ppo"),
        (["train", "snakes", "algo=ddpg", "update_interval=0"], "below 1"),
        (["eval", "no/such/run"], "does not exist"),
    ],
)
def test_refusals_name_the_value_and_the_way_out(words, expected, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert re.search(expected, refusal(capsys, *words)), words


def test_a_batch_larger_than_the_replay(capsys, tmp_path):
    arguments = ["train", *runs.SMALL["ddpg"], *runs.COMMON, f"run_dir={tmp_path / 'run'}", "replay_size=20"]
    text = refusal(capsys, *arguments)
    assert "32" in text and "20" in text and "replay_size" in text


def test_a_run_folder_is_not_overwritten(capsys, tmp_path):
    run_dir = runs.train("ddpg", tmp_path / "run", "env_steps=100")
    before = {path: path.stat().st_mtime_ns for path in run_dir.rglob("*") if path.is_file()}
    text = refusal(capsys, "train", *runs.SMALL["ddpg"], f"run_dir={run_dir}")
    assert f"resume={run_dir}" in text
    assert before == {path: path.stat().st_mtime_ns for path in run_dir.rglob("*") if path.is_file()}


def test_an_unwritable_run_folder(capsys, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    assert "cannot be written" in refusal(capsys, "train", *runs.SMALL["ddpg"], f"run_dir={blocked / 'run'}")


def test_resuming_with_other_shapes(capsys, tmp_path):
    run_dir = runs.train("ddpg", tmp_path / "run", "env_steps=100")
    checkpoints = sorted(os.listdir(run_dir / "checkpoints"))
    text = refusal(capsys, "train", "snakes", f"resume={run_dir}", "env_steps=200", "ddpg.hidden=64")
    assert "hidden" in text or "shape" in text
    assert sorted(os.listdir(run_dir / "checkpoints")) == checkpoints


def test_resuming_a_damaged_checkpoint(capsys, tmp_path):
    run_dir = runs.train("ddpg", tmp_path / "run", "env_steps=100")
    victim = run_dir / "checkpoints" / "100" / "shared.safetensors"
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 4
    victim.write_bytes(data)
    assert "shared.safetensors" in refusal(capsys, "train", "snakes", f"resume={run_dir}", "env_steps=200")


@contextlib.contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Within it, this process cannot write to a file beyond this size. Python ignores the signal of the limit."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(
    ("limit", "log_interval"), [(6_000, 4), (300_000, 100)], ids=["at the metrics", "in the checkpoint"]
)
def test_a_full_disk_is_reported_and_loses_nothing(limit, log_interval, tmp_path, capsys):
    """A limit on the size of files stands for the full disk: a write fails in the same place, with the same error."""
    run_dir = runs.train("ddpg", tmp_path / "run", "env_steps=100", "replay_size=4000")
    arguments = ["train", "snakes", f"log_interval={log_interval}", "save_interval=600"]
    arguments += [f"resume={run_dir}", "env_steps=4000"]
    capsys.readouterr()
    with largest_file(limit):
        assert "cannot be written" in refusal(capsys, *arguments)
    assert resolve_resume(str(run_dir)) == (run_dir / "checkpoints" / "100", [])
    runs.resume("ddpg", run_dir, "env_steps=200")
    assert runs.state(run_dir)["shared/run/env_steps"] == 200
