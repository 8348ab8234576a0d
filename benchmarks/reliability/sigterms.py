"""SIGTERM at random instants to the launcher, the leading rank, the other rank, or one machine of a run on two ranks.

After each, the run must end with a status other than 0 and with one checkpoint that both ranks have saved at one step,
and no process may live on after 30 s. Each result is added to the JSON file; a second start with the same file
continues. For the signal to a machine, its launcher gets it, and the two machines are network namespaces (Linux, root).

    sudo python benchmarks/reliability/sigterms.py --count 100 --json benchmarks/results/reliability/sigterms.json
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))

from namespaces import Namespaces  # noqa: E402
from powerband.core.machine.device import host_facts  # noqa: E402
from powerband.core.machine.utilisation import process_tree  # noqa: E402
from powerband.core.run_folder import process_start_ticks  # noqa: E402
from soak_faults import orphans  # noqa: E402
from soak_runs import Child, command_line, final_state, newest, ranks  # noqa: E402

TARGETS = ("launcher", "leading rank", "other rank", "machine")
NAME = "snakes on two ranks"
START_S, END_S = 300.0, 30.0
"""Limits in seconds: to the start of both ranks, and from the signal to the end of all processes."""


class TwoMachines:
    """The run on two network namespaces with one rank each.

    Args:
        words: Arguments after ``powerband`` of the run on one machine.
        folder: Folder of their outputs.
    """

    def __init__(self, words: list[str], folder: Path) -> None:
        folder.mkdir()
        self.folder, self.network = folder, Namespaces(2)
        meeting = f"rdzv_endpoint={self.network.address(0)}:29500"
        words = [word for word in words if not word.startswith("nproc=")] + ["nnodes=2", meeting]
        self.launchers = [self.network.start(index, words, folder / f"machine{index}") for index in range(2)]

    def ended(self) -> bool:
        """True once a launcher has ended."""
        return any(launcher.poll() is not None for launcher in self.launchers)

    def wait(self, seconds: float) -> int:
        """Waits for both launchers. Returns the status of the one with another status than after SIGTERM, if any."""
        deadline = time.monotonic() + seconds
        for launcher in self.launchers:
            with contextlib.suppress(subprocess.TimeoutExpired):
                launcher.wait(max(0.0, deadline - time.monotonic()))
        found = {-signal.SIGKILL if each.poll() is None else each.returncode for each in self.launchers}
        return min(found - {128 + signal.SIGTERM}, default=128 + signal.SIGTERM)

    def printed(self) -> str:
        """What both have printed."""
        return "".join((self.folder / f"machine{index}" / "out").read_text() for index in range(2))


def terminate(number: int, seed: int, folder: Path) -> dict[str, Any]:
    """Starts a run, sends the signal, and returns what followed."""
    rng = random.Random(f"{seed} {number}")
    target, delay_s = TARGETS[number % len(TARGETS)], rng.uniform(0, 4)
    run = folder / f"run-{number}"
    shutil.rmtree(run, ignore_errors=True)
    words = command_line(NAME, run, folder, 1e5)
    started: Child | TwoMachines
    if target == "machine":
        started = TwoMachines(words, folder / f"outputs-{number}")
        launchers = [each.pid for each in started.launchers]
    else:
        started = Child(words, folder / "log")
        launchers = [started.pid]
    try:
        return {"number": number, "target": target} | _terminated(started, launchers, target, run, delay_s, rng)
    finally:
        if isinstance(started, TwoMachines):
            started.network.close()
        shutil.rmtree(run, ignore_errors=True)


def _terminated(
    started: Child | TwoMachines, launchers: list[int], target: str, run: Path, delay_s: float, rng: random.Random
) -> dict[str, Any]:
    deadline = time.monotonic() + START_S
    while len(ranks(run)) < 2:
        assert not started.ended() and time.monotonic() < deadline, started.printed()
        time.sleep(0.005)
    time.sleep(delay_s)
    members = ranks(run)
    others = [(pid, process_start_ticks(pid)) for launcher in launchers for pid in process_tree(launcher)]
    signalled = {"leading rank": members[0][0], "other rank": members[1][0]}
    os.kill(signalled.get(target, rng.choice(launchers)), signal.SIGTERM)
    sent = time.monotonic()
    status = started.wait(END_S)
    problem = orphans(list({*members, *others}), END_S)
    seconds, problems, text = time.monotonic() - sent, [problem] * bool(problem), started.printed()
    if seconds > END_S:
        problems.append(f"it took {seconds:.1f} s")
    step = newest(run)
    if step < 0:
        problems.append("no checkpoint")
    else:
        state = final_state(run)
        shards = {path.partition("/")[0] for path in state}
        if shards != {"shared", "rank0", "rank1"} or state["shared/run/env_steps"] != step:
            problems.append(f"the checkpoint {step} has shards {sorted(shards)}")
    if status != 128 + signal.SIGTERM:
        problems.append(f"status {status}: {text[-1500:]}")
    if "Traceback" in text:
        problems.append(f"a traceback: {text[-1500:]}")
    return {
        "delay_s": round(delay_s, 2), "status": status, "env_steps": step,
        "seconds": round(seconds, 2), "problems": problems,
    }  # fmt: skip


def main() -> int:
    """Returns the exit status: 1 if a criterion was missed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=100, help="signals over the four targets")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="file for the results, which a second start continues")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = json.loads(options.json.read_text())["rows"] if options.json and options.json.exists() else []
    began, first = time.monotonic(), len(rows)
    with tempfile.TemporaryDirectory(prefix="powerband-sigterms-") as folder:
        for number in range(first, options.count):
            rows.append(terminate(number, options.seed, Path(folder)))
            left_s = (time.monotonic() - began) / (number + 1 - first) * (options.count - number - 1)
            print(f"{json.dumps(rows[-1])} {left_s:.0f} s left", flush=True)
            if options.json:
                summary = {
                    "signals": len(rows),
                    "with a checkpoint of both ranks, status 143 and no process left": sum(
                        not row["problems"] for row in rows
                    ),
                    "by target": {target: sum(row["target"] == target for row in rows) for target in TARGETS},
                    "largest seconds to the end": max(row["seconds"] for row in rows),
                }
                result = {"host": host_facts(), "arguments": sys.argv[1:], "summary": summary, "rows": rows}
                options.json.write_text(json.dumps(result) + "\n")
    return int(any(row["problems"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
