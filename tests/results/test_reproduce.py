"""Reproduction: a real training of some hundred steps, evaluated and compared; a second start trains nothing."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import powerband
from powerband.cli.reproduce_command import run
from powerband.core.errors import ConfigError
from powerband.results import reproduce as module
from powerband.results.published import Figure, Row
from powerband.results.reproduce import ReproduceOptions, reproduce

TRAIN = (
    "gym",
    "algo=ppo",
    "env_id=CartPole-v1",
    "gpus=none",
    "threads=1",
    "tensorboard=false",
    "env_steps=512",
    "num_workers=0",
    "ppo.fused=false",  # compiled functions take longer to compile than to run here
)


@pytest.mark.slow
def test_a_row_is_trained_once_and_compared(tmp_path) -> None:
    figures = (Figure("CartPole-v1", "return", (10.0, 500.0), 5), Figure("CartPole-v1", "length", (-1.0, -1.1), 5))
    row = Row("short", (*TRAIN, "on_policy.num_envs=4"), ("episodes=5", "video=false"), (0, 1), 1.0, "", figures)
    options = ReproduceOptions(run_dir=str(tmp_path / "run"))
    first = reproduce(row, options)
    assert first["seed"] == 2
    assert [figure["inside"] for figure in first["figures"]] == [True, False]
    written = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    assert reproduce(row, options) == first and (tmp_path / "run" / "metrics.jsonl").read_bytes() == written


def test_a_failed_training_is_an_error(tmp_path) -> None:
    row = Row("wrong", ("gym", "env_id=NoSuch-v0", "gpus=none"), (), (0, 1), 1.0, "", ())
    with pytest.raises(ConfigError, match="train ended with status 2"):
        reproduce(row, ReproduceOptions(run_dir=str(tmp_path / "run")))


@pytest.mark.parametrize(
    ("ended", "trains"),
    [
        ("budget reached", False),
        ("time limit of 75 s reached", False),
        ("SIGTERM: saved", True),
        ("SIGINT to rank 1: saved", True),
        ("ConfigError: the disk is full", True),
        (None, True),  # a resumed run that was killed
    ],
)
def test_an_interrupted_training_with_a_policy_is_continued(ended, trains, tmp_path, monkeypatch) -> None:
    commands = []

    def powerband(*arguments: str) -> None:
        commands.append(arguments[:3])
        if arguments[0] == "eval":
            Path(arguments[-1]).write_text("[]")

    monkeypatch.setattr(module, "_powerband", powerband)
    for name in ("policy", "checkpoints/last"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "processes.json").write_text(json.dumps({"ended": ended}))
    reproduce(Row("short", ("gym",), (), (0,), 1.0, "", ()), ReproduceOptions(run_dir=str(tmp_path)))
    assert (("train", "gym", f"resume={tmp_path}") in commands) is trains and commands[-1][0] == "eval"


@pytest.mark.parametrize(("recipe", "seed"), [("gym", 3), ("snakes", 77)])
def test_a_folder_with_another_run_is_refused(recipe, seed, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(module, "_powerband", lambda *_: pytest.fail("nothing runs"))
    (tmp_path / "run.json").write_text(json.dumps({"recipe": recipe}))
    (tmp_path / "config.json").write_text(json.dumps({"run": {"seed": seed}}))
    with pytest.raises(ConfigError, match=f"contains a run of {recipe} with seed {seed}"):
        reproduce(Row("short", ("gym",), (), (0,), 1.0, "", ()), ReproduceOptions(seed=77, run_dir=str(tmp_path)))


SLOW_SAVE = """#!{python}
import signal, sys, time
from pathlib import Path
try:
    Path("started").touch()
    time.sleep(60)
except KeyboardInterrupt:
    time.sleep(1.5)
    Path("saved").touch()
    sys.exit(130)
"""


def test_ctrl_c_waits_until_the_training_has_saved(tmp_path) -> None:
    command = tmp_path / "python"
    command.write_text(SLOW_SAVE.format(python=sys.executable))
    command.chmod(0o755)
    code = f"import sys; sys.executable = {str(command)!r}\nfrom powerband.cli.main import main\n"
    code += "sys.exit(main(['reproduce', 'cartpole', 'run_dir=run']))"
    environment = {**os.environ, "PYTHONPATH": str(Path(powerband.__file__).parents[1])}
    reproduced = subprocess.Popen(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, stderr=subprocess.PIPE, start_new_session=True
    )
    limit = time.monotonic() + 60
    while not (tmp_path / "started").exists():
        assert time.monotonic() < limit and reproduced.poll() is None
        time.sleep(0.05)
    os.killpg(reproduced.pid, signal.SIGINT)
    _, errors = reproduced.communicate(timeout=60)
    assert (tmp_path / "saved").exists() and reproduced.returncode == 130
    assert errors == b"powerband: SIGINT ended the command.\n"


def test_the_list_names_rows_and_durations(capsys) -> None:
    assert run([]) == 0
    assert "cartpole" in capsys.readouterr().out
