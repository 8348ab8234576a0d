"""Audit of planted options: six scripts of different parsers with 30 options that work and 30 without effect.

    python benchmarks/audit_planted.py [--seed 1] [--json FILE.json] [--parsers argparse,yaml]

No option that works may be called dead (``no-effect`` or ``never-read``). At least 27 of the 30 others must be.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from pathlib import Path

from planted_scripts import PARSERS, PlantedScript, draw_scripts
from powerband.attach.audit.audit import Audit, ScriptFailed
from powerband.attach.audit.options import AuditOptions

DEAD = ("no-effect", "never-read")


def audit_script(script: PlantedScript, folder: Path, window: float) -> dict:
    """Audits one script. Returns its verdicts, with the truth next to each."""
    words = script.write(folder)
    os.chdir(folder)
    began = time.monotonic()
    options = AuditOptions(window=window)
    result = Audit([sys.executable, *words], folder, options, False, lambda text, share: None).run()
    if isinstance(result, ScriptFailed):
        return {"parser": script.parser, "failed": result.console[-2000:]}
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
    missing = [name for name in {**script.works, **script.dead} if name not in [row["option"] for row in rows]]
    seconds = round(time.monotonic() - began, 1)
    return {"parser": script.parser, "seconds": seconds, "runs": result.runs, "missing": missing, "options": rows}


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="seed of the draw of scripts and options")
    parser.add_argument("--window", type=float, default=3.0, help="seconds after the first optimiser step")
    parser.add_argument("--parsers", default=",".join(PARSERS), help="parsers, separated by commas")
    parser.add_argument("--json", default="", help="file for the results")
    arguments = parser.parse_args()
    target = Path(arguments.json).absolute() if arguments.json else None
    chosen = arguments.parsers.split(",")
    with tempfile.TemporaryDirectory() as place:
        scripts = [script for script in draw_scripts(arguments.seed) if script.parser in chosen]
        results = [audit_script(script, Path(place) / script.parser, arguments.window) for script in scripts]
    rows = [row for result in results for row in result.get("options", [])]
    dead = [row for row in rows if row["truth"] != "works"]
    works = [row for row in rows if row["truth"] == "works"]
    score = {
        "dead": len(dead),
        "dead_found": sum(row["verdict"] in DEAD for row in dead),
        "working": len(works),
        "working_called_dead": sum(row["verdict"] in DEAD for row in works),
        "working_found": sum(row["verdict"] == "works" for row in works),
    }
    print(score)
    if target:
        machine = {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count()}
        command = "python benchmarks/audit_planted.py " + " ".join(sys.argv[1:])
        report = {"command": command, "machine": machine, "seed": arguments.seed, "score": score, "scripts": results}
        target.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
