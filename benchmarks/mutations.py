"""Random mutations of what a user gives to powerband: checkpoint folders and command lines.

A mutated checkpoint folder must load exactly what was saved, an older checkpoint, or be refused; a mutated command line
must be accepted within the declared ranges, or be refused in less than 600 characters that name an option. Both use the
generators and checks of the tests.

    python benchmarks/mutations.py --folders 10000 --command-lines 5000 --json benchmarks/results/mutations.json
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

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import runs  # noqa: E402, of the tests
from cli.test_mutated_command_lines import check_one  # noqa: E402
from cli.mutations import command_lines  # noqa: E402
from core.run.checkpoint_mutations import CheckpointMutations  # noqa: E402

WORDS = ("env_steps=80", "save_interval=20", "keep_checkpoints=3", "replay_size=100")
PRINTED_S, STUCK_S = 10.0, 60.0
"""Seconds between two lines of progress, and after which one mutation counts as stuck."""


def mutate_folders(count: int, seed: int, folder: Path) -> dict[str, Any]:
    """Mutates copies of a run with three checkpoints `count` times."""
    with contextlib.redirect_stdout(io.StringIO()):
        run = runs.train("ddpg", folder / "run", *WORDS, "seed=1")
        other = runs.train("ddpg", folder / "other", *WORDS, "seed=2")
    mutations, problems = CheckpointMutations(run, other, folder / "mutations", seed), []
    for number in progress("folders", count):
        problems += mutations.check(number)
    return {
        "mutated folders": count,
        "counts": dict(mutations.counts),
        "largest growth of memory in MiB": mutations.largest_growth / 2**20,
        "problems": problems,
    }


def mutate_command_lines(count: int, seed: int) -> dict[str, Any]:
    """Reads `count` mutated command lines."""
    counts: Counter[str] = Counter()
    problems = []
    lines = command_lines(seed, count)
    for number in progress("command lines", count):
        recipe, arguments = next(lines)
        try:
            counts[check_one(recipe, arguments)] += 1
        except Exception:
            problems.append(f"{number}: {recipe} {str(arguments)[:300]}: {traceback.format_exc(limit=3)[-600:]}")
    return {"mutated command lines": count, "counts": dict(counts), "problems": problems}


def progress(name: str, count: int) -> Any:
    """Yields the numbers below `count`, and prints how far they are."""
    began = printed = time.monotonic()
    for number in range(count):
        faulthandler.dump_traceback_later(STUCK_S, exit=True)
        yield number
        faulthandler.cancel_dump_traceback_later()
        now = time.monotonic()
        if now - printed > PRINTED_S:
            printed, left_s = now, (now - began) / (number + 1) * (count - number - 1)
            print(f"{name}: {number + 1} of {count}, {left_s:.0f} s left", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--folders", type=int, default=10_000, help="mutated checkpoint folders")
    parser.add_argument("--command-lines", type=int, default=5_000, help="mutated command lines")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="file for the results")
    options = parser.parse_args()
    results: dict[str, Any] = {"host": host_facts(), "arguments": sys.argv[1:]}
    with tempfile.TemporaryDirectory(prefix="powerband-mutations-") as folder:
        for name, measure in (
            ("folders", lambda: mutate_folders(options.folders, options.seed, Path(folder))),
            ("command_lines", lambda: mutate_command_lines(options.command_lines, options.seed)),
        ):
            began = time.monotonic()
            results[name] = {**measure(), "seconds": time.monotonic() - began}
            print(json.dumps(results[name], indent=1), flush=True)
            if options.json:
                options.json.write_text(json.dumps(results) + "\n")


if __name__ == "__main__":
    main()
