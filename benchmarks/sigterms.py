"""SIGTERM at random instants to the launcher, the leading rank or the other rank of a run on two ranks.

After each, the run must end with a status other than 0 and with one checkpoint that both ranks have saved at one step,
and no process may live on. Each result is added to the JSON file; a second start with the same file continues.

    python benchmarks/sigterms.py --count 100 --json benchmarks/results/sigterms.json
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))

from powerband.core.machine.device import host_facts  # noqa: E402
from powerband.core.machine.utilisation import process_tree  # noqa: E402
from powerband.core.run_folder import process_start_ticks  # noqa: E402
from soak_faults import orphans  # noqa: E402
from soak_runs import Child, command_line, final_state, newest, ranks  # noqa: E402

TARGETS = ("launcher", "leading rank", "other rank")
NAMES = ("snakes on two ranks",)
START_S, END_S = 300.0, 120.0


def terminate(number: int, seed: int, folder: Path) -> dict[str, Any]:
    """Starts a run, sends the signal, and returns what followed."""
    rng = random.Random(f"{seed} {number}")
    name, target, delay_s = rng.choice(NAMES), TARGETS[number % 3], rng.uniform(0, 4)
    run, log = folder / f"run-{number}", folder / "log"
    shutil.rmtree(run, ignore_errors=True)
    child = Child(command_line(name, run, folder, 1e5), log)
    deadline = time.monotonic() + START_S
    while len(ranks(run)) < 2:
        assert not child.ended() and time.monotonic() < deadline, child.printed()
        time.sleep(0.005)
    time.sleep(delay_s)
    members = ranks(run)
    others = [(pid, process_start_ticks(pid)) for pid in process_tree(child.pid)]
    pid = child.pid if target == "launcher" else members[TARGETS.index(target) - 1][0]
    os.kill(pid, signal.SIGTERM)
    sent = time.monotonic()
    status = child.wait(END_S)
    problem = orphans(list({*members, *others}), 30.0)
    seconds, problems, text = time.monotonic() - sent, [problem] * bool(problem), child.printed()
    step = newest(run)
    if step < 0:
        problems.append("no checkpoint")
    else:
        state = final_state(run)
        shards = {path.partition("/")[0] for path in state}
        if shards != {"shared", "rank0", "rank1"} or state["shared/run/env_steps"] != step:
            problems.append(f"the checkpoint {step} has shards {sorted(shards)}")
    if status != 128 + signal.SIGTERM:
        problems.append(f"status {status}")
    if "Traceback" in text:
        problems.append(f"a traceback: {text[-1500:]}")
    shutil.rmtree(run, ignore_errors=True)
    return {
        "number": number, "target": target, "delay_s": round(delay_s, 2), "status": status, "env_steps": step,
        "seconds": round(seconds, 2), "problems": problems,
    }  # fmt: skip


def main() -> int:
    """Returns the exit status: 1 if a criterion was missed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=100, help="signals over the three targets")
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
                    "largest seconds to the end": max(row["seconds"] for row in rows),
                }
                result = {"host": host_facts(), "arguments": sys.argv[1:], "summary": summary, "rows": rows}
                options.json.write_text(json.dumps(result) + "\n")
    return int(any(row["problems"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
