"""Losses that are not finite end a run with a message, store the batch, and never reach a checkpoint."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from safetensors.torch import load_file

import runs
from distributed.ranks import CommandOnRanks
from powerband.cli import main as cli
from powerband.core.run.checkpoints.checkpoint import resolve_resume

COMMON = "gym num_workers=0 gpus=none threads=1 tensorboard=false supervise=false".split()
LONG = "env_steps=1000000"
SAC = "algo=sac sac.hidden=16,16 off_policy.num_envs=4 learning_starts=40 random_steps=40 global_batch_size=32".split()
PPO = "algo=ppo ppo.hidden=16 shared_trunk=true on_policy.num_envs=4 num_steps=16 minibatches=2".split()


def train_on_two_ranks(folder: Path, *arguments: str, **variables: str) -> tuple[list[int], str]:
    """Returns the exit statuses and the standard error of both ranks."""
    command = CommandOnRanks(["train", *arguments, "nproc=2"], folder / "printed", **variables)
    return command.finish(), command.errors()


def facts(run_dir: Path, rank: int = 0) -> dict:
    return json.loads((run_dir / "nan" / f"rank{rank}.json").read_text())


@pytest.mark.parametrize(
    ("algo", "env", "leaf"),
    [
        (SAC, "NanReward-v0", "reward"),
        (PPO, "InfObsDiscrete-v0", "obs"),
        (SAC, "InfObs-v0", "next_obs"),
        (SAC, "HugeReward-v0", "reward"),
        (PPO, "NanReward-v0", "reward"),
    ],
)
def test_an_environment_that_produced_the_values_is_named_with_its_leaf(algo, env, leaf, tmp_path, capsys):
    run = tmp_path / "run"
    arguments = [*COMMON, *algo, f"env_id=faults.failing_envs:{env}", f"run_dir={run}", LONG]
    status, error = cli.main(["train", *arguments]), capsys.readouterr().err
    assert status == 2 and "Traceback" not in error and error.count("\n") == 1, error
    found = facts(run)
    assert f"update {found['update']} " in error and f"An environment produced them: {leaf} (" in error
    assert str(run / "nan") in error and "no checkpoint yet" in error and "diverged" not in error
    assert any(name in error for name in found["bad"]) and found["environment"][0].split(" ")[0] == leaf
    batch = load_file(run / "nan" / "rank0.safetensors")
    assert len(batch["reward"]) == 32 and found["batch_update"] == found["update"]
    if found["environment"] == [leaf]:
        assert not batch[leaf].isfinite().all() or batch[leaf].abs().max() > 1e18
    assert not (run / "checkpoints").exists() and not (run / "policy").exists()


def test_an_epoch_in_one_call_names_its_updates_and_the_environment(tmp_path, capsys):
    arguments = [*COMMON, *PPO, "shared_trunk=false", "env_id=faults.failing_envs:InfObsDiscrete-v0", LONG]
    arguments.remove("shared_trunk=true")
    assert cli.main(["train", *arguments, f"run_dir={tmp_path / 'run'}"]) == 2
    error = capsys.readouterr().err
    assert re.search(r"nan at updates \d+ to \d+", error) and "An environment produced them: obs (" in error, error
    assert len(load_file(tmp_path / "run" / "nan" / "rank0.safetensors")["reward"]) == 16, "steps of the rollout"


@pytest.mark.parametrize(("algo", "rates"), [(SAC, ("actor_lr", "critic_lr")), (PPO, ("lr",))])
def test_a_divergence_is_distinguished_from_bad_data_and_a_resume_at_another_rate_continues(
    algo, rates, tmp_path, capsys
):
    run = tmp_path / "run"
    env, save = "env_id=faults.failing_envs:Healthy-v0", "save_interval=64"
    assert cli.main(["train", *COMMON, *algo, env, save, f"run_dir={run}", "env_steps=192"]) == 0
    before = runs.state(run)
    hot, sane = [f"{rate}=10" for rate in rates], [f"{rate}=1e-4" for rate in rates]
    again = ["gym", f"resume={run}", "--trust", *["anneal_lr=false"] * (algo is PPO)]
    capsys.readouterr()
    status, error = cli.main(["train", *again, *hot, LONG]), capsys.readouterr().err
    assert status == 2 and "Traceback" not in error, error
    assert "finite values only: the networks diverged" in error and "An environment produced" not in error
    assert f"powerband train gym resume={run}" in error
    found = facts(run)
    assert found["update"] > before["shared/run/grad_steps"] and found["environment"] == []
    good, notices = resolve_resume(str(run))
    assert notices == [] and f"The last checkpoint, of env step {good.name}, was saved before and is valid" in error
    for name, leaf in runs.state(run).items():
        assert not hasattr(leaf, "isfinite") or leaf.isfinite().all(), name
    assert cli.main(["train", *again, *sane, f"env_steps={int(good.name) + 128}"]) == 0
    assert runs.state(run)["shared/run/env_steps"] == int(good.name) + 128


def test_values_that_no_update_has_used_yet_are_not_saved(tmp_path, capsys):
    """They lie in the replay: a checkpoint with them would fail again after each resume."""
    run = tmp_path / "run"
    arguments = [
        *COMMON,
        *SAC,
        LONG,
        "env_id=faults.failing_envs:NanReward-v0",
        "update_interval=100",
        "save_interval=20",
    ]
    status, error = cli.main(["train", *arguments, f"run_dir={run}"]), capsys.readouterr().err
    assert status == 2 and "The replay contains values that are not finite" in error and "reward (4 of" in error, error
    good, _ = resolve_resume(str(run))
    assert good.name == "180" and facts(run)["update"] == 0
    assert load_file(run / "nan" / "rank0.safetensors")["reward"].isnan().tolist() == [True] * 4
    assert runs.state(run)["rank0/replay/rows"].isfinite().all()


@pytest.mark.parametrize("algo", [SAC, pytest.param(PPO, marks=pytest.mark.slow)], ids=["sac", "ppo"])
def test_two_ranks_end_together_and_name_the_rank_whose_environment_it_was(algo, tmp_path):
    run = tmp_path / "run"
    env = "env_id=faults.failing_envs:NanReward-v0"
    arguments = [*COMMON, *algo, LONG, env, f"run_dir={run}", "save_interval=64"]
    statuses, errors = train_on_two_ranks(tmp_path, *arguments, FAILING_RANK="1")
    assert statuses == [2, 2] and "Traceback" not in errors, errors
    assert errors.count("powerband: ") == 1 and "An environment of rank 1 produced them: reward (1 of" in errors, errors
    assert facts(run, 1)["environment"] == ["reward"] and facts(run, 0)["environment"] == []
    assert facts(run, 1)["update"] == facts(run, 0)["update"], "averaged gradients: both see it in one update"
    for name, leaf in runs.state(run).items():
        assert not hasattr(leaf, "isfinite") or leaf.isfinite().all(), name


@pytest.mark.parametrize(
    ("algo", "rates"),
    [(SAC, ("actor_lr", "critic_lr")), pytest.param(PPO, ("lr",), marks=pytest.mark.slow)],
    ids=["sac", "ppo"],
)
def test_two_ranks_that_diverge_end_together(algo, rates, tmp_path):
    run = tmp_path / "run"
    hot = [f"{rate}=10" for rate in rates]
    env = "env_id=faults.failing_envs:Healthy-v0"
    statuses, errors = train_on_two_ranks(tmp_path, *COMMON, *algo, LONG, env, f"run_dir={run}", *hot)
    assert statuses == [2, 2] and "Traceback" not in errors and errors.count("powerband: ") == 1, errors
    assert "the networks diverged" in errors and (run / "nan" / "rank1.safetensors").exists()
