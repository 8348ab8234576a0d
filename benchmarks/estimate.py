"""How near `powerband estimate` is to what really happens: predicted and realised rates on 1 and 2 ranks.

Each recipe is estimated, then really trained with each number of ranks through the command line, round after round; a
realised rate is the median of its rounds.

    python benchmarks/estimate.py --json benchmarks/results/estimate.json
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import statistics
import tempfile
from pathlib import Path

from powerband import cli
from powerband.bench.harness import measure, wait_as_runs_do
from powerband.core.device import cores, host_facts

RECIPES = {
    "snakes/ppo": ["snakes", "algo=ppo"],
    "gym/sac": ["gym", "algo=sac", "env_id=Pendulum-v1", "num_workers=0", "off_policy.num_envs=8"],
}
FIXED = ["gpus=none", "save_interval=0"]


def predicted(words: list[str], ranks: list[int], seconds: float) -> dict[int, dict]:
    """Rows of an estimate by their ranks."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        path = Path(folder) / "estimate.json"
        own = [f"ranks={','.join(map(str, ranks))}", f"seconds={seconds}", f"--json={path}"]
        status = cli.main(["estimate", *words, *FIXED, *own])
        assert status == 0, f"estimate {' '.join(words)} ended with status {status}"
        return {row["ranks"]: row for row in json.loads(path.read_text())["rows"]}


def compare(name: str, ranks: list[int], seconds: float, rounds: int) -> list[dict]:
    """One row a number of ranks: predicted and realised environment steps a second, and the error."""
    words = RECIPES[name]
    rows = predicted(words, ranks, seconds)
    realised: dict[int, list[float]] = {count: [] for count in ranks}
    for _ in range(rounds):
        for count in ranks:
            realised[count].append(measure([*words, *FIXED, f"nproc={count}"], seconds)["steps_per_s"])
    found = []
    for count in ranks:
        if "skipped" in rows[count]:
            print(f"{name}  {count} ranks: {rows[count]['skipped']}", flush=True)
            continue
        guess, real = rows[count]["steps_per_s"], statistics.median(realised[count])
        error = guess / real - 1
        parts = rows[count]["iteration"]["parts"]
        found.append(
            {"recipe": name, "ranks": count, "predicted_steps_per_s": guess, "realised_steps_per_s": real}
            | {"error": error, "rounds": realised[count], "limit": rows[count]["limit"], "parts": parts}
        )
        print(f"{name:<12}{count:>2} ranks  predicted {guess:>9,.0f}  realised {real:>9,.0f}  {error:+.1%}", flush=True)
    return found


def main() -> None:
    wait_as_runs_do()
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--recipes", nargs="+", choices=RECIPES, default=list(RECIPES))
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3, help="real runs of each number of ranks")
    parser.add_argument("--seconds", type=float, default=10.0, help="seconds of each window")
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
