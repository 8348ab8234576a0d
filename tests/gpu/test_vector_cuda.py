"""Worker environments that deliver to a CUDA device: the same numbers as on the CPU, from page-locked memory."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("gymnasium", reason="gymnasium is not installed")

from contract.contract import assert_same, check_env, play
from powerband.data.types import Step, tree_map
from powerband.envs.adapters.gymnasium_env import GymVecEnv

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


def on_cpu(step: Step) -> Step:
    fields = (step.obs, step.reward, step.terminated, step.truncated, step.final_obs, step.episode)
    return Step(*(None if tree is None else tree_map(lambda leaf: leaf.cpu(), tree) for tree in fields))


def test_cuda_delivery_keeps_the_contract_and_the_numbers() -> None:
    def make_env(num_envs: int, seed: int, first_env: int) -> GymVecEnv:
        return GymVecEnv("CartPole-v1", num_envs, 2, "cuda", seed, first_env)

    check_env(make_env, terminates=True, is_first_obs=lambda obs: (obs.abs() <= 0.05).all(1))
    cpu, cuda = GymVecEnv("CartPole-v1", 4, 0, "cpu"), make_env(4, 0, 0)
    assert cuda._pinned
    _, expected, actions = play(cpu, 0, 100)
    cuda.reset(0)
    steps = [cuda.step(action) for action in actions]  # actions on the CPU: nothing waits for the device in between
    assert_same([on_cpu(step) for step in steps], expected, "on CUDA")
    cuda.close()
