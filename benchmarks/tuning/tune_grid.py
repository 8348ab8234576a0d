"""Training rate of the setting that `powerband tune` finds, compared with an exhaustive grid and the defaults.

The grid has the same options as the search. The search runs as a separate command, and then each point of the grid is
measured once. The best points, the setting that the search chose and the defaults are measured again in alternating
rounds. The machine must be idle.

    python benchmarks/tuning/tune_grid.py ppo ddpg sac --json benchmarks/results/tuning/tune_grid.json
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

from powerband.bench.harness import restart_with_cli_environment
from powerband.cli.catalogue import configure
from powerband.core.machine.device import host_facts
from powerband.tune.measure.in_process import Measurement
from powerband.tune.measure.in_subprocesses import short_run
from powerband.tune.search.candidates import as_command_line, key
from powerband.tune.search.space import Axis, LearningRule, SearchSpace, Setting

POINTS, FINALISTS, ROUNDS = 48, 5, 5
GRID_S, FINAL_S = 2.0, 3.0
CASES: dict[str, tuple[LearningRule, list[str]]] = {
    "ppo": ("constant-reuse", ["snakes", "algo=ppo", "gpus=none"]),
    "ddpg": ("constant-reuse", ["snakes", "algo=ddpg", "gpus=none", "off_policy.num_envs=16"]),
    "sac": ("fixed", ["gym", "algo=sac", "env_id=HalfCheetah-v5", "gpus=none"]),
    "ppo-fixed": ("fixed", ["snakes", "algo=ppo", "gpus=none"]),
}
"""Case -> (rule for options that change learning, recipe and its arguments)."""


def searched(rule: LearningRule, arguments: list[str]) -> dict[str, Any]:
    """Runs `powerband tune` and returns its JSON result."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "XDG_CONFIG_HOME": folder}
        report = Path(folder) / "tuning.json"
        command = [sys.executable, "-m", "powerband", "tune", *arguments, f"learning={rule}", f"--json={report}"]
        subprocess.run(command, check=True, env=environment)
        return json.loads(report.read_text())


def thinned(axis: Axis) -> list[Setting]:
    """Returns the points of an axis in the grid; for sizes, only the default and the largest."""
    return [{}, *(axis.settings[-1:] if axis.modelled else axis.settings)]


def grid_of(space: SearchSpace) -> list[dict[str, Any]]:
    """Returns all valid settings of the thinned axes, the default one first."""
    settings = {}
    for parts in itertools.product(*map(thinned, space.axes)):
        setting = space.complete([part for part in parts if part])
        if setting is not None:
            settings[key(setting)] = setting
    assert len(settings) <= POINTS, f"the grid has {len(settings)} points, but at most {POINTS} are allowed"
    return list(settings.values())


def run(case: str) -> dict[str, Any]:
    """Runs search, grid and finalists of one case and returns its row."""
    rule, arguments = CASES[case]
    tuning = searched(rule, arguments)
    recipe, stage, resolved = configure(arguments[0], arguments[1:])
    config = resolved.config

    def once(setting: Setting, seconds: float) -> Measurement:
        changed = space.config_with(setting) if setting else config
        measured = short_run(recipe, stage, changed, seconds, probe=False)
        assert measured is not None, f"{case}: {as_command_line(setting)} was not measured"
        return measured

    base = once({}, GRID_S)
    space = SearchSpace(recipe, config, base.facts[0], rule, torch.cuda.device_count())
    grid = []
    for setting in grid_of(space):
        grid.append((once(setting, GRID_S).steps_per_s, setting))
        print(f"{case}: {grid[-1][0]:>12,.0f}  {as_command_line(setting)}", flush=True)
    grid.sort(key=lambda row: -row[0])
    chosen = tuning["best"]["setting"]
    finalists: dict[tuple, tuple[dict[str, Any], list[float]]] = {}
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
        "words": arguments,
        "search_s": tuning["seconds"],
        "settings": len(tuning["rows"]),
        "chosen": chosen,
        "tuned_steps_per_s": medians[key(chosen)],
        "best_of_grid_steps_per_s": best,
        "default_steps_per_s": medians[key({})],
        "tuned_over_best": medians[key(chosen)] / best,
        "tuned_over_default": medians[key(chosen)] / medians[key({})],
        "finalists": [{"setting": setting, "rates": rates} for setting, rates in finalists.values()],
        "grid": [{"setting": setting, "steps_per_s": rate} for rate, setting in grid],
        "search": {name: tuning[name] for name in ("verified", "notes")},
    }
    print(
        f"{case}: tuned {row['tuned_over_best']:.1%} of the best of {len(grid)} points, "
        f"{row['tuned_over_default']:.2f} times the default, in {row['search_s']:.0f} s: {as_command_line(chosen)}",
        flush=True,
    )
    return row


def main() -> None:
    restart_with_cli_environment()
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
