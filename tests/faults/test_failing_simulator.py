"""A run whose simulators fail continues, reports and counts the failures, and learns from real transitions only."""

from __future__ import annotations

import pytest
import torch

import runs
from powerband.cli import main as cli
from powerband.envs.workers.group import EnvError

COMMON = "gym gpus=none threads=1 tensorboard=false log_interval=100 env_steps=300".split()
SAC = "algo=sac sac.hidden=16,16 off_policy.num_envs=4 learning_starts=40 random_steps=40 global_batch_size=32".split()
PPO = "algo=ppo ppo.hidden=16 on_policy.num_envs=4 num_steps=25 minibatches=2".split()


ALL, FIRSTS = {0, 1, 2, 3}, {0, 2}
"""A process that dies takes its second environment along, which starts to count again."""


@pytest.mark.parametrize(
    ("algo", "env", "workers", "what", "failing"),
    [
        (SAC, "Breaks-v0", 0, "RuntimeError: the gripper broke", ALL),
        (SAC, "Dies-v0", 2, "exited with code 3", FIRSTS),
        (SAC, "NanReward-v0", 1, "reward is nan", ALL),
        (PPO, "Breaks-v0", 1, "RuntimeError: the gripper broke", ALL),
        (PPO, "DiesDiscrete-v0", 2, "exited with code 3", FIRSTS),
    ],
)
def test_a_run_continues_and_reports_what_failed(algo, env, workers, what, failing, tmp_path, capsys) -> None:
    run, named = tmp_path / "run", f"env_id=faults.failing_envs:{env}"
    assert cli.main(["train", *COMMON, *algo, named, f"num_workers={workers}", f"run_dir={run}"]) == 0
    notices = [line for line in capsys.readouterr().out.splitlines() if what in line]
    assert {f"environment {index}" for index in failing} == {line.split(",")[0] for line in notices}
    assert all("after 9 steps of its episode 2 (reset seed" in line and "was truncated" in line for line in notices)
    counted = [line["charts/env_failures"] for line in runs.metrics(run) if "charts/env_failures" in line]
    assert counted[-1] == len(notices) == len(failing)
    state = runs.state(run)
    assert all(
        leaf.isfinite().all() for leaf in state.values() if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
    )
    if algo is SAC:
        assert len(state["rank0/replay/rows"]) == 300 - len(failing)


def test_the_first_failure_ends_a_run_that_is_not_supervised(tmp_path) -> None:
    arguments = [*COMMON, *SAC, "env_id=faults.failing_envs:Breaks-v0", "num_workers=1", "supervise=false"]
    with pytest.raises(EnvError, match="the gripper broke"):
        cli.main(["train", *arguments, f"run_dir={tmp_path / 'run'}"])
