"""Reproduction: a real training of some hundred steps, evaluated and compared; a second start trains nothing."""

import pytest

from powerband.cli.reproduce_command import run
from powerband.core.errors import ConfigError
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


def test_the_list_names_rows_and_durations(capsys) -> None:
    assert run([]) == 0
    assert "cartpole" in capsys.readouterr().out
