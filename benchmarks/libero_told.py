"""Does a policy do what it is told? Each task of a run, told each of the run's instructions: success of all pairs.

    python benchmarks/libero_told.py RUN ... [--episodes 20] [--json benchmarks/results/libero_told.json]

The tasks share one scene (libero_goal), so nothing but the words says what is wanted. A policy that listens solves a
task where it is told that task, and does not where it is told another. Runs are seeds of one training; those that the
file holds already, of other machines say, stay in it and count.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from learning import over_seeds
from powerband.core.config import from_json
from powerband.core.machine.device import host_facts
from powerband.recipes.libero.config import Config


def pairs(run: Path, episodes: int) -> list[dict]:
    """A row of `powerband eval` for each task and each instruction, with what was told."""
    config, rows = from_json(Config, (run / "config.json").read_text(encoding="utf-8")), []
    for told in config.selected_tasks():
        words = [f"instruction={told.instruction}", f"episodes={episodes}", "threads=1", "--json"]
        command = [sys.executable, "-m", "powerband", "eval", str(run), *words]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        for row in json.loads(done.stdout):
            rows.append({**row, "told": told.name, "own": row["task"] == told.name})
            print(f"{row['task']:<28} told {told.instruction!r:<34} {row['success']:.0%} of {episodes}", flush=True)
    return rows


def success(runs: list[dict]) -> dict[str, dict]:
    """Told its own task and told another: the share over tasks by run, its mean and interval over runs."""
    found = {}
    for name, own in (("told its own", True), ("told another", False)):
        shares = [[row["success"] for row in run["rows"] if row["own"] is own] for run in runs]
        by_seed = [sum(share) / len(share) for share in shares]
        found[name] = {**over_seeds(by_seed), "by_seed": by_seed}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    kept = json.loads(given.json.read_text())["runs"] if given.json and given.json.exists() else []
    for run in given.runs:
        train = json.loads((run / "run.json").read_text())["command"]
        rows = pairs(run, given.episodes)
        kept = [old for old in kept if old["train"] != train] + [{"train": train, "host": host_facts(), "rows": rows}]
    for name, found in success(kept).items():
        interval = f" [{found['low']:.1%}, {found['high']:.1%}]" if "low" in found else ""
        print(f"{name}: {found['mean']:.1%}{interval} over {found['seeds']} runs")
    if given.json:
        given.json.write_text(json.dumps({"success": success(kept), "runs": kept}, indent=1) + "\n")


if __name__ == "__main__":
    main()
