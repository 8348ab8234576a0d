"""Random mutations of what a user gives to powerband: checkpoint folders and command lines.

A mutated checkpoint folder must load exactly what was saved, an older checkpoint, or be refused; a mutated command line
must be accepted within the declared ranges, or be refused in less than 600 characters that name an option. Both use the
generators and checks of the tests.

    python benchmarks/reliability/mutations.py --folders 10000 --command-lines 5000 \
        --json benchmarks/results/reliability/mutations.json
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import io
import json
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

from powerband.core.machine.device import host_facts

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

import runs  # noqa: E402, of the tests
from cli.mutations import command_lines  # noqa: E402
from cli.test_mutated_command_lines import check_one  # noqa: E402
from core.run.checkpoints.checkpoint_mutations import CheckpointMutations  # noqa: E402

WORDS = ("env_steps=80", "save_interval=20", "keep_checkpoints=3", "replay_size=100")
PART, STUCK_S = 250, 60.0
"""Mutations between two lines of progress, and seconds after which one mutation counts as stuck."""


def mutate_folders(numbers: range, seed: int, folder: Path) -> dict[str, Any]:
    """Mutates copies of a run with three checkpoints, once for each number."""
    with contextlib.redirect_stdout(io.StringIO()):
        if not (folder / "run").exists():
            runs.train("ddpg", folder / "run", *WORDS, "seed=1")
            runs.train("ddpg", folder / "other", *WORDS, "seed=2")
    place = folder / f"mutations-{numbers.start}"
    mutations, problems = CheckpointMutations(folder / "run", folder / "other", place, seed), []
    for number in numbers:
        faulthandler.dump_traceback_later(STUCK_S, exit=True)
        problems += mutations.check(number)
        faulthandler.cancel_dump_traceback_later()
    growth = mutations.largest_growth / 2**20
    return {"counts": dict(mutations.counts), "largest growth of memory in MiB": growth, "problems": problems}


def mutate_command_lines(numbers: range, seed: int, folder: Path) -> dict[str, Any]:
    """Reads one mutated command line for each number."""
    counts: Counter[str] = Counter()
    problems = []
    for number, (recipe, arguments) in enumerate(command_lines(seed, numbers.stop)):
        if number not in numbers:
            continue
        try:
            counts[check_one(recipe, arguments)] += 1
        except Exception:
            problems.append(f"{number}: {recipe} {str(arguments)[:300]}: {traceback.format_exc(limit=3)[-600:]}")
    return {"counts": dict(counts), "problems": problems}


def merged(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Joins the results of two ranges of numbers."""
    if not first:
        return second
    growths = [each.get("largest growth of memory in MiB", 0.0) for each in (first, second)]
    return {
        "counts": dict(Counter(first["counts"]) + Counter(second["counts"])),
        "largest growth of memory in MiB": max(growths),
        "problems": first["problems"] + second["problems"],
    }


def main() -> int:
    """Returns the exit status: 1 if a criterion was missed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--folders", type=int, default=10_000, help="mutated checkpoint folders")
    parser.add_argument("--command-lines", type=int, default=5_000, help="mutated command lines")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="file for the results, which a second start continues")
    options = parser.parse_args()
    results: dict[str, Any] = {}
    if options.json and options.json.exists():
        results = json.loads(options.json.read_text())
    results |= {"host": host_facts(), "arguments": sys.argv[1:]}
    with tempfile.TemporaryDirectory(prefix="powerband-mutations-") as folder:
        for name, measure, count in (
            ("command lines", mutate_command_lines, options.command_lines),
            ("folders", mutate_folders, options.folders),
        ):
            began, first = time.monotonic(), results.get(name, {}).get("mutated", 0)
            for start in range(first, count, PART):
                numbers = range(start, min(start + PART, count))
                found = merged(results.get(name, {}), measure(numbers, options.seed, Path(folder)))
                results[name] = {"mutated": numbers.stop, **found}
                left_s = (time.monotonic() - began) / (numbers.stop - first) * (count - numbers.stop)
                print(
                    f"{name}: {numbers.stop} of {count}, {len(found['problems'])} problems, {left_s:.0f} s left",
                    flush=True,
                )
                if options.json:
                    options.json.write_text(json.dumps(results) + "\n")
    return int(any(results.get(name, {}).get("problems") for name in ("command lines", "folders")))


if __name__ == "__main__":
    sys.exit(main())
