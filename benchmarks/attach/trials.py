"""`powerband profile --try` against an exhaustive grid of the same changes, on four scripts.

    python benchmarks/attach/trials.py
        --json benchmarks/results/attach/attach_try.json [--only loader_bound] [--seconds 4]

The scripts are in `trial_scripts`: a loader without workers, 16 threads on fewer cores, vector environments that are
stepped one after another, and a loop that writes all the time. For each script:

- ``powerband profile --try`` runs with its defaults and chooses the change with the largest gain;
- the grid tries every change of `GRID` that the script can have, plausible or not, with the same interleaved runs.

Asked: the rate with the chosen change is at least 90 % of the best rate of the grid on all four scripts, and the
predicted rate is within 15 % of the realised one in 80 % of the tries. Both rates are multiples of the unchanged rate
of their own runs. A machine with other work gives wide intervals, which the file contains.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from powerband.attach.processes.script_run import ScriptOptions
from powerband.attach.trial.change import Change, variables_of_threads
from powerband.attach.trial.trials import Trials
from powerband.attach.trial.tried import TriedChanges
from powerband.attach.trial.work import Work
from powerband.core.machine.device import host_facts

SCRIPTS = Path(__file__).parent / "trial_scripts"
NAMES = ("loader_bound", "oversubscribed", "sync_envs", "output_bound")
NEAR_BEST, NEAR_PREDICTION, SHARE = 0.9, 0.15, 0.8


def grid(name: str) -> list[Change]:
    """Returns all changes that a script can have."""

    def change(what: str, value: Any, **fields: Any) -> Change:
        return Change(what, value, f"{what}={value}", 1.0, **fields)

    cores = len(os.sched_getaffinity(0))
    found = [change("threads", n, variables=variables_of_threads(n)) for n in sorted({1, max(1, cores // 2), cores})]
    found.append(change("optimizer", "foreach"))
    if name == "loader_bound":
        found += [change("num_workers", n) for n in (1, 2, 4, 8)]
    if name == "sync_envs":
        found.append(change("vector_env", "async"))
    if name == "output_bound":
        found += [change("log_every", 10), change("save_every", 10)]
    return found


def tried_by_command(name: str, folder: Path, seconds: float) -> dict[str, Any]:
    """Runs ``powerband profile --try`` on a script and returns its JSON object."""
    command = [sys.executable, "-m", "powerband", "profile", "seconds=15", "--try", f"try_seconds={seconds:g}"]
    command += ["try_budget=1800", "--json=profile.json", "--", sys.executable, f"{name}.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=3600)
    if done.returncode or not (folder / "profile.json").exists():
        raise RuntimeError(f"status {done.returncode}: {(done.stderr or done.stdout)[-2000:]}")
    profile = json.loads((folder / "profile.json").read_text())
    (folder / "profile.json").unlink()
    return profile


def tried_by_grid(name: str, folder: Path, profile: dict[str, Any], seconds: float) -> TriedChanges:
    """Tries all changes of the grid, over the counts that the unchanged rate of the command gives."""
    rate = sum(profile["unchanged_rates"]) / len(profile["unchanged_rates"]) if profile["unchanged_rates"] else 0
    rate = rate or max(profile["updates_per_s"], 1.0)
    first = max(10, int(2 * rate))
    work = Work(profile["tried_unit"], first, first + max(5, int(seconds * rate)), seconds)
    options = ScriptOptions(try_seconds=seconds, try_budget=7200)
    trials = Trials([sys.executable, f"{name}.py"], folder, work, profile["start_up_s"], 1.0, options)
    return trials.run(grid(name), lambda text, share: print(f"{share:>4.0%}  {name}: {text}", flush=True))


def measure(name: str, seconds: float) -> dict[str, Any]:
    """Measures one script and returns its row."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "work"
        folder.mkdir()
        shutil.copy2(SCRIPTS / f"{name}.py", folder)
        profile = tried_by_command(name, folder, seconds)
        every = tried_by_grid(name, folder, profile, seconds).to_dict()["tried"]
    known = {(row["name"], row["value"]): row for row in every if row["realised"] is not None}
    chosen = next((row for row in profile["tried"] if row["verdict"] == "gain"), None)
    best = max([0.0, *(row["realised"] for row in known.values())])
    # The grid's own measurement of the chosen change, so that both rates come from the same runs.
    own = known.get((chosen["name"], chosen["value"])) if chosen else None
    reached = own["realised"] if own else chosen["realised"] if chosen else 0.0
    return {
        "script": name,
        "chosen": f"{chosen['name']}={chosen['value']}" if chosen else "none",
        "rate_of_choice": 1 + reached,
        "best_rate_of_grid": 1 + best,
        "choice_by_best": (1 + reached) / (1 + best),
        "tried": profile["tried"],
        "notes": profile["tried_notes"],
        "grid": every,
    }


def score(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the two figures that are asked for."""
    tries = [row for each in rows for row in each["tried"] if row["predicted"] is not None and row["interval"]]
    errors = [(1 + row["predicted"]) / (1 + row["realised"]) - 1 for row in tries]
    near = sum(abs(error) <= NEAR_PREDICTION for error in errors)
    return {
        "choices_near_best": sum(row["choice_by_best"] >= NEAR_BEST for row in rows),
        "scripts": len(rows),
        "predictions_near": near,
        "predictions": len(errors),
        "reached": all(row["choice_by_best"] >= NEAR_BEST for row in rows) and near >= SHARE * len(errors),
    }


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=list(NAMES), choices=NAMES, help="scripts")
    parser.add_argument("--seconds", type=float, default=4.0, help="seconds of each run after its warm-up")
    parser.add_argument("--json", default="", help="file for the results")
    arguments = parser.parse_args()
    load = os.getloadavg()
    rows = []
    for name in arguments.only:
        rows.append(measure(name, arguments.seconds))
        row = rows[-1]
        print(json.dumps({key: row[key] for key in row if key not in ("tried", "grid")}), flush=True)
        if arguments.json:
            command = "python benchmarks/attach/trials.py " + " ".join(sys.argv[1:])
            loads = {"before": load, "after": os.getloadavg()}
            report = {"command": command, "host": host_facts(), "load": loads, "score": score(rows), "scripts": rows}
            Path(arguments.json).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(score(rows)))


if __name__ == "__main__":
    main()
