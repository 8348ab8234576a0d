"""Training rate with periodic evaluations compared with none, in turns on the same machine.

Run ``python benchmarks/eval_cost.py [--rounds N] [--seconds S] [--out FILE]``. Each round trains the same run without
evaluations, in a process of their own and in the training process, one after the other. A rate is environment steps per
second of wall time from the first log line to the last, so that starts do not count. The load of the machine before
each run is in the results: a ratio counts only if nothing else computed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

RUN = "train gym variant=pendulum env_steps=100000000 log_interval_s=1 save_interval_s=10 tensorboard=false".split()
MODES = {
    "none": ["eval_share=0"],
    "process": ["eval_process=on"],
    "inside": ["eval_process=off"],
}


def measure(mode: str, seconds: float) -> dict:
    """Trains once; returns the rate in steps per second, the number of evaluations and the load before the run."""
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        command = [sys.executable, "-m", "powerband", *RUN, *MODES[mode], f"time_limit_s={seconds}", f"run_dir={run}"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        lines = [json.loads(text) for text in (run / "metrics.jsonl").read_text().splitlines()]
    evaluations = [line for line in lines if "eval/return" in line]
    logged = [line for line in lines if "charts/SPS" in line]
    first, last = logged[0], logged[-1]
    rate = (last["env_steps"] - first["env_steps"]) / (last["time_s"] - first["time_s"])
    return {"mode": mode, "steps_per_s": rate, "evaluations": len(evaluations), "load": load}


def main() -> None:
    """Measures all modes in turns and prints the median ratio of each to the run without evaluations."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--out", default="")
    options = parser.parse_args()
    rows = []
    for number in range(options.rounds):
        for mode in MODES:
            rows.append({"round": number, **measure(mode, options.seconds)})
            print(json.dumps(rows[-1]), flush=True)
    ratios = {}
    for mode in ("process", "inside"):
        rates = [{row["mode"]: row["steps_per_s"] for row in rows if row["round"] == n} for n in range(options.rounds)]
        ratios[mode] = statistics.median(each[mode] / each["none"] for each in rates)
        print(f"{mode}: {ratios[mode]:.3f} of the rate without evaluations", flush=True)
    if options.out:
        Path(options.out).write_text(json.dumps({"ratios": ratios, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
