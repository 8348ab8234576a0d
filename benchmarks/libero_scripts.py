"""How often the scripted demonstrators solve LIBERO's tasks: those that they cover, from drawn starts, unrendered.

python benchmarks/libero_scripts.py [--episodes 10] [--benchmarks libero_goal ...] [--json OUT.json]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from powerband.core.errors import ConfigError
from powerband.core.machine import rendering
from powerband.core.machine.device import host_facts
from powerband.loops.evaluate import wilson_interval
from powerband.recipes.libero.env.gymnasium_env import LiberoEnv
from powerband.recipes.libero.env.scripted_policy import ScriptedDemonstrator, task_script
from powerband.recipes.libero.env.tasks import BENCHMARKS, LiberoTask, benchmark_tasks


def solved(task: LiberoTask, episodes: int) -> list[int]:
    """Actions of each episode that was solved."""
    places, waypoints = task_script(task)
    env = LiberoEnv(task.benchmark, str(task.index), chunk=1, pixels=0, poses=places)
    person, found = ScriptedDemonstrator(waypoints, np.random.default_rng(0)), []
    for seed in range(episodes):
        seen, done = env.reset(seed=seed)[0], False
        person.reset()
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
    for task in [task for benchmark in given.benchmarks for task in benchmark_tasks(benchmark)]:
        try:
            steps = solved(task, given.episodes)
        except ConfigError:
            without.append(task.name)
            continue
        low, high = wilson_interval(len(steps), given.episodes)
        won = {"solved": len(steps), "of": given.episodes, "low": low, "high": high}
        rows.append({"benchmark": task.benchmark, "task": task.name, **won, "steps": steps})
        took = f"{np.mean(steps or [0]):4.0f} steps"
        print(f"{len(steps):>3} of {given.episodes}  {took}  {task.benchmark}: {task.name}", flush=True)
        if given.json:
            facts = {"host": host_facts(), "without_a_script": without}
            given.json.write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
