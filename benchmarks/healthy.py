"""Healthy runs: what `powerband profile` advises where nothing is wrong, and whether following it does harm.

    python benchmarks/healthy.py --json benchmarks/results/healthy.json [--pairs 3] [--seconds 4]

The best advice that leaves learning alone is run against the setting as it was, in turns. Advice is harmful where the
median of the realised gains is below 0.95.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from powerband.bench.harness import wait_as_runs_do
from powerband.catalogue import configure
from powerband.core.device import host_facts
from powerband.tune.apart import short_run
from powerband.tune.profile import Options, profile

HARMFUL = 0.95
RUNS = [
    "snakes algo=ddpg threads=1",
    "snakes algo=ddpg off_policy.num_envs=16 update_interval=16 precision=bf16",
    "snakes algo=bicnet off_policy.num_envs=16 update_interval=16 threads=1",
    "snakes algo=ppo threads=1",
    "snakes algo=ppo on_policy.num_envs=64 precision=fp32",
    "gym algo=sac num_workers=0 threads=1",
    "gym algo=sac env_id=HalfCheetah-v5 off_policy.num_envs=16 update_interval=16",
    "gym algo=sac env_id=Hopper-v5 off_policy.num_envs=8 overlap=true precision=bf16",
    "gym algo=ppo env_id=CartPole-v1 num_workers=0 threads=1",
    "gym algo=ppo env_id=Hopper-v5",
]


def judged(words: list[str], pairs: int, seconds: float) -> dict[str, Any]:
    """Cause and advice of one run, and what the advice did."""
    recipe, stage, resolved = configure(words[0], [*words[1:], "gpus=none"])
    found = profile(recipe, stage, resolved.config, Options(seconds))
    row: dict[str, Any] = {"run": " ".join(words), "cause": found.diagnosis.cause, "gains": []}
    best = next((each for each in found.advice if each.gain > 1 and not each.learning), None)
    if best is not None:
        row |= {"knob": best.knob, "value": best.value, "predicted_gain": best.gain}
        for _ in range(pairs):
            rates = [
                short_run(recipe, stage, config, seconds, probe=False) for config in (resolved.config, best.config)
            ]
            row["gains"].append(rates[1].steps_per_s / rates[0].steps_per_s)
    row["harmful"] = bool(row["gains"]) and statistics.median(row["gains"]) < HARMFUL
    return row


def main() -> None:
    wait_as_runs_do()
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0)
    options = parser.parse_args()
    rows = []
    for words in RUNS:
        rows.append(judged(words.split(), options.pairs, options.seconds))
        row = rows[-1]
        said = f"{row['knob']}={row['value']}: predicted {row['predicted_gain']:.2f}" if row["gains"] else "no advice"
        gained = f", realised {statistics.median(row['gains']):.2f}" if row["gains"] else ""
        print(f"{row['run']}: {row['cause']}; {said}{gained}{'  HARMFUL' * row['harmful']}", flush=True)
        if options.json:
            found = {"host": host_facts(), "harmful": sum(each["harmful"] for each in rows), "rows": rows}
            options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
