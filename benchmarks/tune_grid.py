"""`powerband tune` against an exhaustive grid of the same knobs, on one idle machine, within one run.

The search is a command of its own. Then every point of the grid is measured once, and the best of them, the search's
choice and the defaults are measured again in turns.

    python benchmarks/tune_grid.py ppo ddpg sac --json benchmarks/results/tune_grid.json
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from powerband.bench.harness import wait_as_runs_do
from powerband.catalogue import configure
from powerband.core.device import host_facts
from powerband.tune.apart import short_run
from powerband.tune.candidates import as_words, key
from powerband.tune.measure import Measurement
from powerband.tune.space import Axis, Setting, Space

POINTS, FINALISTS, ROUNDS = 48, 5, 5
GRID_S, FINAL_S = 2.0, 3.0
CASES = {
    "ppo": ("constant-reuse", ["snakes", "algo=ppo", "gpus=none"]),
    "ddpg": ("constant-reuse", ["snakes", "algo=ddpg", "gpus=none", "off_policy.num_envs=16"]),
    "sac": ("fixed", ["gym", "algo=sac", "env_id=HalfCheetah-v5", "gpus=none"]),
    "ppo-fixed": ("fixed", ["snakes", "algo=ppo", "gpus=none"]),
}
"""Case -> (rule of learning, words of the recipe)."""


def searched(rule: str, words: list[str]) -> dict[str, Any]:
    """What the command finds."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "XDG_CONFIG_HOME": folder}
        found = Path(folder) / "found.json"
        command = [sys.executable, "-m", "powerband", "tune", *words, f"learning={rule}", f"--json={found}"]
        subprocess.run(command, check=True, env=environment)
        return json.loads(found.read_text())


def thinned(axis: Axis) -> list[Setting]:
    """The alternatives of an axis that the grid has: of sizes, the largest alone."""
    return [{}, *(axis.settings[-1:] if axis.modelled else axis.settings)]


def grid_of(space: Space) -> list[dict[str, Any]]:
    """Every setting of the thinned axes that can be had, the present one first."""
    found = {}
    for parts in itertools.product(*map(thinned, space.axes)):
        setting = space.complete([part for part in parts if part])
        if setting is not None:
            found[key(setting)] = setting
    assert len(found) <= POINTS, len(found)
    return list(found.values())


def run(case: str) -> dict[str, Any]:
    """One case: search, grid, finalists."""
    rule, words = CASES[case]
    found = searched(rule, words)
    recipe, stage, resolved = configure(words[0], words[1:])
    config = resolved.config

    def once(setting: Setting, seconds: float) -> Measurement:
        changed = space.config_of(setting) if setting else config
        return short_run(recipe, stage, changed, seconds, probe=False)

    base = short_run(recipe, stage, config, GRID_S, probe=False)
    space = Space(recipe, config, base.facts[0], rule, torch.cuda.device_count())
    grid = []
    for setting in grid_of(space):
        grid.append((once(setting, GRID_S).steps_per_s, setting))
        print(f"{case}: {grid[-1][0]:>12,.0f}  {as_words(setting)}", flush=True)
    grid.sort(key=lambda row: -row[0])
    chosen, finalists = found["best"]["setting"], {}
    for setting in ({}, chosen, *(setting for _, setting in grid[:FINALISTS])):
        finalists[key(setting)] = (setting, [])
    for _ in range(ROUNDS):
        for setting, rates in finalists.values():
            rates.append(once(setting, FINAL_S).steps_per_s)
    medians = {name: statistics.median(rates) for name, (_, rates) in finalists.items()}
    best = max(medians.values())
    row = {
        "case": case,
        "rule": rule,
        "words": words,
        "search_s": found["seconds"],
        "settings": len(found["rows"]),
        "chosen": chosen,
        "tuned_steps_per_s": medians[key(chosen)],
        "best_of_grid_steps_per_s": best,
        "default_steps_per_s": medians[key({})],
        "tuned_over_best": medians[key(chosen)] / best,
        "tuned_over_default": medians[key(chosen)] / medians[key({})],
        "finalists": [{"setting": setting, "rates": rates} for setting, rates in finalists.values()],
        "grid": [{"setting": setting, "steps_per_s": rate} for rate, setting in grid],
        "search": {name: found[name] for name in ("verified", "notes")},
    }
    print(
        f"{case}: tuned {row['tuned_over_best']:.1%} of the best of {len(grid)} points, "
        f"{row['tuned_over_default']:.2f} times the default, in {row['search_s']:.0f} s: {as_words(chosen)}",
        flush=True,
    )
    return row


def main() -> None:
    wait_as_runs_do()
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("cases", nargs="*", default=["ppo", "ddpg", "sac"], metavar="case", help=", ".join(CASES))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = []
    for case in arguments.cases:
        rows.append(run(case))
        if arguments.json:
            arguments.json.write_text(json.dumps({"host": host_facts(), "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
