"""A run that is out of memory ends with the option, the rank and a value that fits. Learners simulate the failure."""

from __future__ import annotations

import re

import pytest

from distributed.ranks import CommandOnRanks
from faults.short_of_memory import limit
from powerband.algos.ppo import PPO
from powerband.algos.sac import SAC
from powerband.cli import main as cli

COMMON = "gym env_id=faults.failing_envs:Healthy-v0 num_workers=0 gpus=none threads=1 tensorboard=false".split()
SAC_ARGUMENTS = (
    "algo=sac sac.hidden=16,16 off_policy.num_envs=4 learning_starts=40 random_steps=40 global_batch_size=32".split()
)
PPO_ARGUMENTS = "algo=ppo ppo.hidden=16 shared_trunk=true on_policy.num_envs=4 num_steps=16 minibatches=2".split()


def refusal(capsys, *arguments: str) -> str:
    """Returns the message of a run that must end with status 2."""
    assert cli.main(["train", *COMMON, "env_steps=400", *arguments]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1 and "Traceback" not in message
    return message


@pytest.mark.parametrize(
    ("algo", "method", "rows", "expected", "fixed"),
    [
        (SAC_ARGUMENTS, "update", 11, "an update of 32 rows", "off_policy.global_batch_size=11"),
        (
            [*SAC_ARGUMENTS, "batch_size_per_rank=30"],
            "update",
            29,
            "an update of 30 rows",
            "off_policy.batch_size_per_rank=29",
        ),
        (PPO_ARGUMENTS, "update", 11, "an update of 32 rows", "on_policy.minibatches=8"),
        ([*PPO_ARGUMENTS, "ppo.gru=8"], "update", 0, "an update of 2 sequences", ""),
        (PPO_ARGUMENTS, "act", 3, "choosing actions for 4 environments", "num_envs=3"),
        (SAC_ARGUMENTS, "act", 0, "choosing actions for 4 environments", ""),
    ],
)
def test_the_message_names_the_option_and_a_value_that_fits(
    algo, method, rows, expected, fixed, capsys, tmp_path, monkeypatch
):
    for kind in (SAC, PPO):
        monkeypatch.setattr(kind, method, getattr(kind, method))  # monkeypatch restores the method after the test
        limit(kind, method, rows)
    message = refusal(capsys, *algo, f"run_dir={tmp_path / 'run'}")
    assert f"ran out of memory in {expected} (CUDA out of memory. Tried to allocate" in message
    if not fixed:
        assert "Not even one row fits" in message
        return
    assert re.search(rf"Write {fixed}\b", message), message
    arguments = [
        argument for argument in algo if argument.split("=")[0].split(".")[-1] != fixed.split("=")[0].split(".")[-1]
    ]
    again = ["train", *COMMON, "env_steps=400", *arguments, fixed, f"run_dir={tmp_path / 'again'}"]
    assert cli.main(again) == 0, "what was advised must train"


def test_a_replay_that_the_machine_has_no_memory_for(capsys, tmp_path):
    message = refusal(capsys, *SAC_ARGUMENTS, f"run_dir={tmp_path / 'run'}", "replay_size=1000000000000")
    assert "replay_size=1000000000000 does not fit: 1000000000000 rows of 36 bytes" in message
    fits = int(re.search(r"Write off_policy.replay_size=(\d+)", message)[1])
    assert 2**27 < fits * 36 < 2**50


def test_a_replay_that_the_allocator_refuses(capsys, tmp_path, monkeypatch):
    """Without a figure of free memory, the allocator refuses the replay: the address space ends before this size."""
    monkeypatch.setattr("powerband.loops.support.guarded_learner.free_bytes", lambda device: 0)
    message = refusal(
        capsys, *SAC_ARGUMENTS, f"run_dir={tmp_path / 'run'}", "replay_size=1000000000000", "wrap.frame_stack=512"
    )
    assert "can't allocate memory" in message and "Not even one row fits" in message


def test_one_rank_of_two_names_a_batch_that_fits_and_both_ranks_end(tmp_path):
    arguments = ["train", *COMMON, *SAC_ARGUMENTS, "env_steps=100000", f"run_dir={tmp_path / 'run'}"]
    variables = {"POWERBAND_TEST_ROWS": "update:11:1"}
    command = CommandOnRanks(arguments, tmp_path / "printed", main="faults.short_of_memory:main", **variables)
    statuses, errors = command.finish(), command.errors()
    assert all(statuses), errors
    messages = [line for line in errors.splitlines() if line.startswith("powerband: ")]
    assert any("rank 1 of 2 ran out of memory in an update of 16 rows" in line for line in messages), errors
    fitting = "At most 11 of them fit. Write off_policy.global_batch_size=22 (11 on each rank)."
    assert any(fitting in line for line in messages)
    assert "powerband: rank 0 ends because another rank failed" in errors and "Traceback" not in errors
