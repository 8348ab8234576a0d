"""`powerband profile -- python train.py` on scripts that use a GPU: the cause, the time of the device, the overhead.

    python benchmarks/attach/on_gpu.py --json benchmarks/results/attach_gpu.json [--only NAME ...] [--pairs 3] [--try]

The scripts are in `device_scripts`; those of Stable-Baselines3 are skipped if it is not installed. For each script:

- ``powerband profile seconds=5``: the first cause, compared with the one that the script was written to have;
- for the scripts of `OVERHEAD`, interleaved runs with and without the instrumentation, which print their rate. The
  overhead is the mean of the ratios of the pairs, minus 1, with their range;
- with ``--try``, ``powerband profile --try --allow-numerics`` on the scripts of `TRIED`.

The file is written after each script.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from powerband.attach.processes.launch import launch
from powerband.core.machine.device import host_facts

SCRIPTS = Path(__file__).parent / "device_scripts"
SCRIPT_S = 150.0
"""Longest time of one run in seconds."""
CASES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "small network": (("supervised.py", "64", "256"), ("launch-bound",)),
    "small network, loss read": (("supervised.py", "64", "256", "--read"), ("launch-bound",)),
    "wide network": (("supervised.py", "8192", "4096"), ("update-bound",)),
    "wide network, loss read": (("supervised.py", "8192", "4096", "--read"), ("update-bound",)),
    "middle network, loss read": (("supervised.py", "768", "2048", "--read"), ("update-bound",)),
    "middle network, loss not read": (("supervised.py", "768", "2048"), ("update-bound",)),
    "slow loader": (("supervised.py", "64", "256", "--slow-loader"), ("data-wait",)),
    "stable-baselines3 SAC": (("sb3.py", "sac", "100000000"), ("launch-bound",)),
    "stable-baselines3 PPO": (("sb3.py", "ppo", "100000000"), ("launch-bound",)),
}
"""Name -> arguments, causes that are right. A host that reads the loss after each update does not hide its launches
behind the kernels, so reading costs the shorter one of the two, which is little in all of these scripts."""
OVERHEAD = {
    "small network": ("supervised.py", "64", "256", "--updates", "3000"),
    "wide network": ("supervised.py", "8192", "4096", "--updates", "150"),
    "stable-baselines3 SAC": ("sb3.py", "sac", "400"),
}
TRIED = ("small network", "wide network")


def profile(name: str, words: tuple[str, ...]) -> dict[str, Any]:
    """Profiles a script and returns the parts of the report that this file compares."""
    arguments, right = CASES[name]
    began = time.monotonic()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        report = Path(folder) / "profile.json"
        command = [sys.executable, "-m", "powerband", "profile", *words, f"--json={report}", "--"]
        command += [sys.executable, str(SCRIPTS / arguments[0]), *arguments[1:]]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=4 * SCRIPT_S)
        if done.returncode or not report.exists():
            return {"cause": "failed", "output": (done.stdout + done.stderr)[-3000:]}
        found = json.loads(report.read_text())
    names = ("cause", "sentence", "ledger", "updates_per_s", "steps_per_s", "remarks", "failures", "lines")
    result = {each: found[each] for each in names} | {"seconds": time.monotonic() - began}
    result["lines"] = [{**line, "where": Path(line["where"]).name} for line in result["lines"][:4]]
    facts = found["ranks"][0]["facts"]
    result |= {each: facts[each] for each in ("device_busy", "syncs_per_iteration", "sync_s")}
    result["findings"] = [{each: one[each] for each in ("cause", "claim")} for one in found["findings"]]
    result["stderr"] = done.stderr[-600:]
    result["right"] = found["cause"] in right
    return result | {each: found[each] for each in ("tried", "tried_notes", "unchanged_rates") if each in found}


def rate(arguments: tuple[str, ...], tool: str) -> float:
    """Runs a script to its end and returns the rate that it prints."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, tempfile.TemporaryFile() as out:
        command = [sys.executable, str(SCRIPTS / arguments[0]), *arguments[1:]]
        run = launch(command, tool, Path(folder), dict(os.environ), stdout=out, stderr=out).popen
        run.wait(SCRIPT_S)
        out.seek(0)
        return float(re.findall(r"RATE (\S+)", out.read().decode())[-1])


def overhead(name: str, pairs: int) -> dict[str, Any]:
    """Returns the overhead of the instrumentation in a script, from runs in alternating order."""
    rates: dict[str, list[float]] = {"": [], "profile": []}
    for pair in range(pairs):
        for tool in ("", "profile") if pair % 2 else ("profile", ""):
            rates[tool].append(rate(OVERHEAD[name], tool))
    ratios = [without / with_ - 1 for without, with_ in zip(rates[""], rates["profile"], strict=True)]
    return {
        "rates_without": rates[""],
        "rates_with": rates["profile"],
        "overhead": statistics.mean(ratios),
        "smallest": min(ratios),
        "largest": max(ratios),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--only", nargs="+", choices=list(CASES))
    parser.add_argument("--pairs", type=int, default=3, help="runs with and without the instrumentation; 0 for none")
    parser.add_argument("--no-profiles", action="store_true", help="measure the overhead and the changes only")
    parser.add_argument("--try", dest="tries", action="store_true")
    options = parser.parse_args()
    result: dict[str, Any] = json.loads(options.json.read_text()) if options.json.exists() else {}
    result["host"] = host_facts()
    for name in options.only or list(CASES):
        if CASES[name][0][0] == "sb3.py" and importlib.util.find_spec("stable_baselines3") is None:
            print(f"{name}: skipped, because stable_baselines3 is not installed")
            continue
        if not options.no_profiles:
            found = profile(name, ("seconds=5",))
            result.setdefault("profiles", {})[name] = found
            print(f"{name}: {found['cause']}: {found.get('sentence', found.get('output'))}", flush=True)
        if options.pairs and name in OVERHEAD:
            found = overhead(name, options.pairs)
            result.setdefault("overhead", {})[name] = found
            print(f"{name}: overhead {found['overhead']:.1%} [{found['smallest']:.1%}, {found['largest']:.1%}]")
        if options.tries and name in TRIED:
            words = ("seconds=5", "--try", "--allow-numerics", "try_seconds=2", "try_budget=150")
            result.setdefault("tries", {})[name] = profile(name, words)
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
