"""Training rates that `powerband estimate` predicts, compared with the rates of real runs on 1 and 2 ranks.

Each recipe is estimated and then trained on the command line with each number of ranks, in interleaved rounds. The
realised rate is the median over the rounds.

    python benchmarks/tuning/estimate.py --json benchmarks/results/tuning/estimate.json
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import statistics
import tempfile
from pathlib import Path

from powerband.bench.harness import measure, restart_with_cli_environment
from powerband.cli import main as cli
from powerband.core.machine.device import cores, host_facts

RECIPES = {
    "snakes/ppo": ["snakes", "algo=ppo"],
    "gym/sac": ["gym", "algo=sac", "env_id=Pendulum-v1", "num_workers=0", "off_policy.num_envs=8"],
}
FIXED = ["gpus=none", "save_interval=0"]


def predicted(arguments: list[str], ranks: list[int], seconds: float) -> dict[int, dict]:
    """Returns number of ranks -> row of the estimate."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        path = Path(folder) / "estimate.json"
        options = [f"ranks={','.join(map(str, ranks))}", f"seconds={seconds}", f"--json={path}"]
        status = cli.main(["estimate", *arguments, *FIXED, *options])
        assert status == 0, f"estimate {' '.join(arguments)} ended with status {status}"
        return {row["ranks"]: row for row in json.loads(path.read_text())["rows"]}


def compare(name: str, ranks: list[int], seconds: float, rounds: int) -> list[dict]:
    """Returns one row per number of ranks: predicted and realised environment steps per second, and the error."""
    arguments = RECIPES[name]
    rows = predicted(arguments, ranks, seconds)
    realised: dict[int, list[float]] = {count: [] for count in ranks}
    for _ in range(rounds):
        for count in ranks:
            realised[count].append(measure([*arguments, *FIXED, f"nproc={count}"], seconds)["steps_per_s"])
    results = []
    for count in ranks:
        if "skipped" in rows[count]:
            print(f"{name}  {count} ranks: {rows[count]['skipped']}", flush=True)
            continue
        prediction, real = rows[count]["steps_per_s"], statistics.median(realised[count])
        error = prediction / real - 1
        parts = rows[count]["iteration"]["parts"]
        results.append(
            {"recipe": name, "ranks": count, "predicted_steps_per_s": prediction, "realised_steps_per_s": real}
            | {"error": error, "rounds": realised[count], "limit": rows[count]["limit"], "parts": parts}
        )
        print(
            f"{name:<12}{count:>2} ranks  predicted {prediction:>9,.0f}  realised {real:>9,.0f}  {error:+.1%}",
            flush=True,
        )
    return results


def main() -> None:
    restart_with_cli_environment()
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=Path, help="file for the results")
    parser.add_argument("--recipes", nargs="+", choices=RECIPES, default=list(RECIPES))
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3, help="real runs per number of ranks")
    parser.add_argument("--seconds", type=float, default=10.0, help="seconds of each measured window")
    arguments = parser.parse_args()
    rows = []
    for name in arguments.recipes:
        rows += compare(name, arguments.ranks, arguments.seconds, arguments.rounds)
    worst = max((abs(row["error"]) for row in rows), default=0.0)
    print(f"largest error {worst:.1%}")
    result = {"host": {**host_facts(), "cores": cores()}, "seconds": arguments.seconds, "rows": rows}
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(result | {"largest_error": worst}, indent=2) + "\n")


if __name__ == "__main__":
    main()
