"""How often the scripted demonstrators solve LIBERO's tasks: those that they cover, from drawn starts, unrendered.

python benchmarks/libero_scripts.py [--episodes 10] [--benchmarks libero_goal ...] [--json OUT.json]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from powerband.core import rendering
from powerband.core.config import ConfigError
from powerband.core.device import host_facts
from powerband.envs.libero.scripted import Demonstrator, script_of
from powerband.envs.libero.single import LiberoEnv
from powerband.envs.libero.tasks import BENCHMARKS, LiberoTask, tasks_of
from powerband.loops.evaluate import wilson


def solved(task: LiberoTask, episodes: int) -> list[int]:
    """Actions of each episode that was solved."""
    places, waypoints = script_of(task)
    env = LiberoEnv(task.benchmark, str(task.index), chunk=1, pixels=0, poses=places)
    person, found = Demonstrator(waypoints, np.random.default_rng(0)), []
    for seed in range(episodes):
        seen, done = env.reset(seed=seed)[0], False
        person.begin()
        while not done:
            seen, _, won, late, info = env.step(person.act(seen)[None])
            done = won or late
        found += [int(info["steps"])] * bool(won)
    env.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--episodes", type=int, default=10)
    parser.add_argument("--benchmarks", nargs="+", default=list(BENCHMARKS), choices=list(BENCHMARKS))
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rendering.prepare()
    rows, without = [], []
    for task in [task for benchmark in given.benchmarks for task in tasks_of(benchmark)]:
        try:
            steps = solved(task, given.episodes)
        except ConfigError:
            without.append(task.name)
            continue
        low, high = wilson(len(steps), given.episodes)
        won = {"solved": len(steps), "of": given.episodes, "low": low, "high": high}
        rows.append({"benchmark": task.benchmark, "task": task.name, **won, "steps": steps})
        took = f"{np.mean(steps or [0]):4.0f} steps"
        print(f"{len(steps):>3} of {given.episodes}  {took}  {task.benchmark}: {task.name}", flush=True)
        if given.json:
            facts = {"host": host_facts(), "without_a_script": without}
            given.json.write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
