"""`powerband profile -- python train.py` on scripts of six frameworks with injected faults, and on near-misses.

    make peers
    python benchmarks/attach/faults.py --json benchmarks/results/attach/attach_faults.json
    python benchmarks/attach/faults.py --json FILE --only "tiny batch" --again

The rows and their right labels are in `fault_rows.py`, the scripts in `fault_scripts`. ``make peers`` installs the
frameworks. Each dose and each near-miss is one run, as of the command line that a user types. A row is right if the
first cause is the label of the fault, and its near-miss is left alone if its first cause is another one.

Each row is written as it arrives, and a second start continues. ``--again`` measures the chosen rows again and keeps
the first verdict of each row as ``first``, so that the file has the counts before and after a repair.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from fault_rows import PLACE, RIGHT, ROWS, Row
from powerband.attach.processes.script_run import ScriptOptions
from powerband.attach.script_profile import profile_script
from powerband.core.machine.device import host_facts

SCRIPTS = Path(__file__).parent / "fault_scripts"
PEERS = Path(__file__).parents[2] / "build/peers"


def profiled(script: str, arguments: str, seconds: float, peers: str) -> dict[str, Any]:
    """Runs a script under ``powerband profile`` and returns its causes, its accounts and the seconds it took.

    The command runs inside of this process, which has imported torch once.
    """
    command = [sys.executable, str(SCRIPTS / f"{script}.py"), *arguments.split()]
    began = time.monotonic()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, in_folder(folder, peers):
        profile, status = profile_script(command, ScriptOptions(seconds=seconds))
        took = round(time.monotonic() - began, 1)
        if status or profile is None:
            text = (Path(folder) / "output.txt").read_text(errors="replace")[-800:]
            text = text.replace(str(SCRIPTS.parents[2]), "").replace(folder, "")
            return {"cause": "failed", "causes": [], "sentence": text, "seconds": took}
        return {**_verdict(profile.to_dict()), "seconds": took}


@contextlib.contextmanager
def in_folder(folder: str, peers: str) -> Iterator[None]:
    """Works in a folder meanwhile, with the output of this process in its file ``output.txt``."""
    before, paths = os.getcwd(), os.environ.get("PYTHONPATH")
    streams = [os.dup(1), os.dup(2)]
    sys.stdout.flush()
    with open(Path(folder) / "output.txt", "w") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [paths, peers]))
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
        os.environ.pop("PYTHONPATH")
        if paths is not None:
            os.environ["PYTHONPATH"] = paths
        for number, stream in enumerate(streams, 1):
            os.dup2(stream, number)
            os.close(stream)


def _verdict(profile: dict[str, Any]) -> dict[str, Any]:
    wall_s, ledger = profile["wall_s"], profile["ledger"]
    shares = {name: round(s / wall_s, 3) for name, s in sorted(ledger.items(), key=lambda each: -each[1])}
    return {
        "cause": profile["cause"],
        "causes": [finding["cause"] for finding in profile["findings"]],
        "claims": [round(finding["claim"], 3) for finding in profile["findings"]],
        "sentence": profile["sentence"],
        "shares": {name: share for name, share in shares.items() if share >= 0.01},
        "updates_per_s": round(profile["updates_per_s"], 2),
        "failures": len(profile["failures"]),
    }


def judged(row: Row, faulty: dict[str, Any], near_miss: dict[str, Any]) -> dict[str, Any]:
    """Returns the verdict of a row: whether its fault is found first, and whether its near-miss is left alone."""
    right = RIGHT[row.fault]
    rating = "cause" if faulty["cause"] == right else "place" if faulty["cause"] == PLACE.get(row.fault) else "no"
    return {
        "found": faulty["cause"],
        "right": rating,
        "also": right in faulty["causes"][1:],
        "near_miss_found": near_miss["cause"],
        "near_miss_left_alone": near_miss["cause"] not in (right, "failed", "too-short"),
        "faulty": faulty,
        "near_miss": near_miss,
    }


def counts(rows: list[dict[str, Any]], key: str) -> dict[str, int]:
    """Returns the counts of the first or the last verdicts.

    Args:
        rows: Rows of the result.
        key: ``first`` for the verdicts before repairs, ``last`` for those at the end.
    """
    verdicts = [row[key] for row in rows]
    return {
        "rows": len(verdicts),
        "right_cause_first": sum(each["right"] == "cause" for each in verdicts),
        "right_place_first": sum(each["right"] == "place" for each in verdicts),
        "near_misses_left_alone": sum(each["near_miss_left_alone"] for each in verdicts),
    }


def measured(row: Row, seconds: float, peers: str) -> dict[str, Any]:
    """Measures a row: its dose, then its near-miss."""
    return judged(row, *(profiled(row.script, words, seconds, peers) for words in (row.dose, row.near_miss)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", default=str(PEERS), help="folder of the frameworks")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--only", nargs="*", default=[], help="parts of the names of rows, such as 'skrl' or 'item'")
    parser.add_argument("--again", action="store_true", help="measure rows again that the file has")
    options = parser.parse_args()
    result: dict[str, Any] = json.loads(options.json.read_text()) if options.json.exists() else {"rows": []}
    found = {row["row"]: row for row in result["rows"]}
    for row in ROWS:
        chosen = not options.only or any(part in row.name for part in options.only)
        if not chosen or (row.name in found and not options.again):
            continue
        verdict = measured(row, options.seconds, options.peers)
        first = found[row.name]["first"] if row.name in found else verdict
        found[row.name] = {
            "row": row.name, "script": row.script, "dose": row.dose, "near_miss_dose": row.near_miss,
            "right_label": RIGHT[row.fault], "first": first, "last": verdict,
        }  # fmt: skip
        print(f"{row.name:<38}{verdict['right']:<7}{verdict['found']:<26}", end="")
        print(f"near-miss {'left alone' if verdict['near_miss_left_alone'] else 'WRONG':<11}", end="")
        print(f"{verdict['near_miss_found']:<26}{verdict['faulty']['seconds']:.0f} s", flush=True)
        rows = [found[each.name] for each in ROWS if each.name in found]
        result = {**result, "host": host_facts(), "seconds": options.seconds, "rows": rows}
        result["counts"] = {"before_repairs": counts(rows, "first"), "final": counts(rows, "last")}
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result.get("counts", {}), indent=2))


if __name__ == "__main__":
    main()
