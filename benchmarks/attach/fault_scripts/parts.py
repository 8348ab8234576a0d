"""Parts that the scripts share: arguments of the faults, environments, figures, and a stand-in for a busy device.

Everything else in a script is what a user of its framework writes.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("MUJOCO_GL", "egl")

import gymnasium as gym
import matplotlib
import numpy as np
import torch

matplotlib.use("Agg")
from matplotlib import pyplot as plt

TORQUES = np.linspace(-2, 2, 9, dtype=np.float32)


def parser(**defaults: Any) -> argparse.ArgumentParser:
    """Returns a parser with the arguments of the faults; the defaults have no fault."""
    result = argparse.ArgumentParser()
    result.add_argument("--env-id", default="Pendulum-v1")
    result.add_argument("--num-envs", type=int, default=1, help="more than 1 makes an environment per process")
    result.add_argument("--env-ms", type=float, default=0, help="milliseconds that each environment step waits")
    result.add_argument("--first-env-ms", type=float, default=0, help="the same in the first environment only")
    result.add_argument("--render-every", type=int, default=0, help="steps between images; 0 draws none")
    result.add_argument("--batch-size", type=int, default=256)
    result.add_argument("--reads", type=int, default=0, help="parameter norms that each update reads with .item()")
    result.add_argument("--answer-ms", type=float, default=0, help="milliseconds until the device answers .item()")
    result.add_argument("--threads", type=int, default=1, help="threads of torch")
    result.add_argument("--eval-every", type=int, default=0)
    result.add_argument("--figure-every", type=int, default=0)
    result.add_argument("--save-every", type=int, default=0)
    result.add_argument("--seconds", type=float, default=0, help="end of the script; 0 trains until it is ended")
    result.set_defaults(**defaults)
    return result


def prepare(args: argparse.Namespace) -> None:
    """Sets threads and seeds, makes the device slow if the arguments say so, and lets the script end in time."""
    torch.set_num_threads(args.threads)
    torch.manual_seed(3)
    np.random.seed(3)
    if args.answer_ms:
        answer_after(args.answer_ms / 1e3)
    if args.seconds:
        signal.signal(signal.SIGALRM, lambda *_: sys.exit(0))
        signal.setitimer(signal.ITIMER_REAL, args.seconds)


class SlowSimulator(gym.Wrapper):
    """Every step waits, as for a simulator in another process."""

    def __init__(self, env: gym.Env, ms: float) -> None:
        super().__init__(env)
        self.seconds = ms / 1e3

    def step(self, action: Any) -> Any:
        time.sleep(self.seconds)
        return self.env.step(action)


class Camera(gym.Wrapper):
    """Draws an image every few steps."""

    def __init__(self, env: gym.Env, every: int) -> None:
        super().__init__(env)
        self.every, self.steps = every, 0

    def step(self, action: Any) -> Any:
        result = self.env.step(action)
        self.steps += 1
        if self.steps % self.every == 0:
            self.image = self.env.render()
        return result


class Torques(gym.ActionWrapper):
    """Nine torques instead of a continuous one, for Q-learning."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self.action_space = gym.spaces.Discrete(len(TORQUES))

    def action(self, action: Any) -> Any:
        return TORQUES[int(action)][None]


def make_env(args: argparse.Namespace, index: int = 0, discrete: bool = False) -> gym.Env:
    """Returns one environment."""
    env = gym.make(args.env_id, render_mode="rgb_array" if args.render_every else None)
    if discrete and isinstance(env.action_space, gym.spaces.Box):
        env = Torques(env)
    if args.render_every:
        env = Camera(env, args.render_every)
    ms = args.env_ms or (args.first_env_ms if index == 0 else 0)
    return SlowSimulator(env, ms) if ms else env


def makers(args: argparse.Namespace, discrete: bool = False) -> list[Callable[[], gym.Env]]:
    """Returns a function for each environment."""
    return [lambda index=index: make_env(args, index, discrete) for index in range(args.num_envs)]


def figure_of(values: list[float]) -> Any:
    """Returns a figure of a curve."""
    figure, axes = plt.subplots()
    axes.plot(values)
    return figure


def parameter_norms(parameters: Any, reads: int) -> list[float]:
    """Reads the norms of the first parameters one by one."""
    with torch.no_grad():
        return [each.norm().item() for each, _ in zip(list(parameters) * reads, range(reads), strict=False)]


def answer_after(seconds: float) -> None:
    """Makes each answer of the device slow, below the Python interface: the kernel behind ``.item()`` waits.

    It stands for a busy GPU. Optimisers keep their step counters on the host, so reading these stays fast.
    """
    library = torch.library.Library("aten", "IMPL")

    def local_scalar(tensor: torch.Tensor) -> Any:
        frame: Any = sys._getframe(1)
        while frame is not None and "/torch/" in frame.f_code.co_filename:
            if "/torch/optim/" in frame.f_code.co_filename:
                break
            frame = frame.f_back
        else:
            time.sleep(seconds)
        return tensor.detach().numpy().item()

    library.impl("_local_scalar_dense", local_scalar, "CPU")
    globals()["_library"] = library  # it would undo the change when it is freed
