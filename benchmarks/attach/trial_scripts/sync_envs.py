"""A policy-gradient loop on environments that wait in each step and are stepped one after another."""

from __future__ import annotations

import time
from typing import Any

import gymnasium as gym
import numpy as np
import torch

NUM_ENVS = 6


class Waiting(gym.Env):
    """An environment whose step takes four milliseconds."""

    observation_space = gym.spaces.Box(-1, 1, (8,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        return np.zeros(8, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        time.sleep(0.004)
        return np.full(8, float(action), np.float32), 1.0, False, False, {}


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    envs = gym.vector.SyncVectorEnv([Waiting for _ in range(NUM_ENVS)])
    policy = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Tanh(), torch.nn.Linear(64, 2))
    optimizer = torch.optim.Adam(policy.parameters())
    obs, _ = envs.reset(seed=0)
    for _ in range(10_000_000):
        actions = torch.distributions.Categorical(logits=policy(torch.as_tensor(obs)))
        chosen = actions.sample()
        obs, reward, *_ = envs.step(chosen.numpy())
        optimizer.zero_grad()
        (-actions.log_prob(chosen) * torch.as_tensor(reward)).mean().backward()
        optimizer.step()
