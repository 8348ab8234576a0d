"""Success rate of the scripted demonstrators on the LIBERO tasks that they cover, from random initial states.

    python benchmarks/libero_scripts.py [--episodes 10] [--benchmarks libero_goal ...] [--json OUT.json]

No frames are rendered. Tasks without a script are listed in the JSON file.
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
    """Returns the number of actions of each solved episode."""
    places, waypoints = task_script(task)
    env = LiberoEnv(task.benchmark, str(task.index), chunk=1, pixels=0, poses=places)
    demonstrator, steps = ScriptedDemonstrator(waypoints, np.random.default_rng(0)), []
    for seed in range(episodes):
        obs, terminated, truncated = env.reset(seed=seed)[0], False, False
        demonstrator.reset()
        while not (terminated or truncated):
            obs, _, terminated, truncated, info = env.step(demonstrator.act(obs)[None])
        if terminated:
            steps.append(int(info["steps"]))
    env.close()
    return steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--episodes", type=int, default=10, help="episodes per task")
    parser.add_argument("--benchmarks", nargs="+", default=list(BENCHMARKS), choices=list(BENCHMARKS))
    parser.add_argument("--json", type=Path, help="file for the results")
    options = parser.parse_args()
    rendering.prepare()
    rows, without = [], []
    for task in [task for benchmark in options.benchmarks for task in benchmark_tasks(benchmark)]:
        try:
            steps = solved(task, options.episodes)
        except ConfigError:
            without.append(task.name)
            continue
        low, high = wilson_interval(len(steps), options.episodes)
        row = {"benchmark": task.benchmark, "task": task.name, "solved": len(steps), "of": options.episodes}
        rows.append({**row, "low": low, "high": high, "steps": steps})
        mean_steps = f"{np.mean(steps or [0]):4.0f} steps"
        print(f"{len(steps):>3} of {options.episodes}  {mean_steps}  {task.benchmark}: {task.name}", flush=True)
        if options.json:
            facts = {"host": host_facts(), "without_a_script": without}
            options.json.write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
