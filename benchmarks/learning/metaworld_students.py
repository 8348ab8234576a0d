"""Environment steps and seconds to 90 % success of Meta-World students, compared with SAC from scratch.

A run of a kind ends when an evaluation reaches 90 % success. The kinds are:

- ``scratch``: stage expert, the baseline;
- ``bonus``: stage student with the published weight of the bonus;
- ``bonus-10``: stage student with ten times that weight for more steps;
- ``finetune``: stage student_finetune.

The project folder must contain an encoder and a collective network, the outputs of the stages ``represent`` and
``distill``. Runs that the JSON file already contains are not repeated.

    python benchmarks/learning/metaworld_students.py runs/metaworld
        --json benchmarks/results/learning/metaworld_students.json
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from metaworld_sac import powerband_curve
from powerband.core.machine.device import host_facts

STRONG_BONUS = ("student.bonus=10", "student.hold_steps=20000", "student.fade_steps=20000")
KINDS = {
    "scratch": ("expert",),
    "bonus": ("student", "student.bonus=1", "student.hold_steps=4000", "student.fade_steps=20000"),
    "bonus-10": ("student", *STRONG_BONUS),
    "finetune": ("student_finetune",),
}
SUCCESS_RATE = 0.9
"""A run ends at this success rate."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("project", type=Path, help="folder with an encoder and a collective network")
    parser.add_argument("--task", default="reach")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--every", type=int, default=5_000, help="environment steps between evaluations")
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    result: dict[str, Any] = {"host": host_facts(), "threads": 1, "share": SUCCESS_RATE, "rows": []}
    if options.json.exists():
        result = json.loads(options.json.read_text())
    done = {(row["task"], row["kind"], row["seed"]) for row in result["rows"]}
    for seed in options.seeds:
        for kind in options.kinds:
            if (options.task, kind, seed) in done:
                continue
            with tempfile.TemporaryDirectory() as folder:  # the runs must not write into the project
                for part in ("encoder", "collective"):
                    (Path(folder) / part).symlink_to((options.project / part).resolve())
                arguments = [
                    *KINDS[kind], f"task={options.task}", f"run.seed={seed}", f"project={folder}",
                    f"eval_interval={options.every}", f"log_interval={options.every}",
                    f"eval_episodes={options.episodes}",
                ]  # fmt: skip
                curve = powerband_curve(arguments, SUCCESS_RATE)
            result["rows"].append({"task": options.task, "kind": kind, "seed": seed, "curve": curve})
            options.json.write_text(json.dumps(result, indent=2) + "\n")
            print(options.task, kind, seed, curve[-1:], flush=True)


if __name__ == "__main__":
    main()
