"""SAC of powerband and of Stable-Baselines3 in one plain loop on button-press-topdown, with the same environments.

The loop collects a step of eight environments, then makes eight updates with the learner of one library. It separates
the update from everything else that the libraries do. `benchmarks/results/learning/metaworld_button.json` has its
curves under ``same_loop``.

    python benchmarks/learning/metaworld_button.py powerband --seed 0
    python benchmarks/learning/metaworld_button.py sb3 --seed 0
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from metaworld_score import ENVS, GAMMA, LEARNING_STARTS, make_env, success_rate
from powerband.algos.sac import SAC
from powerband.algos.settings import SACConfig
from powerband.core.rank_context import RankContext
from powerband.data.types import EnvSpec, TensorSpec

TASK, WIDTH, BATCH, LR, EVERY = "button-press-topdown", 64, 128, 1e-3, 6_250
Act = Callable[[np.ndarray, bool], np.ndarray]
"""Function (observations (N, 39), explore) -> actions (N, 4)."""


class PowerbandLearner:
    """powerband's SAC with a replay of `steps` transitions."""

    def __init__(self, seed: int, steps: int) -> None:
        bounds = torch.ones(4)
        spec = EnvSpec(TensorSpec((39,)), TensorSpec((4,)), low=-bounds, high=bounds)
        settings = SACConfig(hidden=(WIDTH, WIDTH), actor_lr=LR, critic_lr=LR, gamma=GAMMA)
        self.sac, self.count = SAC(spec, settings, RankContext.single(seed=seed)), 0
        self.draw = torch.Generator().manual_seed(seed)
        shapes = {"obs": (39,), "next_obs": (39,), "action": (4,), "reward": ()}
        self.rows = {name: torch.zeros(steps + ENVS, *shape) for name, shape in shapes.items()}

    def act(self, obs: np.ndarray, explore: bool) -> np.ndarray:
        return self.sac.act(torch.tensor(obs, dtype=torch.float32), None, explore)[0].numpy()

    def add(self, obs: np.ndarray, action: np.ndarray, reward: float, next_obs: np.ndarray) -> None:
        for name, value in (("obs", obs), ("action", action), ("reward", reward), ("next_obs", next_obs)):
            self.rows[name][self.count] = torch.as_tensor(value)
        self.count += 1

    def update(self) -> None:
        index = torch.randint(self.count, (BATCH,), generator=self.draw)
        batch = {name: rows[index] for name, rows in self.rows.items()}
        self.sac.update({**batch, "terminated": torch.zeros(BATCH, dtype=torch.bool)})


class SB3Learner:
    """Stable-Baselines3's SAC with its own replay."""

    def __init__(self, seed: int, steps: int) -> None:
        from stable_baselines3 import SAC as SB3SAC
        from stable_baselines3.common.logger import Logger
        from stable_baselines3.common.vec_env import DummyVecEnv

        spaces = DummyVecEnv([lambda: make_env(TASK, seed)])
        self.model: Any = SB3SAC(
            "MlpPolicy", spaces, batch_size=BATCH, seed=seed, device="cpu", gamma=GAMMA, learning_rate=LR,
            buffer_size=steps + ENVS, policy_kwargs={"net_arch": [WIDTH, WIDTH]},
        )  # fmt: skip
        self.model.set_logger(Logger(None, []))

    def act(self, obs: np.ndarray, explore: bool) -> np.ndarray:
        return self.model.predict(obs, deterministic=not explore)[0]

    def add(self, obs: np.ndarray, action: np.ndarray, reward: float, next_obs: np.ndarray) -> None:
        rows = obs[None], next_obs[None], action[None], np.array([reward]), np.array([False])
        self.model.replay_buffer.add(*rows, [{}])

    def update(self) -> None:
        self.model.train(1, BATCH)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("library", choices=["powerband", "sb3"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=4 * EVERY)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    learner = (PowerbandLearner if options.library == "powerband" else SB3Learner)(options.seed, options.steps)
    envs = [make_env(TASK, 100_000 * options.seed + index) for index in range(ENVS)]
    obs, draw = np.stack([env.reset()[0] for env in envs]), np.random.default_rng(options.seed)
    count, rewards = 0, []
    while count < options.steps:
        explores = count >= LEARNING_STARTS
        action = learner.act(obs, True) if explores else draw.uniform(-1, 1, (ENVS, 4)).astype(np.float32)
        for index, env in enumerate(envs):
            next_obs, reward, _, truncated, _ = env.step(action[index])
            learner.add(obs[index], action[index], reward, next_obs)
            rewards.append(reward)
            obs[index] = env.reset()[0] if truncated else next_obs
        count += ENVS
        for _ in range(ENVS if count > LEARNING_STARTS else 0):
            learner.update()
        if count // EVERY > (count - ENVS) // EVERY:
            success = success_rate(TASK, lambda row: learner.act(row[None], False)[0])
            print(f"{count} steps: success {success:.2f}, {np.mean(rewards[-6000:]):.2f} per step", flush=True)


if __name__ == "__main__":
    main()
