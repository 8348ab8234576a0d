"""Steps per second of powerband's vector environment, compared with Gymnasium and Stable-Baselines3.

The vector environments are interleaved over several rounds, so a busy machine slows all of them equally. The ratios are
therefore more reliable than the rates.

    python benchmarks/environments/vector_env.py --json benchmarks/results/environments/vector_env.json
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from powerband.envs.adapters.gymnasium_env import GymVecEnv

Stepper = tuple[Callable[[], object], Callable[[], object]]
"""(function that steps once with fixed actions, function that closes the environment)."""


def powerband(env_id: str, num_envs: int, num_workers: int, actions: np.ndarray) -> Stepper:
    """Creates powerband's vector environment; with 0 workers, its simulators run in this process."""
    env = GymVecEnv(env_id, num_envs, num_workers)
    env.reset(0)
    action = torch.from_numpy(actions)
    return lambda: env.step(action), env.close


def gymnasium_vector(kind: str, env_id: str, num_envs: int, actions: np.ndarray) -> Stepper:
    """Creates Gymnasium's vector environment of a kind, ``async`` or ``sync``."""
    import gymnasium

    env_fns = [functools.partial(gymnasium.make, env_id, disable_env_checker=True)] * num_envs
    env = {"async": gymnasium.vector.AsyncVectorEnv, "sync": gymnasium.vector.SyncVectorEnv}[kind](env_fns)
    env.reset(seed=0)
    return lambda: env.step(actions), env.close


def sb3_subproc(env_id: str, num_envs: int, actions: np.ndarray) -> Stepper:
    """Creates the SubprocVecEnv of Stable-Baselines3, with one process per environment."""
    import gymnasium
    from stable_baselines3.common.vec_env import SubprocVecEnv

    env_fns = [functools.partial(gymnasium.make, env_id, disable_env_checker=True)] * num_envs
    env = SubprocVecEnv(env_fns, start_method="forkserver")
    env.reset()
    return lambda: env.step(actions), env.close


def compare(env_id: str, num_envs: int, num_workers: int, rounds: int, round_s: float) -> dict[str, dict[str, float]]:
    """Measures all vector environments in interleaved rounds of `round_s` seconds per vector environment.

    Returns:
        Name -> median environment steps/s, and the median ratio of powerband's rate to this rate.
    """
    import gymnasium

    space = gymnasium.make(env_id).action_space
    space.seed(0)
    actions = np.stack([space.sample() for _ in range(num_envs)])
    steppers = {
        f"powerband, {num_workers} workers": powerband(env_id, num_envs, num_workers, actions),
        "powerband, in process": powerband(env_id, num_envs, 0, actions),
        "gymnasium AsyncVectorEnv": gymnasium_vector("async", env_id, num_envs, actions),
        "gymnasium SyncVectorEnv": gymnasium_vector("sync", env_id, num_envs, actions),
        "SB3 SubprocVecEnv": sb3_subproc(env_id, num_envs, actions),
    }
    rates: dict[str, list[float]] = {name: [] for name in steppers}
    for _ in range(rounds):
        for name, (step, _) in steppers.items():
            step()
            steps, start = 0, time.perf_counter()
            while (elapsed := time.perf_counter() - start) < round_s:
                step()
                steps += 1
            rates[name].append(steps * num_envs / elapsed)
    for _, close in steppers.values():
        close()
    powerband_rates = rates[f"powerband, {num_workers} workers"]
    return {
        name: {
            "steps_per_s": round(statistics.median(values)),
            "powerband_is_faster_by": round(
                statistics.median(a / b for a, b in zip(powerband_rates, values, strict=True)), 2
            ),
        }
        for name, values in rates.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--env-ids", default="Pendulum-v1,HalfCheetah-v5", help="Gymnasium ids, separated by commas")
    parser.add_argument("--num-envs", type=int, default=16, help="number of environments")
    parser.add_argument("--num-workers", type=int, default=2, help="worker processes of powerband")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds")
    parser.add_argument("--round-s", type=float, default=1.0, help="seconds per vector environment and round")
    parser.add_argument("--json", type=Path, help="file for the results")
    args = parser.parse_args()
    torch.set_num_threads(1)
    result = {
        "hardware": f"{os.cpu_count()} cores, {platform.machine()}",
        "num_envs": args.num_envs,
        "num_workers": args.num_workers,
    }
    for env_id in args.env_ids.split(","):
        result[env_id] = compare(env_id, args.num_envs, args.num_workers, args.rounds, args.round_s)
        for name, row in result[env_id].items():
            faster = row["powerband_is_faster_by"]
            print(
                f"{env_id:16s} {name:28s} {row['steps_per_s']:9,d} steps/s   powerband is {faster:5.2f} times as fast"
            )
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
