"""Agent-steps per second of the uav environment with features, compared with the reference mission of the tests.

    python benchmarks/environments/uav_env.py [--seconds 3] [--missions 64] [--json out.json]
    python benchmarks/environments/uav_env.py --device cuda --missions 64 512 4096 [--json out.json]

Four UAVs make random valid moves on the complete map of 493 x 493 cells. An agent-step is one move of one UAV with its
measurement, message exchange, fusion, masks, reward, and the feature maps of the UAV and the team. The comparison uses
one thread; rates per core divide by the CPU time of the process. Each round measures both, and the ratio is the median
over rounds. With `--device cuda` only the environment runs, on the device, with each number of missions in turn.
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
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

import numpy as np  # noqa: E402
import torch  # noqa: E402

from powerband.core.machine.device import host_facts  # noqa: E402
from powerband.doctor.stopwatch import synchronize  # noqa: E402
from powerband.recipes.uav.env.env import UavEnv  # noqa: E402
from powerband.recipes.uav.env.planners import GreedyPlanner, RandomPlanner  # noqa: E402
from powerband.recipes.uav.settings import World  # noqa: E402
from recipes.uav.env.reference import ReferenceMission  # noqa: E402

WORLD = World()
GUIDE_RATE = 51.0
"""Agent-steps/s that the guide states for its own system; not measured here."""


class Reference:
    """Reference mission of the tests, with random numbers from numpy."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)
        self.truth = np.zeros((WORLD.map_cells, WORLD.map_cells), np.int64)
        self.truth[: WORLD.map_cells // 2] = 1
        self.begin()

    def begin(self) -> None:
        """Starts a mission."""
        start = np.concatenate([self.rng.integers(0, 11, (4, 2)), np.full((4, 1), 2)], 1)
        self.mission = ReferenceMission(
            WORLD.map_cells, list(WORLD.sensor_noise), list(WORLD.altitudes_m), start, WORLD.budget
        )
        self.measure_and_fuse()

    def measure_and_fuse(self) -> None:
        """Samples measurements and messages, and fuses them."""
        positions = np.array(self.mission.position)
        metres = np.stack(
            [5.0 * positions[:, 0], 5.0 * positions[:, 1], np.array(WORLD.altitudes_m)[positions[:, 2]]], 1
        )
        distance = np.linalg.norm(metres[:, None] - metres[None], axis=2)
        received = [set(np.flatnonzero(row <= WORLD.comm_range_m).tolist()) for row in distance]
        wrong = [self.rng.random(self.truth.shape) < WORLD.sensor_noise[z] for z in positions[:, 2]]
        self.mission.measure_and_fuse([self.truth ^ flips for flips in wrong], received)

    def run(self, steps: int) -> int:
        """Makes `steps` moves of the team; returns the number of agent-steps."""
        for _ in range(steps):
            for i in range(4):
                self.mission.uav_maps(i)
            self.mission.team_maps()
            actions: list[int] = []
            for i in range(4):
                mask = self.mission.masks([*actions, *[0] * (4 - i)])[i]
                actions.append(int(self.rng.choice(np.flatnonzero(mask))))
            self.mission.move(actions)
            self.measure_and_fuse()
            if self.mission.moves == WORLD.num_steps:
                self.begin()
        return 4 * steps


class Compiled:
    """Environment with compiled kernels."""

    def __init__(self, missions: int, threads: int, device: str = "cpu") -> None:
        self.env = UavEnv(missions, WORLD, seed=0, threads=threads, device=device)
        self.planner = RandomPlanner(0)
        self.run(WORLD.num_steps)

    def run(self, steps: int) -> int:
        """Makes `steps` moves of all teams; returns the number of agent-steps."""
        for _ in range(steps):
            self.env.step(self.planner.act(self.env))
        synchronize(self.env.device)
        return 4 * self.env.num_envs * steps


def on_device(options: argparse.Namespace) -> None:
    """Measures the environment alone on a device, with each number of missions that its memory holds."""
    result: dict[str, Any] = {"host": host_facts(), "device": options.device, "map_cells": WORLD.map_cells, "rows": []}
    for missions in options.missions:
        try:
            compiled = Compiled(missions, 1, options.device)
        except torch.cuda.OutOfMemoryError as error:
            print(f"{missions} missions do not fit: {error}")
            break
        agent_steps_per_s = rate(compiled.run, WORLD.num_steps, options.seconds)["per_second"]
        result["rows"].append({"missions": missions, "agent_steps_per_s": agent_steps_per_s})
        print(f"{missions:6} missions: {agent_steps_per_s:,.0f} agent-steps/s", flush=True)
        if options.json:
            Path(options.json).write_text(json.dumps(result, indent=1))


def rate(run: Callable[[int], int], steps: int, seconds: float) -> dict[str, float]:
    """Returns agent-steps per second of CPU time and of wall time."""
    done, cpu, wall = 0, time.process_time(), time.perf_counter()
    while time.perf_counter() - wall < seconds:
        done += run(steps)
    return {"per_core": done / (time.process_time() - cpu), "per_second": done / (time.perf_counter() - wall)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--missions", type=int, nargs="+", default=[64], help="several values need --device")
    parser.add_argument("--device", help="measure the environment alone on this device")
    parser.add_argument("--json", default="")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.device:
        on_device(args)
        return
    (missions,) = args.missions
    reference, compiled = Reference(), Compiled(missions, 1)
    rounds = []
    for _ in range(args.rounds):
        slow = rate(reference.run, 1, args.seconds)
        fast = rate(compiled.run, WORLD.num_steps, args.seconds)
        rounds.append({"plain": slow, "compiled": fast, "ratio": fast["per_core"] / slow["per_core"]})
        print(f"reference {slow['per_core']:8.1f}   compiled {fast['per_core']:10.0f} agent-steps/s/core", flush=True)
    result = {
        "host": host_facts(),
        "missions": missions,
        "rounds": rounds,
        "plain": statistics.median(each["plain"]["per_core"] for each in rounds),
        "compiled": statistics.median(each["compiled"]["per_core"] for each in rounds),
        "ratio": statistics.median(each["ratio"] for each in rounds),
        "stated_by_the_parent": GUIDE_RATE,
    }
    result["times_the_parent"] = result["compiled"] / GUIDE_RATE
    threads = os.cpu_count() or 1
    result["threads"] = {
        str(count): rate(Compiled(missions, count).run, WORLD.num_steps, args.seconds)["per_second"]
        for count in sorted({1, threads})
    }
    env, greedy = UavEnv(16, WORLD, seed=0, threads=1), GreedyPlanner()
    env.step(greedy.act(env))

    def plan(steps: int) -> int:
        """Makes `steps` greedy moves of all teams; returns the number of agent-steps."""
        for _ in range(steps):
            env.step(greedy.act(env))
        return 4 * env.num_envs * steps

    result["greedy"] = rate(plan, 1, args.seconds)["per_core"]
    print(
        f"{result['compiled']:,.0f} agent-steps/s/core: {result['ratio']:.0f} times the reference mission, "
        f"{result['times_the_parent']:.0f} times the {GUIDE_RATE:g} of the guide; greedy {result['greedy']:,.0f}; "
        f"threads {result['threads']}"
    )
    if args.json:
        Path(args.json).write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
