"""Environment steps per second of PPO with double buffering, compared with stepping all environments together.

    python benchmarks/training/double_buffer.py [--seconds 5] [--rounds 3] [--json out.json]

The environment of the cases `waits` sleeps in each step, as if it waited for a simulator in another process. The cases
`computes` use HalfCheetah. The two runs of a case differ only in ``double_buffer``, and all runs are interleaved.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from functools import partial
from pathlib import Path

from powerband.bench.harness import interleaved, measure
from powerband.core.machine.device import host_facts

FAULTY_ENVS = str(Path(__file__).parents[1] / "diagnosis")
"""Folder of the module `faulty_envs`, which this process and its workers import."""
SHARED = "gym algo=ppo gpus=none threads=1 on_policy.num_envs=64 num_steps=32 epochs=1 minibatches=2".split()
CASES = {
    "waits, 4 workers": ("0.3", ["env_id=faulty_envs:SlowPendulum-v0", "num_workers=4", "ppo.hidden=512,512"]),
    "waits, 8 workers": ("0.3", ["env_id=faulty_envs:SlowPendulum-v0", "num_workers=8", "ppo.hidden=512,512"]),
    "computes, 2 workers": ("0", ["env_id=HalfCheetah-v5", "num_workers=2", "ppo.hidden=512,512"]),
    "computes, 4 workers": ("0", ["env_id=HalfCheetah-v5", "num_workers=4", "ppo.hidden=512,512"]),
}
"""Case -> (milliseconds of sleep per step, arguments)."""


def run(cost_ms: str, arguments: list[str], seconds: float) -> dict:
    """Returns the metrics of one run."""
    os.environ |= {"POWERBAND_FAULT_MS": cost_ms, "PYTHONPATH": f"{FAULTY_ENVS}:{os.environ['PYTHONPATH']}"}
    return measure([*SHARED, *arguments], seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", default="")
    args = parser.parse_args()
    os.environ.setdefault("PYTHONPATH", "")
    sys.path.insert(0, FAULTY_ENVS)
    cases = {
        f"{name}, {mode}": partial(run, cost, [*arguments, f"double_buffer={enabled}"], args.seconds)
        for name, (cost, arguments) in CASES.items()
        for mode, enabled in (("in step", "false"), ("double-buffered", "true"))
    }
    rows = {row["case"]: row for row in interleaved(cases, args.rounds)}
    gains = {
        case: rows[f"{case}, double-buffered"]["steps_per_s"] / rows[f"{case}, in step"]["steps_per_s"]
        for case in CASES
    }
    print("double-buffered compared with in step: " + "; ".join(f"{name} {gain:.2f}x" for name, gain in gains.items()))
    if args.json:
        result = {"host": host_facts(), "seconds": args.seconds, "gains": gains, "rows": list(rows.values())}
        Path(args.json).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
