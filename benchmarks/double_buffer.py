"""Double buffering against all in step: PPO on simulators that wait and on some that compute. Whole runs, interleaved.

    python benchmarks/double_buffer.py [--seconds 5] [--rounds 3] [--json out.json]

`waits` is a simulator elsewhere (each step sleeps), `computes` is HalfCheetah. Rows differ in ``double_buffer`` and in
the number of workers, which all runs of one name share.
"""

from __future__ import annotations

import argparse
import json
import os
from functools import partial
from pathlib import Path

from powerband.bench.harness import interleaved, measure
from powerband.core.device import host_facts

SHARED = "gym algo=ppo gpus=none threads=1 on_policy.num_envs=64 num_steps=32 epochs=1 minibatches=2".split()
CASES = {
    "waits, 4 workers": ("0.3", ["env_id=faulty_envs:SlowPendulum-v0", "num_workers=4", "ppo.hidden=512,512"]),
    "waits, 8 workers": ("0.3", ["env_id=faulty_envs:SlowPendulum-v0", "num_workers=8", "ppo.hidden=512,512"]),
    "computes, 2 workers": ("0", ["env_id=HalfCheetah-v5", "num_workers=2", "ppo.hidden=512,512"]),
    "computes, 4 workers": ("0", ["env_id=HalfCheetah-v5", "num_workers=4", "ppo.hidden=512,512"]),
}
"""Name -> (milliseconds of a step that sleeps, words)."""


def run(cost_ms: str, words: list[str], seconds: float) -> dict:
    """One run."""
    os.environ |= {"POWERBAND_FAULT_MS": cost_ms, "PYTHONPATH": f"{Path(__file__).parent}:{os.environ['PYTHONPATH']}"}
    return measure([*SHARED, *words], seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", default="")
    args = parser.parse_args()
    os.environ.setdefault("PYTHONPATH", "")
    cases = {
        f"{name}, {how}": partial(run, cost, [*words, f"double_buffer={turns}"], args.seconds)
        for name, (cost, words) in CASES.items()
        for how, turns in (("in step", "false"), ("by turns", "true"))
    }
    rows = {row["case"]: row for row in interleaved(cases, args.rounds)}
    gains = {f: rows[f"{f}, by turns"]["steps_per_s"] / rows[f"{f}, in step"]["steps_per_s"] for f in CASES}
    print("by turns over in step: " + "; ".join(f"{name} {gain:.2f}x" for name, gain in gains.items()))
    if args.json:
        found = {"host": host_facts(), "seconds": args.seconds, "gains": gains, "rows": list(rows.values())}
        Path(args.json).write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
