"""Lost transitions and recovery times with failing simulators, compared with Gymnasium and Stable-Baselines3.

    python benchmarks/reliability/env_faults.py --json benchmarks/results/reliability/env_faults.json

The script injects about 1,300 failures: exceptions, exits, kills, hangs, values that are not finite, wrong shapes and
wrong dtypes. The vector environments of Gymnasium and Stable-Baselines3 run with the same kinds of failures.

Observations of the cheap environment contain the seed of the episode, the step and the sum of the actions, so the check
detects a lost, repeated or swapped transition. Each transition of the MuJoCo environment is compared bit for bit with
the same episode in this process.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import signal
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from powerband.core.machine.device import host_facts
from powerband.core.machine.utilisation import process_tree
from powerband.envs.workers.processes import start_workers, stop_workers
from powerband.envs.workers.seeds import episode_seed
from powerband.envs.workers.supervision import EnvFailure, Supervision
from powerband.envs.workers.vector import WorkerVecEnv

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from envs.workers.faulty import FAULTS, Chained  # noqa: E402
from envs.workers.test_supervised import play_and_check  # noqa: E402

DEADLINE_S = 0.5
"""Seconds after which a step counts as hanging."""
SEED = 3


class FailingCheetah:
    """HalfCheetah-v5 that fails once in `rare` steps on average; 0 means no failures.

    A hash of the episode's seed and the step selects the failing steps.
    """

    def __init__(self, rare: int = 0) -> None:
        import gymnasium

        self.env = gymnasium.make("HalfCheetah-v5", max_episode_steps=200)
        self.observation_space, self.action_space = self.env.observation_space, self.env.action_space
        self.failing = Chained(rare)
        self.rare = rare

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        self.failing.reset(seed=seed)
        return self.env.reset(seed=seed)

    def step(self, action: np.ndarray) -> Any:
        result = self.env.step(action)
        self.failing.steps += 1
        number = hash((self.failing.seed, self.failing.steps, 77))
        if self.rare and number % self.rare == 0:
            return self.failing._fail(FAULTS[number // self.rare % len(FAULTS)], 0.0)
        return result

    def close(self) -> None:
        self.env.close()


def vector(make: Any, rare: int, num_envs: int, workers: int, failures: list[EnvFailure]) -> WorkerVecEnv:
    """Creates a supervised vector environment that appends its failures to `failures`."""
    supervision = Supervision(deadline_s=DEADLINE_S, max_failures=100_000)
    return WorkerVecEnv(
        [(make, {"rare": rare})] * num_envs, num_workers=workers, supervision=supervision, on_failure=failures.append
    )


def start_s(make: Any, num_envs: int, workers: int) -> float:
    """Returns the median start time of a healthy worker in seconds: Python, imports and its simulators."""
    times = []
    for _ in range(3):
        began = time.monotonic()
        group = start_workers([(make, {})] * (num_envs // workers), 1, 0, (), True)
        group[0].recv()
        times.append(time.monotonic() - began)
        stop_workers(group)
    return statistics.median(times)


def cheetah(steps: int, rare: int, num_envs: int, workers: int, failures: list[EnvFailure]) -> tuple[int, int]:
    """Returns the numbers of real and lost transitions; compares each real one with healthy environments."""
    env = vector(FailingCheetah, rare, num_envs, workers, failures)
    healthy = [FailingCheetah() for _ in range(num_envs)]
    episode, real, lost_rows = [0] * num_envs, 0, 0
    env.reset(SEED)
    for row in range(num_envs):
        healthy[row].reset(seed=episode_seed(SEED, row, 0))
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        action = torch.rand(num_envs, 6, generator=generator) * 2 - 1
        step = env.step(action)
        for row in range(num_envs):
            lost = step.lost is not None and bool(step.lost[row])
            if not lost:
                expected, reward, *_ = healthy[row].step(action[row].numpy())
                assert np.array_equal(step.next_obs()[row].numpy(), expected.astype(np.float32)), row
                assert float(step.reward[row]) == np.float32(reward)
                real += 1
            lost_rows += lost
            if bool(step.ended[row]):
                episode[row] += 1
                first, _ = healthy[row].reset(seed=episode_seed(SEED, row, episode[row]))
                assert np.array_equal(step.obs[row].numpy(), first.astype(np.float32)), row
    env.close()
    return real, lost_rows


def summary(failures: list[EnvFailure], real: int, lost: int, worker_start_s: float, seconds: float) -> dict[str, Any]:
    """Returns the row of one run; recovery times exclude `worker_start_s`, the seconds for starting a worker."""
    restarts = sorted(failure.recovery_s for failure in failures if failure.kind in ("died", "hung"))
    recoveries = [recovery_s - worker_start_s for recovery_s in restarts]
    kinds = {
        kind: sum(failure.kind == kind for failure in failures) for kind in ("raised", "died", "hung", "not restored")
    }
    return {
        "failures": len(failures),
        "kinds": kinds,
        "transitions": real,
        "lost": lost,
        "lost_beyond_the_failed": lost - sum(failure.env_id is not None for failure in failures),
        "start_s": worker_start_s,
        "recovery_p50_s": recoveries[len(recoveries) // 2] if recoveries else None,
        "recovery_p99_s": (recoveries[min(len(recoveries) - 1, int(0.99 * len(recoveries)))] if recoveries else None),
        "seconds": seconds,
    }


def run_peer(name: str, fault: str, results: Any) -> None:
    """Steps the vector environment of a peer with one kind of failure in this process, and queues a description."""
    import functools

    import gymnasium

    os.setsid()  # a separate process group, so that all processes can be killed together
    env_fns = [functools.partial(as_gymnasium, functools.partial(Chained, 150, (fault,)))] * 4
    try:
        if name == "gymnasium":
            env = gymnasium.vector.AsyncVectorEnv(env_fns)
            env.reset(seed=SEED)
        else:
            from stable_baselines3.common.vec_env import SubprocVecEnv

            env = SubprocVecEnv(env_fns, start_method="forkserver")
            env.seed(SEED)
            env.reset()
        for _ in range(300):
            env.step(np.zeros((4, 1), np.float32))
        results.put("continued with the invalid values" if "finite" in fault else "continued")
    except BaseException as error:
        results.put(f"ended: {type(error).__name__}: {str(error).splitlines()[0][:80] if str(error) else ''}")


def as_gymnasium(make: Any) -> Any:
    """Returns a new environment as a gymnasium.Env, which the peers require."""
    import gymnasium

    class Wrapped(gymnasium.Env):
        def __init__(self) -> None:
            self.inner = make()
            self.observation_space, self.action_space = self.inner.observation_space, self.inner.action_space

        def reset(self, *, seed=None, options=None):
            return self.inner.reset(seed=int(np.random.default_rng(seed).integers(2**31)))

        def step(self, action):
            return self.inner.step(action)

    return Wrapped()


def peers(timeout_s: float) -> dict[str, dict[str, str]]:
    """Returns name of the peer -> kind of failure -> description; a peer hangs if it takes more than `timeout_s`."""
    table: dict[str, dict[str, str]] = {}
    context = multiprocessing.get_context("spawn")
    for name in ("gymnasium", "stable-baselines3"):
        table[name] = {}
        for fault in FAULTS:
            results = context.Queue()
            job = context.Process(target=run_peer, args=(name, fault, results))
            job.start()
            job.join(timeout_s)
            table[name][fault] = f"hangs (no result in {timeout_s:g} s)" if job.is_alive() else results.get()
            with contextlib.suppress(ProcessLookupError):  # simulators of the peer may still run after it has ended
                os.killpg(job.pid, signal.SIGKILL)
            job.join()
            print(f"{name:<18} {fault:<18} {table[name][fault]}", flush=True)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=Path, help="file for the results")
    parser.add_argument("--steps", type=int, default=6000, help="steps of the cheap environment")
    parser.add_argument("--cheetah-steps", type=int, default=1200, help="steps of the MuJoCo environment")
    parser.add_argument("--patience", type=float, default=20.0, help="seconds after which a peer counts as hanging")
    args = parser.parse_args()
    table: dict[str, Any] = {"host": host_facts(), "deadline_s": DEADLINE_S}
    for name, make, rare, steps in (
        ("cheap", Chained, 48, args.steps),
        ("mujoco", FailingCheetah, 190, args.cheetah_steps),
    ):
        failures: list[EnvFailure] = []
        worker_start_s, began = start_s(make, 8, 2), time.monotonic()
        if name == "cheap":
            env = vector(make, rare, 8, 2, failures)
            real, lost = play_and_check(env, steps, SEED)
            env.close()
        else:
            real, lost = cheetah(steps, rare, 8, 2, failures)
        table[name] = summary(failures, real, lost, worker_start_s, time.monotonic() - began)
        table[name]["orphans"] = len(process_tree(os.getpid())) - 1
        print(name, json.dumps(table[name]), flush=True)
        if args.json:
            args.json.write_text(json.dumps(table, indent=2) + "\n")
    table["peers"] = peers(args.patience)
    if args.json:
        args.json.write_text(json.dumps(table, indent=2) + "\n")


if __name__ == "__main__":
    main()
