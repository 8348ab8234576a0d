"""Loops support recurrent policies, action masks, a central state, and sources with next-step autoreset."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import runs
from contract.fakes import DELAY, NUM_AGENTS, NUM_SITES, NextStepPool, Recall, Sites
from powerband.algos.ppo import PPO
from powerband.algos.settings import PPOConfig
from powerband.core.config import RunConfig
from powerband.core.run.run import Run
from powerband.data.types import VecEnv
from powerband.envs.adapters.autoreset import EnvPoolVector
from powerband.envs.adapters.external import ExternalVecEnv
from powerband.envs.workers.vector import WorkerVecEnv
from powerband.loops.config import OnPolicyConfig
from powerband.loops.on_policy import on_policy


@dataclass(frozen=True)
class Config:
    run: RunConfig = field(default_factory=RunConfig)


class NumberedSites(Sites):
    """Sites whose agents observe their position and their number, without an image."""

    def __init__(self) -> None:
        from gymnasium.spaces import Box

        super().__init__()
        del self.observation_space.spaces["extra"]
        self.observation_space.spaces["own"] = Box(0, 1, (NUM_AGENTS, NUM_SITES + NUM_AGENTS), np.float32)

    def _obs(self) -> dict[str, Any]:
        obs = super()._obs()
        del obs["extra"]
        return obs | {"own": np.concatenate([obs["own"], np.eye(NUM_AGENTS, dtype=np.float32)], 1)}


def train(env: VecEnv, ppo: PPOConfig, loop: OnPolicyConfig, folder: Path, env_steps: int) -> list[dict]:
    """Returns the metrics of a run of PPO on `env`, one line per rollout."""
    steps = loop.num_steps * loop.num_envs
    settings = RunConfig(
        run_dir=str(folder), gpus="none", threads=1, tensorboard=False, env_steps=env_steps, log_interval=steps
    )
    with Run.start(Config(settings), recipe="test", stage="train", argv=[]) as run:
        on_policy(run, env, PPO(env.spec, ppo, run.context), loop)
    env.close()
    return runs.metrics(folder)


@pytest.mark.parametrize("gru", [0, 16])
def test_a_recurrent_policy_solves_a_memory_task(gru, tmp_path):
    env = WorkerVecEnv([Recall] * 64, num_workers=0)
    loop = OnPolicyConfig(num_envs=64, num_steps=DELAY * 4, epochs=4, minibatches=4, gamma=1.0, anneal_lr=False)
    ppo = PPOConfig(lr=5e-3, hidden=(32,), gru=gru, entropy_coef=0.0)
    lines = train(env, ppo, loop, tmp_path / "run", 64 * DELAY * 4 * 20)
    last = sum(line["charts/episodic_return"] for line in lines[-5:]) / 5
    assert last > 0.9 if gru else abs(last) < 0.3


@pytest.mark.parametrize(("rows", "sequences"), [(40, 2), (8, 1)])
def test_rows_of_a_mini_batch_are_steps_of_whole_sequences(rows, sequences, tmp_path):
    env = WorkerVecEnv([Recall] * 6, num_workers=0)
    loop = OnPolicyConfig(num_envs=6, num_steps=16, epochs=1, minibatch_rows=rows)
    lines = train(env, PPOConfig(hidden=(8,), gru=8), loop, tmp_path / "run", 6 * 16 * 2)
    assert lines[-1]["grad_steps"] == 2 * 6 / sequences
    banner = (tmp_path / "run" / "train.log").read_text()
    assert f"mini-batches of {sequences} sequences = {16 * sequences} rows" in banner
    setting = loop.batch_size_setting(sequences, 1, sequences=True)
    assert setting == f"on_policy.minibatch_rows={16 * sequences}", "advice after an allocation that failed"


@pytest.mark.parametrize("shared", [True, False])
def test_masks_are_obeyed_and_a_central_state_is_supported(shared, tmp_path):
    env = WorkerVecEnv([NumberedSites] * 32, num_workers=0)
    loop = OnPolicyConfig(num_envs=32, num_steps=12, epochs=4, minibatches=4, gamma=0.9, anneal_lr=False)
    ppo = PPOConfig(lr=3e-3, hidden=(64,), shared_trunk=shared)
    lines = train(env, ppo, loop, tmp_path / "run", 32 * 12 * 20)
    returns = [line["charts/episodic_return"] for line in lines if "charts/episodic_return" in line]
    assert min(returns) >= 0.0, "a masked action costs 1000"
    assert returns[-1] > 9 > 5 > returns[0], "the optimum is 12 minus the moves to the site; random actions reach 2.4"


def test_reset_steps_of_a_next_step_source_are_discarded(tmp_path):
    env = ExternalVecEnv(EnvPoolVector(NextStepPool, 8), seed=0)
    loop = OnPolicyConfig(num_envs=8, num_steps=16, epochs=1, minibatches=1, anneal_lr=False)
    lines = train(env, PPOConfig(hidden=(16,)), loop, tmp_path / "run", 8 * 16 * 10)
    for line in lines:
        assert line["charts/episodic_return"] == pytest.approx(line["charts/episodic_length"])
        assert 3 <= line["charts/episodic_return"] <= 9


def test_overlap_runs_the_same_updates_and_warns_if_it_has_no_effect(tmp_path):
    serial = runs.train("sac", tmp_path / "serial", "env_steps=200", "num_workers=1")
    overlapped = runs.train("sac", tmp_path / "overlap", "env_steps=200", "num_workers=1", "overlap=true")
    one, two = (runs.state(run) for run in (serial, overlapped))
    assert one["shared/run/grad_steps"] == 160
    # The updates of the last step are pending, because no further step follows.
    assert two["shared/run/grad_steps"] + two["rank0/position/owed"] == 160
    assert torch.isfinite(two["rank0/replay/rows"].view(torch.float32)).all()
    with pytest.warns(UserWarning, match="overlap=true has no effect"):
        runs.train("ddpg", tmp_path / "inside", "env_steps=60", "overlap=true")
