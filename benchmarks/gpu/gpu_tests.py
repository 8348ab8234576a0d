"""Runs the tests of `tests/gpu` and writes the outcome of each test as soon as it is known.

    python benchmarks/gpu/gpu_tests.py [--processes 14] [--json benchmarks/results/gpu/gpu_tests.json]

The tests run in several processes: a CUDA error makes all later calls of its process fail, and the processes compile
their kernels at the same time. Tests that share compiled functions run in one process. A run that is killed leaves the
outcomes so far and the names of the tests that were running. The exit status is 1 if a test failed or a process died.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests" / "gpu"
TEST_TIMEOUT_S = 150
"""Seconds per test, if the package pytest-timeout is installed. Several files compile kernels at the same time."""
MESSAGE_CHARACTERS = 2_000
"""Last characters of a failure that are stored."""
POLL_S = 0.2
OUTCOMES = ("passed", "failed", "skipped")


class Recorder:
    """Plugin of pytest that writes the running test and the outcomes so far to a file."""

    def __init__(self, path: Path) -> None:
        self.path, self.tests = path, []
        self.write("")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Records the test that starts."""
        self.write(nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Records a test at its call, or at a set-up or tear-down that did not pass."""
        if report.when == "call" or report.outcome != "passed":
            self.add(report, report.duration)

    def pytest_collectreport(self, report: Any) -> None:
        """Records a file that cannot be imported, or that skips all of its tests."""
        if report.outcome != "passed":
            self.add(report, 0.0)

    def add(self, report: Any, seconds: float) -> None:
        """Adds the outcome of a report; a skipped test has its reason as message."""
        message = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr or "")
        row = {"test": report.nodeid, "outcome": report.outcome, "seconds": seconds}
        self.tests.append({**row, "message": message[-MESSAGE_CHARACTERS:]})
        self.write("")

    def write(self, running: str) -> None:
        """Replaces the file in one step, because the parent may read it at any time."""
        partial = self.path.with_suffix(".partial")
        partial.write_text(json.dumps({"running": running, "tests": self.tests}))
        os.replace(partial, self.path)


def run_tests(tests: list[str], path: Path) -> int:
    """Runs tests, or all tests of files, in this process and returns pytest's exit status."""
    import pytest

    arguments = ["-q", "-p", "no:cacheprovider", "-o", f"timeout={TEST_TIMEOUT_S}", *tests]
    return pytest.main(arguments, plugins=[Recorder(path)])


def collected() -> list[str]:
    """Returns the ids of all tests, or the files if pytest cannot collect them."""
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", str(TESTS)]
    listed = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    ids = [line for line in listed.stdout.splitlines() if "::" in line]
    return ids if not listed.returncode and ids else sorted(map(str, TESTS.glob("test_*.py")))


def groups(tests: list[str]) -> list[list[str]]:
    """Groups tests that compile the same functions, so that one process compiles them once.

    These are the tests of a file, and of those with several parameters the ones with the same last parameter.
    """
    found: dict[str, list[str]] = {}
    for test in tests:
        name, _, parameters = test.rstrip("]").partition("[")
        first, separator, last = parameters.rpartition("-")
        found.setdefault(f"{name} {last}" if separator else name.partition("::")[0], []).append(test)
    return sorted(found.values(), key=len, reverse=True)


def merge(paths: list[Path]) -> dict[str, Any]:
    """Returns the outcomes of all processes: counts, running tests and a row per test."""
    records = [json.loads(path.read_text()) for path in paths if path.exists()]
    tests = [row for record in records for row in record["tests"]]
    counts = {outcome: sum(row["outcome"] == outcome for row in tests) for outcome in OUTCOMES}
    return {**counts, "running": [each["running"] for each in records if each["running"]], "tests": tests}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("tests", nargs="*", help="run these tests or files in this process")
    parser.add_argument("--processes", type=int, default=14)
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/gpu/gpu_tests.json"))
    options = parser.parse_args()
    if options.tests:
        sys.exit(run_tests(options.tests, options.json))
    tests = collected()
    with tempfile.TemporaryDirectory() as folder:
        shares = groups(tests)
        paths = [Path(folder) / f"{number}.json" for number in range(min(options.processes, len(shares)))]
        this_file = str(Path(__file__).resolve())
        processes = [
            subprocess.Popen(
                [sys.executable, this_file, *sum(shares[number :: len(paths)], []), "--json", str(path)], cwd=ROOT
            )
            for number, path in enumerate(paths)
        ]
        while any(process.poll() is None for process in processes):
            time.sleep(POLL_S)
            options.json.write_text(json.dumps(merge(paths), indent=1) + "\n")
        result = merge(paths) | {"exit_statuses": [process.returncode for process in processes]}
    options.json.write_text(json.dumps(result, indent=1) + "\n")
    died = [status for status in result["exit_statuses"] if status not in (0, 1, 5)]  # 5: no test was collected
    for row in result["tests"]:
        if row["outcome"] == "failed":
            print(f"failed: {row['test']}")
    if died:
        print(f"processes ended with {died} while running {', '.join(result['running']) or 'no test'}")
    sys.exit(int(bool(result["failed"] or died)))


if __name__ == "__main__":
    main()
