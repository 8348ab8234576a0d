"""`powerband profile -- python train.py` on scripts that use a GPU: the cause, the time of the device, the overhead.

    python benchmarks/attach/on_gpu.py
        --json benchmarks/results/attach/attach_gpu.json [--only NAME ...] [--pairs 10] [--try]

The scripts are in `framework_scripts`; those of Stable-Baselines3 are skipped if it is not installed. For each script:

- ``powerband profile seconds=5``: the first cause, compared with the one that the script was written to have;
- for the scripts of `OVERHEAD`, pairs of runs with and without the instrumentation, as in `frameworks.py`;
- with ``--try``, ``powerband profile --try --allow-numerics`` on the scripts of `TRIED`.

The file is written after each script.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from frameworks import SCRIPTS, compared
from powerband.core.machine.device import host_facts

LONGEST_S = 600.0
"""Longest time of one profile in seconds."""
CASES: dict[str, tuple[str, str]] = {
    "small network": ("on_gpu.py 1000000000 64 256", "launch-bound"),
    "small network, loss read": ("on_gpu.py 1000000000 64 256 --read", "launch-bound"),
    "wide network": ("on_gpu.py 1000000000 8192 4096", "update-bound"),
    "wide network, loss read": ("on_gpu.py 1000000000 8192 4096 --read", "update-bound"),
    "middle network, loss read": ("on_gpu.py 1000000000 768 2048 --read", "update-bound"),
    "middle network, loss not read": ("on_gpu.py 1000000000 768 2048", "update-bound"),
    "slow loader": ("on_gpu.py 1000000000 64 256 --slow-loader", "data-wait"),
    "stable-baselines3 SAC": ("sb3.py sac 1000000000 cuda", "launch-bound"),
    "stable-baselines3 PPO": ("sb3.py ppo 1000000000 cuda", "launch-bound"),
}
"""Name -> script with its arguments, right cause. A host that reads the loss after each update does not hide its
launches behind the kernels, so reading costs the shorter one of the two, which is little in all of these scripts."""
OVERHEAD = {
    "small network": "on_gpu.py 3000 64 256",
    "wide network": "on_gpu.py 150 8192 4096",
    "stable-baselines3 SAC": "sb3.py sac 500 cuda",
}
TRIED = ("small network", "wide network")


def script(words: str) -> list[str]:
    """Returns the arguments of the interpreter."""
    name, *arguments = words.split()
    return [str(SCRIPTS / name), *arguments]


def profile(name: str, words: tuple[str, ...]) -> dict[str, Any]:
    """Profiles a script and returns the parts of the report that this file compares."""
    words_of_script, right = CASES[name]
    began = time.monotonic()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        report = Path(folder) / "profile.json"
        command = [sys.executable, "-m", "powerband", "profile", *words, f"--json={report}", "--"]
        command += [sys.executable, *script(words_of_script)]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LONGEST_S)
        if done.returncode or not report.exists():
            return {"cause": "failed", "output": (done.stdout + done.stderr)[-3000:]}
        found = json.loads(report.read_text())
    names = ("cause", "sentence", "ledger", "updates_per_s", "steps_per_s", "remarks", "failures", "lines")
    result = {each: found[each] for each in names} | {"seconds": time.monotonic() - began}
    result["lines"] = [{**line, "where": Path(line["where"]).name} for line in result["lines"][:4]]
    facts = found["ranks"][0]["facts"]
    result |= {each: facts[each] for each in ("device_busy", "syncs_per_iteration", "sync_s")}
    result["findings"] = [{each: one[each] for each in ("cause", "claim")} for one in found["findings"]]
    result["right"] = found["cause"] == right
    return result | {each: found[each] for each in ("tried", "tried_notes", "unchanged_rates") if each in found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--only", nargs="+", choices=list(CASES))
    parser.add_argument("--pairs", type=int, default=10, help="runs with and without the instrumentation; 0 for none")
    parser.add_argument("--no-profiles", action="store_true", help="measure the overhead and the changes only")
    parser.add_argument("--try", dest="tries", action="store_true")
    options = parser.parse_args()
    result: dict[str, Any] = json.loads(options.json.read_text()) if options.json.exists() else {}
    result["host"] = host_facts()
    for name in options.only or list(CASES):
        if CASES[name][0].startswith("sb3.py") and importlib.util.find_spec("stable_baselines3") is None:
            print(f"{name}: skipped, because stable_baselines3 is not installed")
            continue
        if not options.no_profiles:
            found = profile(name, ("seconds=5",))
            result.setdefault("profiles", {})[name] = found
            print(f"{name}: {found['cause']}: {found.get('sentence', found.get('output'))}", flush=True)
        if options.pairs and name in OVERHEAD:
            found = compared(script(OVERHEAD[name]), "profile", options.pairs, "", None)
            result.setdefault("overhead", {})[name] = found
            low, high = found["overhead_interval"]
            print(f"{name}: overhead {found['overhead']:.1%} [{low:.1%}, {high:.1%}]", flush=True)
        if options.tries and name in TRIED:
            words = ("seconds=5", "--try", "--allow-numerics", "try_seconds=2", "try_budget=150")
            result.setdefault("tries", {})[name] = profile(name, words)
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
