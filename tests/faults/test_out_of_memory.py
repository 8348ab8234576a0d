"""Memory that runs out ends a run with the knob, the rank and the value that fits. Learners refuse rows on request."""

from __future__ import annotations

import re

import pytest

from distributed.ranks import CommandOnRanks
from faults.short_of_memory import limit
from powerband.algos.ppo import PPO
from powerband.algos.sac import SAC
from powerband.cli import main as cli

COMMON = "gym env_id=faults.failing_envs:Healthy-v0 num_workers=0 gpus=none threads=1 tensorboard=false".split()
SAC_WORDS = (
    "algo=sac sac.hidden=16,16 off_policy.num_envs=4 learning_starts=40 random_steps=40 global_batch_size=32".split()
)
PPO_WORDS = "algo=ppo ppo.hidden=16 shared_trunk=true on_policy.num_envs=4 num_steps=16 minibatches=2".split()


def ends(capsys, *words: str) -> str:
    """What a run says that ends with status 2."""
    assert cli.main(["train", *COMMON, "env_steps=400", *words]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "Traceback" not in said
    return said


@pytest.mark.parametrize(
    ("algo", "method", "rows", "expected", "fixed"),
    [
        (SAC_WORDS, "update", 11, "an update of 32 rows", "off_policy.global_batch_size=11"),
        (
            [*SAC_WORDS, "batch_size_per_rank=30"],
            "update",
            29,
            "an update of 30 rows",
            "off_policy.batch_size_per_rank=29",
        ),
        (PPO_WORDS, "update", 11, "an update of 32 rows", "on_policy.minibatches=8"),
        ([*PPO_WORDS, "ppo.gru=8"], "update", 0, "an update of 2 sequences", ""),
        (PPO_WORDS, "act", 3, "choosing actions for 4 environments", "num_envs=3"),
        (SAC_WORDS, "act", 0, "choosing actions for 4 environments", ""),
    ],
)
def test_the_knob_and_the_value_that_fits(algo, method, rows, expected, fixed, capsys, tmp_path, monkeypatch):
    for kind in (SAC, PPO):
        monkeypatch.setattr(kind, method, getattr(kind, method))  # so that it is put back
        limit(kind, method, rows)
    said = ends(capsys, *algo, f"run_dir={tmp_path / 'run'}")
    assert f"ran out of memory in {expected} (CUDA out of memory. Tried to allocate" in said
    if not fixed:
        assert "Not even one row fits" in said
        return
    assert re.search(rf"Write {fixed}\b", said), said
    words = [word for word in algo if word.split("=")[0].split(".")[-1] != fixed.split("=")[0].split(".")[-1]]
    again = ["train", *COMMON, "env_steps=400", *words, fixed, f"run_dir={tmp_path / 'again'}"]
    assert cli.main(again) == 0, "what was advised must train"


def test_a_replay_that_the_machine_has_no_memory_for(capsys, tmp_path):
    said = ends(capsys, *SAC_WORDS, f"run_dir={tmp_path / 'run'}", "replay_size=1000000000000")
    assert "replay_size=1000000000000 does not fit: 1000000000000 rows of 36 bytes" in said
    fits = int(re.search(r"Write off_policy.replay_size=(\d+)", said)[1])
    assert 2**27 < fits * 36 < 2**50


def test_a_replay_that_the_allocator_refuses(capsys, tmp_path, monkeypatch):
    """Where the machine does not say what is free, the allocator does: the address space ends before this size."""
    monkeypatch.setattr("powerband.loops.support.guarded_learner.free_bytes", lambda device: 0)
    said = ends(capsys, *SAC_WORDS, f"run_dir={tmp_path / 'run'}", "replay_size=1000000000000", "wrap.frame_stack=512")
    assert "can't allocate memory" in said and "Not even one row fits" in said


def test_one_rank_of_two_says_what_fits_and_takes_the_other_along(tmp_path):
    words = ["train", *COMMON, *SAC_WORDS, "env_steps=100000", f"run_dir={tmp_path / 'run'}"]
    variables = {"POWERBAND_TEST_ROWS": "update:11:1"}
    command = CommandOnRanks(words, tmp_path / "printed", main="faults.short_of_memory:main", **variables)
    statuses, errors = command.finish(), command.errors()
    assert all(statuses), errors
    said = [line for line in errors.splitlines() if line.startswith("powerband: ")]
    assert any("rank 1 of 2 ran out of memory in an update of 16 rows" in line for line in said), errors
    fitting = "At most 11 of them fit. Write off_policy.global_batch_size=22 (11 on each rank)."
    assert any(fitting in line for line in said)
    assert "powerband: rank 0 ends because another rank failed" in errors and "Traceback" not in errors
