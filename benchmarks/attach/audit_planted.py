"""Audit of planted options: six scripts of different parsers with 30 options that work and 30 without effect.

    make peers
    python benchmarks/attach/audit_planted.py [--seed 1] [--json FILE.json] [--parsers argparse,yaml]

No option that works may be called dead (``no-effect`` or ``never-read``). At least 27 of the 30 others must be. All
options must be found, and no script may fail: the options of a script that fails count as missing. The exit status is 1
if any of this does not hold.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path

from planted_scripts import PARSERS, PlantedScript, draw_scripts
from powerband.attach.audit.audit import Audit, ScriptFailed
from powerband.attach.audit.options import AuditOptions
from powerband.core.errors import ConfigError
from powerband.core.machine.device import host_facts

DEAD = ("no-effect", "never-read")
PEERS = Path(__file__).parents[2] / "build/peers"
LEAST_FOUND = 0.9
"""Share of the options without effect that must be called dead."""


def audit_script(script: PlantedScript, folder: Path, window: float) -> dict:
    """Audits one script. Returns its verdicts, with the truth next to each."""
    words = script.write(folder)
    began = time.monotonic()
    options = AuditOptions(window=window)
    everything = [*script.works, *script.dead]
    try:
        with contextlib.chdir(folder):  # as a user who starts the command there
            result = Audit([sys.executable, *words], folder, options, False, lambda text, share: None).run()
    except ConfigError as error:
        return {"parser": script.parser, "failed": str(error), "missing": everything, "options": []}
    if isinstance(result, ScriptFailed):
        return {"parser": script.parser, "failed": result.console[-2000:], "missing": everything, "options": []}
    rows = []
    for verdict in result.options:
        truth = script.dead.get(verdict.option, "works")
        called_dead = verdict.verdict in DEAD
        right = called_dead != (truth == "works") and (called_dead or verdict.verdict == "works")
        row = {"option": verdict.option, "truth": truth, "verdict": verdict.verdict, "evidence": verdict.evidence}
        rows.append({**row, "tried": verdict.tried, "right": right})
        print(
            f"{'' if right else 'WRONG':<6}{script.parser:<10}{verdict.option:<16}{truth:<20}{verdict.evidence}",
            flush=True,
        )
    missing = [name for name in everything if name not in [row["option"] for row in rows]]
    seconds = round(time.monotonic() - began, 1)
    return {"parser": script.parser, "seconds": seconds, "runs": result.runs, "missing": missing, "options": rows}


def score_of(scripts: list[PlantedScript], results: list[dict]) -> dict:
    """Counts right and wrong verdicts over all planted options; a missing one is a wrong one.

    Args:
        scripts: The scripts.
        results: What `audit_script` has returned for each.

    Returns:
        The counts, and ``passed``: whether the criteria of this benchmark hold.
    """
    rows = [row for result in results for row in result["options"]]
    dead = [row for row in rows if row["truth"] != "works"]
    works = [row for row in rows if row["truth"] == "works"]
    score = {
        "dead": sum(len(script.dead) for script in scripts),
        "dead_found": sum(row["verdict"] in DEAD for row in dead),
        "working": sum(len(script.works) for script in scripts),
        "working_called_dead": sum(row["verdict"] in DEAD for row in works),
        "working_found": sum(row["verdict"] == "works" for row in works),
        "missing": sum(len(result["missing"]) for result in results),
        "failed_scripts": sum("failed" in result for result in results),
    }
    wrong = score["working_called_dead"] or score["missing"] or score["failed_scripts"]
    return {**score, "passed": not wrong and score["dead_found"] >= LEAST_FOUND * score["dead"]}


def main() -> int:
    """Runs the benchmark. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="seed of the draw of scripts and options")
    parser.add_argument("--working", type=int, default=5, help="options of a script that have an effect")
    parser.add_argument("--window", type=float, default=3.0, help="seconds after the first optimiser step")
    parser.add_argument("--parsers", default=",".join(PARSERS), help="parsers, separated by commas")
    parser.add_argument("--peers", default=str(PEERS), help="folder of the parsers' packages")
    parser.add_argument("--json", default="", help="file for the results")
    arguments = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), arguments.peers]))
    target = Path(arguments.json).absolute() if arguments.json else None
    chosen = arguments.parsers.split(",")
    with tempfile.TemporaryDirectory() as place:
        scripts = [script for script in draw_scripts(arguments.seed, arguments.working) if script.parser in chosen]
        results = [audit_script(script, Path(place) / script.parser, arguments.window) for script in scripts]
    for result in results:
        if "failed" in result:
            print(f"FAILED {result['parser']}: {result['failed']}")
    score = score_of(scripts, results)
    print(score)
    if target:
        command = "python benchmarks/attach/audit_planted.py " + " ".join(sys.argv[1:])
        report = {"command": command, "host": host_facts(), "seed": arguments.seed, "score": score, "scripts": results}
        target.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 0 if score["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
