"""Simulators that fail: how many of 1,000 injected failures cost a transition that they should not, how long a recovery
takes, and what Gymnasium's and Stable-Baselines3's vector environments do with the same failures.

    python benchmarks/env_faults.py --json benchmarks/results/env_faults.json

The cheap environment shows in each observation whose it is (seed of the episode, step, sum of its actions), so that a
lost, repeated or swapped transition is seen where it is taken in. Every transition of the MuJoCo environment is
compared, bit for bit, with the same episode played anew in this process. Ways to fail: raise, exit, be killed, hang,
values that are not finite, a wrong shape, a wrong dtype.
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

from powerband.core.device import host_facts
from powerband.core.utilisation import with_children
from powerband.envs.processes import start, stop
from powerband.envs.seeds import episode_seed
from powerband.envs.supervision import Fault, Supervision
from powerband.envs.vector import WorkerVecEnv

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from envs.faulty import FAULTS, Chained  # noqa: E402
from envs.test_supervised import played  # noqa: E402

DEADLINE_S = 0.5
SEED = 3


class FailingCheetah:
    """HalfCheetah-v5 that fails in one step of about `rare`, by a hash of the episode's seed and the step.

    Args:
        rare: 0 never fails.
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
        found = self.env.step(action)
        self.failing.steps += 1
        drawn = hash((self.failing.seed, self.failing.steps, 77))
        if self.rare and drawn % self.rare == 0:
            return self.failing._fail(FAULTS[drawn // self.rare % len(FAULTS)], 0.0)
        return found

    def close(self) -> None:
        self.env.close()


def vector(make: Any, rare: int, num_envs: int, workers: int, told: list[Fault]) -> WorkerVecEnv:
    patience = Supervision(deadline_s=DEADLINE_S, most=100_000)
    return WorkerVecEnv(
        [(make, {"rare": rare})] * num_envs, num_workers=workers, supervision=patience, tell=told.append
    )


def start_s(make: Any, num_envs: int, workers: int) -> float:
    """Seconds that starting one worker takes without any failure: Python, imports, its simulators."""
    found = []
    for _ in range(3):
        began = time.monotonic()
        group = start([(make, {})] * (num_envs // workers), 1, 0, (), True)
        group[0].recv()
        found.append(time.monotonic() - began)
        stop(group)
    return statistics.median(found)


def cheetah(steps: int, rare: int, num_envs: int, workers: int, told: list[Fault]) -> tuple[int, int]:
    """Plays and compares each kept transition with its episode played anew; (real, lost)."""
    env = vector(FailingCheetah, rare, num_envs, workers, told)
    healthy = [FailingCheetah() for _ in range(num_envs)]
    episode, real, lost_rows = [0] * num_envs, 0, 0
    obs = env.reset(SEED).clone()
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
        obs = step.obs
    del obs
    env.close()
    return real, lost_rows


def summary(told: list[Fault], real: int, lost: int, started: float, took: float) -> dict[str, Any]:
    """Figures of one run; a recovery is without the worker's own start, of those that started one."""
    again = sorted(fault.recovery_s for fault in told if fault.kind in ("died", "hung"))
    own = [seconds - started for seconds in again]
    kinds = {kind: sum(fault.kind == kind for fault in told) for kind in ("raised", "died", "hung", "not restored")}
    return {
        "failures": len(told),
        "kinds": kinds,
        "transitions": real,
        "lost": lost,
        "lost_beyond_the_failed": lost - sum(fault.env_id is not None for fault in told),
        "start_s": started,
        "recovery_p50_s": own[len(own) // 2] if own else None,
        "recovery_p99_s": own[min(len(own) - 1, int(0.99 * len(own)))] if own else None,
        "seconds": took,
    }


def peer(name: str, fault: str, said: Any) -> None:
    """One of the others' vector environments with one failure; in a process of its own."""
    import functools

    import gymnasium

    os.setsid()  # a group of its own, to be ended as a whole
    makes = [functools.partial(Chained, 150, (fault,))] * 4
    try:
        if name == "gymnasium":
            env = gymnasium.vector.AsyncVectorEnv([functools.partial(Registered, make) for make in makes])
            env.reset(seed=SEED)
        else:
            from stable_baselines3.common.vec_env import SubprocVecEnv

            env = SubprocVecEnv([functools.partial(Registered, make) for make in makes], start_method="forkserver")
            env.seed(SEED)
            env.reset()
        for _ in range(300):
            env.step(np.zeros((4, 1), np.float32))
        said.put("went on with the bad values" if "finite" in fault else "went on")
    except BaseException as error:
        said.put(f"ended: {type(error).__name__}: {str(error).splitlines()[0][:80] if str(error) else ''}")


def Registered(make: Any) -> Any:  # noqa: N802
    """As the others want it: a gymnasium.Env."""
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


def peers(patience_s: float) -> dict[str, dict[str, str]]:
    """What the others do, by name and failure."""
    found: dict[str, dict[str, str]] = {}
    context = multiprocessing.get_context("spawn")
    for name in ("gymnasium", "stable-baselines3"):
        found[name] = {}
        for fault in FAULTS:
            said = context.Queue()
            job = context.Process(target=peer, args=(name, fault, said))
            job.start()
            job.join(patience_s)
            found[name][fault] = f"hangs (no answer in {patience_s:g} s)" if job.is_alive() else said.get()
            with contextlib.suppress(ProcessLookupError):  # its simulators outlive it where it hangs or was ended
                os.killpg(job.pid, signal.SIGKILL)
            job.join()
            print(f"{name:<18} {fault:<18} {found[name][fault]}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--steps", type=int, default=6000, help="of the cheap environment; one in 50 x 8 rows fails")
    parser.add_argument("--cheetah-steps", type=int, default=1200)
    parser.add_argument("--patience", type=float, default=20.0, help="seconds for each of the others")
    args = parser.parse_args()
    table: dict[str, Any] = {"host": host_facts(), "deadline_s": DEADLINE_S}
    for name, make, rare, steps in (
        ("cheap", Chained, 48, args.steps),
        ("mujoco", FailingCheetah, 190, args.cheetah_steps),
    ):
        told: list[Fault] = []
        started, began = start_s(make, 8, 2), time.monotonic()
        if name == "cheap":
            env = vector(make, rare, 8, 2, told)
            real, lost = played(env, steps, SEED)
            env.close()
        else:
            real, lost = cheetah(steps, rare, 8, 2, told)
        table[name] = summary(told, real, lost, started, time.monotonic() - began)
        table[name]["orphans"] = len(with_children(os.getpid())) - 1
        print(name, json.dumps(table[name]), flush=True)
        if args.json:
            args.json.write_text(json.dumps(table, indent=2) + "\n")
    table["peers"] = peers(args.patience)
    if args.json:
        args.json.write_text(json.dumps(table, indent=2) + "\n")


if __name__ == "__main__":
    main()
