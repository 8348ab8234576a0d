"""Double buffering: halves by turns learn what all in step learn; where it cannot work, it says so."""

from __future__ import annotations

import warnings

import pytest
import torch

import runs
from powerband.cli import main as cli

SMALL = "ppo.hidden=16 on_policy.num_envs=4 num_steps=16 minibatches=2 seed=4".split()


def train(folder, *words: str) -> dict[str, torch.Tensor]:
    """Weights that a run of gym's PPO ends with."""
    from safetensors.torch import load_file

    budget = [] if any(word.startswith("env_steps=") for word in words) else ["env_steps=1024"]
    command = ["train", "gym", "algo=ppo", *SMALL, *budget, *runs.COMMON, f"run_dir={folder}", *words]
    assert cli.main(command) == 0
    return load_file(folder / "policy" / "model.safetensors")


@pytest.mark.parametrize(
    "words",
    [("env_id=CartPole-v1",), ("env_id=CartPole-v1", "ppo.gru=8"), ("env_id=Pendulum-v1", "ppo.normalize_obs=true")],
    ids=["terminated", "with memory", "truncated"],
)
def test_by_turns_learns_the_same(tmp_path, words):
    plain = train(tmp_path / "plain", *words, "num_workers=2")
    turned = train(tmp_path / "turned", *words, "num_workers=2", "double_buffer=true")
    other = train(tmp_path / "other", *words, "num_workers=2", "double_buffer=true", "epochs=9")
    assert plain.keys() == turned.keys()
    for name, tensor in plain.items():  # products of other numbers of rows are rounded otherwise
        torch.testing.assert_close(turned[name], tensor, rtol=1e-3, atol=1e-4)
    assert any(not torch.allclose(other[name], tensor, rtol=1e-3, atol=1e-4) for name, tensor in plain.items())


def test_by_turns_a_resume_is_bit_identical(tmp_path):
    words = ("env_id=CartPole-v1", "num_workers=2", "double_buffer=true", "anneal_lr=false")
    train(tmp_path / "whole", *words)
    train(tmp_path / "first", *words, "env_steps=512")
    assert cli.main(["train", "gym", f"resume={tmp_path / 'first'}", "env_steps=1024"]) == 0
    assert runs.differences(tmp_path / "whole", tmp_path / "first") == []


@pytest.mark.parametrize(("workers", "why"), [(0, "steps inside this process"), (1, "has fewer than two workers")])
def test_without_two_workers_it_says_so(tmp_path, workers, why):
    with pytest.warns(UserWarning, match=f"double_buffer=true has no effect: this environment {why}"):
        train(tmp_path / "run", "env_id=CartPole-v1", f"num_workers={workers}", "double_buffer=true", "env_steps=64")


def test_where_it_was_not_asked_for_nothing_is_said(tmp_path):
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="double_buffer")
        train(tmp_path / "run", "env_id=CartPole-v1", "num_workers=0", "env_steps=64")
