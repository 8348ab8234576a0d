"""Speed of the uav environment with features, and of the plain mission of the tests, side by side.

    python benchmarks/uav_env.py [--seconds 3] [--missions 64] [--json out.json]

Random allowed moves of four UAVs on the whole 493 x 493 map. An agent-step is one move of one UAV with everything that
belongs to it: measuring, exchanging, fusing, masks, reward, and the feature maps of the UAV and the team. One thread;
per-core figures divide by the CPU time of the process. The ratio is the median over rounds in which both are timed one
after the other.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import numpy as np  # noqa: E402
import torch  # noqa: E402

from envs.uav.reference import PlainMission  # noqa: E402
from powerband.core.device import host_facts  # noqa: E402
from powerband.envs.uav.env import UavEnv  # noqa: E402
from powerband.envs.uav.planners import GreedyPlanner, RandomPlanner  # noqa: E402
from powerband.envs.uav.world import World  # noqa: E402

WORLD = World()
PARENT = 51.0
"""Agent-steps/s of the system that the guide is about, as its guide's spec states; not measured here."""


class Plain:
    """The mission of the tests, with its draws made by numpy."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)
        self.truth = np.zeros((WORLD.map_cells, WORLD.map_cells), np.int64)
        self.truth[: WORLD.map_cells // 2] = 1
        self.begin()

    def begin(self) -> None:
        """A new mission."""
        start = np.concatenate([self.rng.integers(0, 11, (4, 2)), np.full((4, 1), 2)], 1)
        self.mission = PlainMission(
            WORLD.map_cells, list(WORLD.sensor_noise), list(WORLD.altitudes_m), start, WORLD.budget
        )
        self.take_in()

    def take_in(self) -> None:
        """Measures and fuses."""
        positions = np.array(self.mission.position)
        metres = np.stack(
            [5.0 * positions[:, 0], 5.0 * positions[:, 1], np.array(WORLD.altitudes_m)[positions[:, 2]]], 1
        )
        apart = np.linalg.norm(metres[:, None] - metres[None], axis=2)
        heard = [set(np.flatnonzero(row <= WORLD.comm_range_m).tolist()) for row in apart]
        wrong = [self.rng.random(self.truth.shape) < WORLD.sensor_noise[z] for z in positions[:, 2]]
        self.mission.take_in([self.truth ^ flips for flips in wrong], heard)

    def run(self, steps: int) -> int:
        """Makes so many moves of the team; returns agent-steps."""
        for _ in range(steps):
            for i in range(4):
                self.mission.uav_maps(i)
            self.mission.team_maps()
            actions: list[int] = []
            for i in range(4):
                mask = self.mission.masks([*actions, *[0] * (4 - i)])[i]
                actions.append(int(self.rng.choice(np.flatnonzero(mask))))
            self.mission.move(actions)
            self.take_in()
            if self.mission.made == WORLD.num_steps:
                self.begin()
        return 4 * steps


class Compiled:
    """The environment."""

    def __init__(self, missions: int, threads: int) -> None:
        self.env, self.planner = UavEnv(missions, WORLD, seed=0, threads=threads), RandomPlanner(0)
        self.run(WORLD.num_steps)

    def run(self, steps: int) -> int:
        """Makes so many moves; returns agent-steps."""
        for _ in range(steps):
            self.env.step(self.planner.act(self.env))
        return 4 * self.env.num_envs * steps


def rate(run: Callable[[int], int], steps: int, seconds: float) -> dict[str, float]:
    """Agent-steps a second of CPU time and of wall time."""
    done, cpu, wall = 0, time.process_time(), time.perf_counter()
    while time.perf_counter() - wall < seconds:
        done += run(steps)
    return {"per_core": done / (time.process_time() - cpu), "per_second": done / (time.perf_counter() - wall)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--missions", type=int, default=64)
    parser.add_argument("--json", default="")
    args = parser.parse_args()
    torch.set_num_threads(1)
    plain, fast = Plain(), Compiled(args.missions, 1)
    rounds = []
    for _ in range(args.rounds):
        slow = rate(plain.run, 1, args.seconds)
        quick = rate(fast.run, WORLD.num_steps, args.seconds)
        rounds.append({"plain": slow, "compiled": quick, "ratio": quick["per_core"] / slow["per_core"]})
        print(f"plain {slow['per_core']:8.1f}   compiled {quick['per_core']:10.0f} agent-steps/s/core", flush=True)
    found = {
        "host": host_facts(),
        "missions": args.missions,
        "rounds": rounds,
        "plain": statistics.median(each["plain"]["per_core"] for each in rounds),
        "compiled": statistics.median(each["compiled"]["per_core"] for each in rounds),
        "ratio": statistics.median(each["ratio"] for each in rounds),
        "stated_by_the_parent": PARENT,
    }
    found["times_the_parent"] = found["compiled"] / PARENT
    threads = os.cpu_count() or 1
    found["threads"] = {
        str(count): rate(Compiled(args.missions, count).run, WORLD.num_steps, args.seconds)["per_second"]
        for count in sorted({1, threads})
    }
    env, greedy = UavEnv(16, WORLD, seed=0, threads=1), GreedyPlanner()
    env.step(greedy.act(env))

    def plan(steps: int) -> int:
        for _ in range(steps):
            env.step(greedy.act(env))
        return 4 * env.num_envs * steps

    found["greedy"] = rate(plan, 1, args.seconds)["per_core"]
    print(
        f"{found['compiled']:,.0f} agent-steps/s/core: {found['ratio']:.0f} times the plain mission here, "
        f"{found['times_the_parent']:.0f} times the {PARENT:g} that the parent states; greedy {found['greedy']:,.0f}; "
        f"threads {found['threads']}"
    )
    if args.json:
        Path(args.json).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
