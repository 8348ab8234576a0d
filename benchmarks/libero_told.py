"""Does a policy do what it is told? Each task of a run, told each of the run's instructions: success of all pairs.

    python benchmarks/libero_told.py RUN [--episodes 20] [--json benchmarks/results/libero_told.json]

The tasks share one scene (libero_goal), so nothing but the words says what is wanted. A policy that listens solves a
task where it is told that task, and does not where it is told another.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from powerband.core.config import from_json
from powerband.core.device import host_facts
from powerband.recipes.libero import Config


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    config = from_json(Config, (given.run / "config.json").read_text(encoding="utf-8"))
    rows = []
    for told in config.chosen():
        words = [f"instruction={told.instruction}", f"episodes={given.episodes}", "threads=1", "--json"]
        command = [sys.executable, "-m", "powerband", "eval", str(given.run), *words]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        for row in json.loads(done.stdout):
            rows.append({**row, "told": told.name, "own": row["task"] == told.name})
            print(
                f"{row['task']:<28} told {told.instruction!r:<34} {row['success']:.0%} of {row['episodes']}", flush=True
            )
    if given.json:
        facts = {"host": host_facts(), "train": json.loads((given.run / "run.json").read_text())["command"]}
        given.json.write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
