"""TraceML and Fournex on the scripts of `faults.py`, which stay unmodified, as they do for `powerband profile`.

    make peers
    python benchmarks/attach/fault_tools.py --json benchmarks/results/attach/attach_fault_tools.json

Each tool runs a script by its own command line: ``traceml run`` and ``frx collect`` with ``frx analyze``. Users of
these tools can also add calls to their loop; `benchmarks/diagnosis/fault_peers.py` compares the tools on such a loop.
The labels that name a cause, or only its place, are those of that benchmark. The near-miss of a row runs only if the
tool has named the cause or the place. Each row is written as it arrives, and a second start continues.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "diagnosis"))

from fault_peers import PEERS, RIGHT, fournex_verdict, traceml_verdict, version
from fault_rows import ROWS, Row
from powerband.core.machine.device import host_facts

SCRIPTS = Path(__file__).parent / "fault_scripts"
VERDICTS = {"TraceML": traceml_verdict, "Fournex": fournex_verdict}


def verdict(tool: str, row: Row, dose: str, seconds: float, peers: Path) -> dict[str, Any]:
    """Runs a script under a tool and returns its labels and its words; without labels if the tool or its run failed."""
    script = [str(SCRIPTS / f"{row.script}.py"), *dose.split(), f"--seconds={seconds}"]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        try:
            return VERDICTS[tool](script, peers, folder)
        except (RuntimeError, OSError, KeyError, ValueError) as error:
            text = f"{type(error).__name__}: {error}".replace(folder, "").replace(str(SCRIPTS.parents[2]), "")
            return {"labels": [], "words": text[-600:]}


def judged(tool: str, row: Row, seconds: float, peers: Path) -> dict[str, Any]:
    """Returns the rating of a tool in a row: ``cause``, ``place``, ``no`` or ``no such label``."""
    right = RIGHT[row.fault][tool]
    found = verdict(tool, row, row.dose, seconds, peers)
    first = found["labels"][0] if found["labels"] else ""
    result = {"right": right.get(first, "no") if right else "no such label", "labels": found["labels"]}
    result["says"] = found["words"]
    if result["right"] in ("cause", "place"):
        near_miss = verdict(tool, row, row.near_miss, seconds, peers)
        result["near_miss_labels"] = near_miss["labels"]
        result["tells_apart"] = near_miss["labels"][:1] != [first]
    return result


def counts(rows: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """Returns the number of rows for each tool and rating."""
    result = {}
    for tool in VERDICTS:
        ratings = [row[tool]["right"] for row in rows]
        result[tool] = {rating: ratings.count(rating) for rating in sorted(set(ratings))}
        result[tool]["told apart from the near-miss"] = sum(row[tool].get("tells_apart", False) for row in rows)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, default=PEERS, help="folder of the frameworks and the tools")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--only", nargs="*", default=[], help="parts of the names of rows")
    options = parser.parse_args()
    rows = json.loads(options.json.read_text())["rows"] if options.json.exists() else []
    facts = {
        "host": {**host_facts(), "cores_of_this_run": len(os.sched_getaffinity(0))},
        "versions": {"TraceML": version("traceml-ai", options.peers), "Fournex": version("fournex", options.peers)},
        "seconds": options.seconds,
    }
    for row in ROWS:
        chosen = not options.only or any(part in row.name for part in options.only)
        if not chosen or row.name in (each["row"] for each in rows):
            continue
        tools = {tool: judged(tool, row, options.seconds, options.peers.resolve()) for tool in VERDICTS}
        rows.append({"row": row.name, **tools})
        for tool, found in tools.items():
            print(f"{row.name:<38}{tool:<9}{found['right']:<15}{found['says'][:120]}", flush=True)
        options.json.write_text(json.dumps({**facts, "counts": counts(rows), "rows": rows}, indent=2) + "\n")
    print(json.dumps(counts(rows), indent=2))


if __name__ == "__main__":
    main()
