"""Success rate of a libero policy with the task's own instruction, compared with instructions of other tasks.

    python benchmarks/learning/libero_instructions.py RUN ... [--episodes 20] [--others 1] [--json FILE]

Each task is played with its own instruction and with those of the next tasks of the run, one by default. A policy that
follows the instruction solves a task with its own one and fails with another one, at least if the tasks share a scene,
as those of libero_goal. The runs differ only in their seeds. Runs that the JSON file already contains, for example from
other machines, stay in it and count.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from powerband.core.config import from_json
from powerband.core.machine.device import host_facts
from powerband.recipes.libero.config import OLD_NAMES, Config
from scores import over_seeds


def evaluate_pairs(run: Path, episodes: int, others: int) -> list[dict]:
    """Returns one row of ``powerband eval`` per task and instruction: its own one and those of the `others` next."""
    config = from_json(Config, (run / "config.json").read_text(encoding="utf-8"), old_names=OLD_NAMES)
    tasks, rows = config.selected_tasks(), []
    for index, task in enumerate(tasks):
        for shift in range(min(others + 1, len(tasks))):
            named = tasks[(index + shift) % len(tasks)]
            options = [f"tasks={task.name}", f"instruction={named.instruction}", f"episodes={episodes}"]
            command = [sys.executable, "-m", "powerband", "eval", str(run), *options, "threads=1", "--json"]
            completed = subprocess.run(command, capture_output=True, text=True, check=True)
            row = json.loads(completed.stdout)[0]
            rows.append({**row, "instruction_of": named.name, "own": shift == 0})
            print(f"{task.name:<28} {named.instruction!r:<34} {row['success']:.0%} of {episodes}", flush=True)
    return rows


def success(runs: list[dict]) -> dict[str, dict]:
    """Returns success rates with own and other instructions: means over tasks per run, with intervals over runs."""
    result = {}
    for name, own in (("own instruction", True), ("other instruction", False)):
        shares = [[row["success"] for row in run["rows"] if row["own"] is own] for run in runs]
        by_seed = [sum(share) / len(share) for share in shares]
        result[name] = {**over_seeds(by_seed), "by_seed": by_seed}
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("runs", type=Path, nargs="+", help="run folders")
    parser.add_argument("--episodes", type=int, default=20, help="episodes per task and instruction")
    parser.add_argument("--others", type=int, default=1, help="instructions of other tasks per task")
    parser.add_argument("--json", type=Path, help="file for the results")
    options = parser.parse_args()
    results = json.loads(options.json.read_text())["runs"] if options.json and options.json.exists() else []
    for run in options.runs:
        train = json.loads((run / "run.json").read_text())["command"]
        rows = evaluate_pairs(run, options.episodes, options.others)
        results = [old for old in results if old["train"] != train]
        results.append({"train": train, "host": host_facts(), "rows": rows})
    for name, rate in success(results).items():
        interval = f" [{rate['low']:.1%}, {rate['high']:.1%}]" if "low" in rate else ""
        print(f"{name}: {rate['mean']:.1%}{interval} over {rate['seeds']} runs")
    if options.json:
        options.json.write_text(json.dumps({"success": success(results), "runs": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
