"""Double buffering: alternating halves give the same results; without two workers a warning is issued."""

from __future__ import annotations

import warnings

import pytest
import torch

import runs
from powerband.cli import main as cli

SMALL = "ppo.hidden=16 on_policy.num_envs=4 num_steps=16 minibatches=2 seed=4".split()


def train(folder, *options: str) -> dict[str, torch.Tensor]:
    """Returns the weights after a run of PPO on gym."""
    from safetensors.torch import load_file

    budget = [] if any(option.startswith("env_steps=") for option in options) else ["env_steps=1024"]
    command = ["train", "gym", "algo=ppo", *SMALL, *budget, *runs.COMMON, f"run_dir={folder}", *options]
    assert cli.main(command) == 0
    return load_file(folder / "policy" / "model.safetensors")


@pytest.mark.parametrize(
    "options",
    [
        ("env_id=CartPole-v1", "env_steps=512"),
        ("env_id=CartPole-v1", "env_steps=512", "ppo.gru=8", "shared_trunk=true"),
        ("env_id=Pendulum-v1", "ppo.normalize_obs=true"),
    ],
    ids=["terminated", "with memory", "truncated"],
)
def test_double_buffering_gives_the_same_weights(tmp_path, options):
    plain = train(tmp_path / "plain", *options, "num_workers=0")
    buffered = train(tmp_path / "buffered", *options, "num_workers=2", "double_buffer=true")
    other = train(tmp_path / "other", *options, "num_workers=0", "epochs=9")
    assert plain.keys() == buffered.keys()
    for name, tensor in plain.items():  # matrix products with other numbers of rows are rounded differently
        torch.testing.assert_close(buffered[name], tensor, rtol=1e-3, atol=1e-4)
    assert any(not torch.allclose(other[name], tensor, rtol=1e-3, atol=1e-4) for name, tensor in plain.items())


def test_a_double_buffered_resume_is_bit_identical(tmp_path):
    options = ("env_id=CartPole-v1", "num_workers=2", "double_buffer=true", "anneal_lr=false")
    train(tmp_path / "full", *options, "env_steps=512")
    train(tmp_path / "first", *options, "env_steps=256")
    assert cli.main(["train", "gym", f"resume={tmp_path / 'first'}", "env_steps=512"]) == 0
    assert runs.differences(tmp_path / "full", tmp_path / "first") == []


@pytest.mark.parametrize(
    ("workers", "reason"), [(0, "steps in the training process"), (1, "has fewer than two workers")]
)
def test_a_warning_is_issued_without_two_workers(tmp_path, workers, reason):
    with pytest.warns(UserWarning, match=f"double_buffer=true has no effect, because this environment {reason}"):
        train(tmp_path / "run", "env_id=CartPole-v1", f"num_workers={workers}", "double_buffer=true", "env_steps=64")


def test_no_warning_is_issued_without_the_option(tmp_path):
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="double_buffer")
        train(tmp_path / "run", "env_id=CartPole-v1", "num_workers=0", "env_steps=64")


def test_a_warning_is_issued_for_overlap_between_rollouts(tmp_path):
    with pytest.warns(UserWarning, match="overlap=true has no effect with this algorithm.*double_buffer=true"):
        train(tmp_path / "run", "env_id=CartPole-v1", "num_workers=0", "overlap=true", "env_steps=64")
