"""Compares the policy of a run that restarts again and again, on two and three ranks in turns, with an undisturbed one.

A loss of one of three machines restarts the run on two ranks, and its return restarts it on three. This script repeats
these restarts on one machine, at random steps, and evaluates the final policies. The training returns of both runs
cannot be compared: a restart cuts the episodes in progress, and the longest ones are the most likely to be cut.

    python benchmarks/reliability/elastic_learning.py --restarts 60 --env-steps 680000 --seeds 1 2 3 --json FILE

Results are added to the JSON file after each seed, so that the script may be started again.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import fmean

from elastic_losses import WORDS, curve
from powerband.core.machine.device import host_facts

EPISODES = 100


def powerband(*words: str) -> None:
    """Runs a command.

    Raises:
        RuntimeError: It has failed.
    """
    done = subprocess.run([sys.executable, "-m", "powerband", *words], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: status {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")


def trained(folder: Path, seed: int, ends: list[int]) -> dict:
    """Trains to each number of environment steps in `ends`, on three and two ranks in turns, and evaluates the policy.

    Returns:
        Mean return of the final policy over `EPISODES` episodes with a 95 % interval, and mean return of training in
        the last fifth of the steps.
    """
    powerband(*WORDS.split(), f"seed={seed}", f"run_dir={folder}", "nproc=3", f"env_steps={ends[0]}")
    for number, end in enumerate(ends[1:], 1):
        powerband("train", "gym", f"resume={folder}", f"nproc={3 - number % 2}", f"env_steps={end}")
        print(f"seed {seed}: {end:,} of {ends[-1]:,} steps", flush=True)
    powerband("eval", str(folder), f"episodes={EPISODES}", "video=false")
    row = json.loads((folder / "eval-episodes.json").read_text())["rows"][0]
    points = curve(folder)
    last_fifth = fmean(value for steps, value in points if steps >= 0.8 * points[-1][0])
    figures = {name: row[name] for name in ("return", "return_low", "return_high")}
    return figures | {"training_return_last_fifth": last_fifth}


def main() -> None:
    """Trains both runs of each seed, and writes the JSON file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--restarts", type=int, default=60)
    parser.add_argument("--env-steps", type=int, default=680_000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    record = json.loads(options.json.read_text()) if options.json.exists() else {"seeds": {}}
    record |= {"host": host_facts(), "restarts": options.restarts, "env_steps": options.env_steps}
    for seed in options.seeds:
        if str(seed) in record["seeds"]:
            continue
        draw = random.Random(seed)
        ends = sorted(draw.sample(range(options.env_steps // 100, options.env_steps), options.restarts))
        with tempfile.TemporaryDirectory() as temporary:
            record["seeds"][str(seed)] = {
                "undisturbed": trained(Path(temporary) / "undisturbed", seed, [options.env_steps]),
                "with restarts": trained(Path(temporary) / "restarted", seed, [*ends, options.env_steps]),
            }
        print(json.dumps(record["seeds"][str(seed)]), flush=True)
        options.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
