"""Trains Stable-Baselines3 on one core, with its defaults or the hyper-parameters of its Zoo.

Evaluation follows powerband's: deterministic actions in ten environments, each of which plays equally many episodes,
and returns that no wrapper has normalised. Its time does not count.
"""

from __future__ import annotations

import functools
import importlib
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import stable_baselines3
import torch
import yaml
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize

from rows import EPISODES, EVAL_SEED, FINAL_EPISODES, FINAL_SEED, POINTS

EVAL_ENVS = 10


class MinAtarNetwork(BaseFeaturesExtractor):
    """One 3x3 convolution and 128 features, for boolean planes (H, W, C). Source: Young and Tian 2019."""

    def __init__(self, space: gymnasium.spaces.Box) -> None:
        super().__init__(space, features_dim=128)
        height, width, channels = space.shape
        self.convolution = torch.nn.Conv2d(channels, 16, 3)
        self.linear = torch.nn.Linear(16 * (height - 2) * (width - 2), 128)

    def forward(self, planes: torch.Tensor) -> torch.Tensor:
        maps = torch.relu(self.convolution(planes.permute(0, 3, 1, 2)))
        return torch.relu(self.linear(maps.flatten(1)))


@functools.cache
def zoo() -> dict[str, Any]:
    """Returns the Zoo's hyper-parameters: algorithm -> task -> settings."""
    return yaml.safe_load((Path(__file__).parent / "zoo.yaml").read_text())


def make_envs(env_id: str, number: int, seed: int) -> VecEnv:
    """Creates environments in this process; the part of `env_id` before a colon is a module to import first."""
    module, _, name = env_id.rpartition(":")
    if module:
        importlib.import_module(module)
    return make_vec_env(name, number, seed=seed, vec_env_cls=DummyVecEnv)


def make_model(env_id: str, algo: str, seed: int, settings: dict[str, Any]) -> BaseAlgorithm:
    """Creates the model with its environments; `settings` is an entry of `zoo.yaml`."""
    settings = dict(settings)
    env = make_envs(env_id, settings.pop("n_envs", 1), seed)
    if settings.pop("normalize", False):
        env = VecNormalize(env, gamma=settings.get("gamma", 0.99))
    for name in ("learning_rate", "clip_range"):
        if str(settings.get(name)).startswith("lin_"):
            first = float(settings[name].removeprefix("lin_"))
            settings[name] = lambda left, first=first: left * first
    if "noise_std" in settings:
        shape = env.action_space.shape
        settings["action_noise"] = NormalActionNoise(np.zeros(shape), np.full(shape, settings.pop("noise_std")))
    networks = dict(settings.pop("policy_kwargs", {}))
    if "activation_fn" in networks:
        networks["activation_fn"] = getattr(torch.nn, networks["activation_fn"])
    if settings.pop("minatar_network", False):
        networks |= {"features_extractor_class": MinAtarNetwork, "net_arch": []}
    policy = "MultiInputPolicy" if isinstance(env.observation_space, gymnasium.spaces.Dict) else "MlpPolicy"
    algorithm = getattr(stable_baselines3, algo.upper())
    return algorithm(policy, env, seed=seed, device="cpu", policy_kwargs=networks, **settings)


def evaluate(model: BaseAlgorithm, env_id: str, episodes: int, seed: int) -> np.ndarray:
    """Returns the returns of `episodes` episodes with deterministic actions, without normalisation."""
    env, normalizer = make_envs(env_id, EVAL_ENVS, seed), model.get_vec_normalize_env()
    rounds, returns, total = -(-episodes // EVAL_ENVS), [], np.zeros(EVAL_ENVS)
    finished, obs = np.zeros(EVAL_ENVS, dtype=int), env.reset()
    while finished.min() < rounds:
        action, _ = model.predict(normalizer.normalize_obs(obs) if normalizer else obs, deterministic=True)
        obs, reward, done, _ = env.step(action)
        total += reward
        returns += list(total[done & (finished < rounds)])
        finished += done
        total[done] = 0
    env.close()
    return np.array(returns)


class Evaluations(BaseCallback):
    """Evaluates every `interval` environment steps.

    Attributes:
        curve: Steps, CPU seconds and seconds of training without evaluations, and mean return, for each evaluation.
    """

    def __init__(self, env_id: str, interval: int) -> None:
        super().__init__()
        self.env_id, self.interval = env_id, interval
        self.curve: list[dict[str, float]] = []

    def _on_training_start(self) -> None:
        self.cpu_began, self.began = time.process_time(), time.perf_counter()

    def _on_step(self) -> bool:
        if self.num_timesteps // self.interval > len(self.curve) and len(self.curve) < POINTS - 1:
            self.add_point()
        return True

    def _on_training_end(self) -> None:
        self.add_point()

    def add_point(self) -> None:
        """Adds an evaluation to the curve, and excludes its duration from the training."""
        cpu_s, train_s = time.process_time() - self.cpu_began, time.perf_counter() - self.began
        score = float(evaluate(self.model, self.env_id, EPISODES, EVAL_SEED).mean())
        self.cpu_began, self.began = time.process_time() - cpu_s, time.perf_counter() - train_s
        point = {"env_steps": self.num_timesteps, "cpu_s": round(cpu_s, 3), "train_s": round(train_s, 3)}
        self.curve.append({**point, "return": score})
        print(self.curve[-1], flush=True)


def train_sb3(env_id: str, algo: str, steps: int, seed: int, settings: dict[str, Any]) -> dict[str, Any]:
    """Trains, evaluates the policy at the end, and returns the result of the row."""
    torch.set_num_threads(1)
    model = make_model(env_id, algo, seed, settings)
    evaluations = Evaluations(env_id, steps // POINTS)
    model.learn(steps, callback=evaluations)
    returns = evaluate(model, env_id, FINAL_EPISODES, FINAL_SEED)
    mean, half = returns.mean(), 1.96 * returns.std(ddof=1) / np.sqrt(len(returns))
    final = {"return": mean, "return_low": mean - half, "return_high": mean + half, "episodes": len(returns)}
    final = {name: float(value) for name, value in final.items()}
    return {"settings": settings, "curve": evaluations.curve, "final": final}
