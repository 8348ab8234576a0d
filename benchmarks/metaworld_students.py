"""Students of the collective network beside SAC from scratch: env steps and seconds to 90 % success, over seeds.

``scratch`` is the expert's command, ``bonus`` the student's with the published weight of the bonus, ``bonus-10`` with
ten times that for longer, ``finetune`` goes on from the collective network. The project folder holds an encoder and a
collective network: stages ``represent`` and ``distill``. Runs that are in the JSON already are not made again.

    python benchmarks/metaworld_students.py runs/metaworld --json benchmarks/results/metaworld_students.json
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from metaworld_sac import learned
from powerband.core.device import host_facts

STRONG = ("student.bonus=10", "student.hold_steps=20000", "student.fade_steps=20000")
KINDS = {
    "scratch": ("expert",),
    "bonus": ("student", "student.bonus=1", "student.hold_steps=4000", "student.fade_steps=20000"),
    "bonus-10": ("student", *STRONG),
    "finetune": ("student_finetune",),
}
SHARE = 0.9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("project", type=Path)
    parser.add_argument("--task", default="reach")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--every", type=int, default=5_000)
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--json", type=Path, required=True)
    given = parser.parse_args()
    found = {"host": host_facts(), "threads": 1, "share": SHARE, "rows": []}
    if given.json.exists():
        found = json.loads(given.json.read_text())
    done = {(row["task"], row["kind"], row["seed"]) for row in found["rows"]}
    for seed in given.seeds:
        for kind in given.kinds:
            if (given.task, kind, seed) in done:
                continue
            with tempfile.TemporaryDirectory() as own:  # what a run leaves for other stages stays out of the project
                for part in ("encoder", "collective"):
                    (Path(own) / part).symlink_to((given.project / part).resolve())
                words = [
                    *KINDS[kind], f"task={given.task}", f"run.seed={seed}", f"project={own}",
                    f"eval_interval={given.every}", f"log_interval={given.every}", f"eval_episodes={given.episodes}",
                ]  # fmt: skip
                curve = learned(words, SHARE)
            found["rows"].append({"task": given.task, "kind": kind, "seed": seed, "curve": curve})
            given.json.write_text(json.dumps(found, indent=2) + "\n")
            print(given.task, kind, seed, curve[-1:], flush=True)


if __name__ == "__main__":
    main()
