"""Realised gain of the best advice of `powerband profile` on healthy runs, compared with the unchanged setting.

    python benchmarks/diagnosis/healthy.py --json benchmarks/results/diagnosis/healthy.json [--pairs 3] [--seconds 4]

For each run, the unchanged setting and the best advice that leaves learning unchanged run alternately. Advice is
harmful if the median realised gain is below 0.95.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from powerband.bench.harness import restart_with_cli_environment
from powerband.cli.catalogue import configure
from powerband.core.machine.device import host_facts
from powerband.tune.measure.in_subprocesses import short_run
from powerband.tune.profile import ProfileOptions, profile

HARMFUL = 0.95
"""Median realised gain below which advice is harmful."""
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


def profiled(arguments: list[str], pairs: int, seconds: float) -> dict[str, Any]:
    """Returns the cause and the best advice of one run, and the realised gains of this advice."""
    recipe, stage, resolved = configure(arguments[0], [*arguments[1:], "gpus=none"])
    result = profile(recipe, stage, resolved.config, ProfileOptions(seconds))
    row: dict[str, Any] = {"run": " ".join(arguments), "cause": result.diagnosis.cause, "gains": []}
    best = next((each for each in result.advice if each.gain > 1 and not each.learning), None)
    if best is not None:
        row |= {"knob": best.knob, "value": best.value, "predicted_gain": best.gain}
        for _ in range(pairs):
            rates = []
            for config in (resolved.config, best.config):
                measured = short_run(recipe, stage, config, seconds, probe=False)
                assert measured is not None, f"{row['run']}: nothing was measured"
                rates.append(measured.steps_per_s)
            row["gains"].append(rates[1] / rates[0])
    row["harmful"] = bool(row["gains"]) and statistics.median(row["gains"]) < HARMFUL
    return row


def main() -> None:
    restart_with_cli_environment()
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--pairs", type=int, default=3, help="alternating runs of the unchanged setting and the advice")
    parser.add_argument("--seconds", type=float, default=4.0, help="seconds of each measured window")
    options = parser.parse_args()
    rows = []
    for arguments in RUNS:
        rows.append(profiled(arguments.split(), options.pairs, options.seconds))
        row = rows[-1]
        advice = f"{row['knob']}={row['value']}: predicted {row['predicted_gain']:.2f}" if row["gains"] else "no advice"
        realised = f", realised {statistics.median(row['gains']):.2f}" if row["gains"] else ""
        print(f"{row['run']}: {row['cause']}; {advice}{realised}{'  HARMFUL' * row['harmful']}", flush=True)
        if options.json:
            result = {"host": host_facts(), "harmful": sum(each["harmful"] for each in rows), "rows": rows}
            options.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
