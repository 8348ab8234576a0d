"""Steps per second of 16 Meta-World environments, compared with EnvPool, Gymnasium and Stable-Baselines3.

The libraries alternate on the same cores, task by task and round by round. Actions are uniform, and resets are
included. Geometric means are over the ten tasks of MT10 and over the other forty tasks.

    python benchmarks/environments/metaworld_env.py --json benchmarks/results/environments/metaworld_env.json
    python benchmarks/environments/metaworld_env.py mt50 --libraries powerband EnvPool \
        --json benchmarks/results/environments/metaworld_mt50.json
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from powerband.core.machine.device import host_facts
from powerband.recipes.metaworld.env.tasks import MT10_TASKS, Backend, TaskConfig, envpool_task_id, expand_task
from powerband.recipes.metaworld.env.vec_env import make_metaworld_vec_env

HORIZON = 500
Stepper = tuple[Callable[[np.ndarray], object], Callable[[], object]]
"""(function that steps once with given actions, function that closes the environments)."""


def powerband_env(task: str, num_envs: int, workers: int, backend: Backend) -> Stepper:
    """Creates powerband's vector environment with one backend."""
    env = make_metaworld_vec_env(TaskConfig(task, HORIZON, backend=backend), num_envs, workers)
    env.reset(0)
    return lambda actions: env.step(torch.from_numpy(actions)), env.close


def envpool_as_shipped(task: str, num_envs: int, threads: int) -> Stepper:
    """Creates EnvPool's vector environment, without powerband's adapter."""
    import envpool

    env = envpool.make_gymnasium(
        envpool_task_id(task), num_envs=num_envs, num_threads=threads, partially_observable=False
    )
    env.reset()
    return env.step, env.close


def make_one(task: str) -> Any:
    """Creates one environment of the metaworld package."""
    import gymnasium
    import metaworld  # noqa: F401  registers the ids

    return gymnasium.make("Meta-World/MT1", env_name=f"{task}-v3", disable_env_checker=True)


def gymnasium_async(task: str, num_envs: int) -> Stepper:
    """Creates Gymnasium's vector environment of worker processes."""
    import gymnasium

    env = gymnasium.vector.AsyncVectorEnv([functools.partial(make_one, task)] * num_envs)
    env.reset(seed=0)
    return env.step, env.close


def sb3_subproc(task: str, num_envs: int) -> Stepper:
    """Creates the vector environment of worker processes of Stable-Baselines3."""
    from stable_baselines3.common.vec_env import SubprocVecEnv

    env = SubprocVecEnv([functools.partial(make_one, task)] * num_envs, start_method="forkserver")
    env.reset()
    return env.step, env.close


LIBRARIES: dict[str, Callable[[str, int, int], Stepper]] = {
    "powerband": functools.partial(powerband_env, backend="auto"),
    "powerband, EnvPool": functools.partial(powerband_env, backend="envpool"),
    "powerband, workers": functools.partial(powerband_env, backend="workers"),
    "EnvPool": envpool_as_shipped,
    "gymnasium AsyncVectorEnv": lambda task, num_envs, workers: gymnasium_async(task, num_envs),
    "SB3 SubprocVecEnv": lambda task, num_envs, workers: sb3_subproc(task, num_envs),
}
"""Name of a library -> function from task, number of environments, and of workers or threads, to its stepper."""


def compare(
    libraries: list[str], task: str, num_envs: int, workers: int, rounds: int, round_s: float
) -> dict[str, list[float]]:
    """Measures the steps per second of each library in each round."""
    steppers = {name: LIBRARIES[name](task, num_envs, workers) for name in libraries}
    rng = np.random.default_rng(0)
    actions = rng.uniform(-1, 1, (64, num_envs, 4)).astype(np.float32)
    rates: dict[str, list[float]] = {name: [] for name in steppers}
    for _ in range(rounds):
        for name, (step, _) in steppers.items():
            step(actions[0])
            steps, start = 0, time.perf_counter()
            while (elapsed := time.perf_counter() - start) < round_s:
                step(actions[steps % len(actions)])
                steps += 1
            rates[name].append(steps * num_envs / elapsed)
    for _, close in steppers.values():
        close()
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("tasks", nargs="*", default=["mt10"], help="tasks, or mt10 or mt50 for all of a set")
    parser.add_argument("--libraries", nargs="+", choices=list(LIBRARIES), default=list(LIBRARIES))
    parser.add_argument("--num-envs", type=int, default=16)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--round-s", type=float, default=1.5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    table: dict[str, dict[str, float]] = {}
    # The tasks of MT10 come first, so that both means of an early end are over many tasks.
    tasks = sorted(
        {each for task in options.tasks for each in expand_task(task)}, key=lambda task: (task not in MT10_TASKS, task)
    )
    for task in tasks:
        rates = compare(options.libraries, task, options.num_envs, options.workers, options.rounds, options.round_s)
        table[task] = {name: statistics.median(values) for name, values in rates.items()}
        print(f"{task:<22}" + "  ".join(f"{name} {rate:,.0f}" for name, rate in table[task].items()), flush=True)
        result = {"host": host_facts(), "num_envs": options.num_envs, "workers": options.workers, **summary(table)}
        if options.json:  # after each task, because the other libraries take minutes to start and a run may end early
            options.json.write_text(json.dumps(result, indent=2) + "\n")
    for label, part in result["geometric_mean"].items():
        for name, ratio in result["powerband_over"][label].items():
            print(
                f"{label}: powerband {part['powerband']:,.0f} steps/s is {ratio:.2f} times {name} ({part[name]:,.0f})"
            )


def summary(table: dict[str, dict[str, float]]) -> dict[str, Any]:
    """Returns the table with geometric means over two sets of tasks, and the ratios of powerband to the others."""
    sets = {
        "mt10": [row for task, row in table.items() if task in MT10_TASKS],
        "other tasks": [row for task, row in table.items() if task not in MT10_TASKS],
    }
    means = {label: _geometric_means(rows) for label, rows in sets.items() if rows}
    ratios = {
        label: {name: mean["powerband"] / rate for name, rate in mean.items() if name != "powerband"}
        for label, mean in means.items()
    }
    return {"tasks": table, "geometric_mean": means, "powerband_over": ratios}


def _geometric_means(rows: list[dict[str, float]]) -> dict[str, float]:
    return {name: math.exp(statistics.mean(math.log(row[name]) for row in rows)) for name in rows[0]}


if __name__ == "__main__":
    main()
