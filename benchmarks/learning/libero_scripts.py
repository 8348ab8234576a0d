"""Success rate of the scripted demonstrators on LIBERO tasks, from LIBERO's own initial states or from drawn ones.

    python benchmarks/learning/libero_scripts.py [--episodes 10] [--benchmarks libero_goal ...] [--tasks 2 ...] \
        [--json OUT.json]

No frames are rendered. Tasks without a script are listed in the JSON file. With an existing JSON file, only the rows of
the given tasks are measured again, and with --missing only those that it lacks. So a table can be completed in parts.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np

from powerband.core.errors import ConfigError
from powerband.core.machine import rendering
from powerband.core.machine.device import host_facts
from powerband.loops.evaluate import wilson_interval
from powerband.recipes.libero.env.gymnasium_env import LiberoEnv
from powerband.recipes.libero.env.scripted_policy import ScriptedDemonstrator, task_script
from powerband.recipes.libero.env.tasks import benchmark_tasks

SUITES = ("libero_spatial", "libero_object", "libero_goal", "libero_10")


def measured(benchmark: str, index: int, episodes: int, starts: str, max_steps: int) -> dict[str, Any]:
    """Returns the row of a task: solved episodes with interval and the numbers of actions of the solved ones.

    Raises:
        ConfigError: The task has no script.
    """
    task = benchmark_tasks(benchmark)[index]
    places, script = task_script(task)
    rendering.prepare()
    env = LiberoEnv(benchmark, str(index), chunk=1, pixels=0, poses=places, starts=starts, max_steps=max_steps)
    demonstrator, steps = ScriptedDemonstrator(script, np.random.default_rng(0)), []
    for seed in range(episodes):
        obs, terminated, truncated = env.reset(seed=seed)[0], False, False
        demonstrator.reset()
        while not (terminated or truncated):
            obs, _, terminated, truncated, info = env.step(demonstrator.act(obs)[None])
        if terminated:
            steps.append(int(info["steps"]))
    env.close()
    low, high = wilson_interval(len(steps), episodes)
    row = {"benchmark": benchmark, "index": index, "task": task.name, "starts": starts, "max_steps": max_steps}
    return {**row, "solved": len(steps), "of": episodes, "low": low, "high": high, "steps": steps}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--episodes", type=int, default=10, help="episodes per task")
    parser.add_argument("--benchmarks", nargs="+", default=list(SUITES))
    parser.add_argument("--tasks", nargs="+", type=int, help="numbers of the tasks; default: all of each benchmark")
    parser.add_argument("--missing", action="store_true", help="only tasks without a row in the JSON file")
    parser.add_argument("--starts", choices=("published", "drawn"), default="published", help="initial states")
    parser.add_argument("--max-steps", type=int, default=600, help="largest number of actions of an episode")
    parser.add_argument("--processes", type=int, default=2, help="tasks that are measured at the same time")
    parser.add_argument("--json", type=Path, help="file for the results")
    options = parser.parse_args()
    tasks = [
        (name, task.index)
        for name in options.benchmarks
        for task in benchmark_tasks(name)
        if options.tasks is None or task.index in options.tasks
    ]
    stored = json.loads(options.json.read_text()) if options.json and options.json.exists() else {}
    rows = {(row["benchmark"], row["index"]): row for row in stored.get("rows", ()) if "index" in row}
    tasks = [task for task in tasks if not (options.missing and task in rows)]
    without = set(stored.get("without_a_script", ())) if rows else set()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.processes, context) as pool:
        waiting = {
            pool.submit(measured, *task, options.episodes, options.starts, options.max_steps): task for task in tasks
        }
        for future in as_completed(waiting):
            key = waiting[future]
            try:
                rows[key] = row = future.result()
            except ConfigError:
                without.add(benchmark_tasks(key[0])[key[1]].name)
                continue
            mean_steps = f"{np.mean(row['steps'] or [0]):4.0f} steps"
            print(f"{row['solved']:>3} of {row['of']}  {mean_steps}  {key[0]} {key[1]}: {row['task']}", flush=True)
            if options.json:
                table = sorted(rows.values(), key=lambda row: (row["benchmark"], row["index"]))
                facts = {"host": host_facts(), "without_a_script": sorted(without), "rows": table}
                options.json.write_text(json.dumps(facts, indent=1) + "\n")
    solved = sum(row["solved"] >= 0.8 * row["of"] for row in rows.values())
    print(f"{solved} of {len(rows)} tasks solved from 8 of 10 initial states or more")


if __name__ == "__main__":
    main()
