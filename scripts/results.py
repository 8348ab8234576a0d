"""Derives ``src/powerband/results/rows.json`` and the figures of ``docs/results.md`` from the stored runs.

    python scripts/results.py            # write rows.json
    python scripts/results.py --check    # exit status 1 if rows.json or a figure of the page differs from the runs

The runs are ``benchmarks/results/learning/*.json``. `TEXTS` states which figures the page must contain, in both
languages, and how they are written.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from powerband.loops.evaluate import wilson_interval
from powerband.recipes.metaworld.env.tasks import GOALS
from powerband.results.published import SHARES, row_label, trials

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
RUNS = RESULTS / "learning" / "scores"
ROWS = ROOT / "src" / "powerband" / "results" / "rows.json"
PAGES = (ROOT / "docs" / "results.md", ROOT / "docs" / "results.zh-CN.md")
TRAINED = ("policy", "likeliest", "this run", "expert")
"""Policies of an evaluation that depend on the training; the others are baselines."""
TEAM_METRICS = ("f1_mean", "f1_end", "roi_entropy_mean", "roi_entropy_end")
TEXTS = (
    ("snakes-demo", "random", "decided_won", "{:.1%}"),
    ("snakes-demo", "greedy", "decided_won", "{:.1%}"),
    ("snakes-demo", "greedy_torus", "decided_won", "{:.1%}"),
    ("snakes-full", "greedy", "decided_won", "{:.1%}"),
    ("snakes-full", "greedy_torus", "decided_won", "{:.1%}"),
    ("snakes-full", "snakes-demo", "decided_won", "{:.1%}"),
    ("snakes-full", "own checkpoint of 75 s", "decided_won", "{:.1%}"),
    ("ddpg-guide", "random", "decided_won", "{:.1%}"),
    ("bicnet-guide", "random", "decided_won", "{:.1%}"),
    ("bicnet-guide", "greedy", "decided_won", "{:.1%}"),
    ("snakes-planes", "random", "decided_won", "{:.1%}"),
    ("snakes-planes", "greedy", "decided_won", "{:.1%}"),
    ("snakes-planes-32", "random", "decided_won", "{:.1%}"),
    ("uav-coma", "this run", "f1_mean", "{:.3f}"),
    ("uav-coma", "this run", "roi_entropy_mean", "{:.3f}"),
    ("uav-iac", "this run", "f1_mean", "{:.3f}"),
    ("uav-iac", "this run", "roi_entropy_mean", "{:.3f}"),
    ("uav-mappo", "this run", "f1_mean", "{:.3f}"),
    ("uav-mappo", "this run", "roi_entropy_mean", "{:.3f}"),
    *(
        (f"uav-{algo}-noisy", "this run", metric, "{:.3f}")
        for algo in ("coma", "iac", "mappo")
        for metric in TEAM_METRICS
    ),
    *(("uav-mappo-hard", policy, metric, "{:.3f}") for policy in ("this run", "greedy") for metric in TEAM_METRICS),
    ("uav-mappo-8-gpu", "this run", "f1_mean", "{:.3f}"),
    ("uav-mappo-8-gpu", "this run", "roi_entropy_mean", "{:.3f}"),
    ("uav-coma-8-gpu", "this run", "f1_mean", "{:.3f}"),
    ("uav-iac-8-gpu", "this run", "f1_mean", "{:.3f}"),
    ("sketchnav-ppo-smooth", "policy", "success", "{:.1%}"),
    ("sketchnav-ppo-abstract", "policy", "success", "{:.1%}"),
    ("sketchnav-ppo-blank", "policy", "success", "{:.1%}"),
    ("sketchnav-expert-first-smooth", "policy", "success", "{:.1%}"),
    ("sketchnav-expert-first-smooth", "likeliest", "success", "{:.1%}"),
    ("sketchnav-expert-first-large", "policy", "success", "{:.1%}"),
    ("sketchnav-expert-first-large", "likeliest", "success", "{:.1%}"),
    ("sketchnav-expert-first-varied", "policy", "success", "{:.1%}"),
    ("sketchnav-expert-first-varied", "likeliest", "success", "{:.1%}"),
    ("sketchnav-reward-smooth", "policy", "success", "{:.1%}"),
    ("sketchnav-reward-smooth", "likeliest", "success", "{:.1%}"),
    ("pendulum", "Pendulum", "return", "{:.0f}"),
    ("cartpole", "CartPole", "return", "{:.0f}"),
)
"""(row, part of the evaluation, metric, format): the page contains mean and 95 % interval over seeds in this format."""

TABLES = (
    ("learning/metaworld_collective.json", ("rows",)),
    ("learning/scores/metaworld-mt10-demos.json", ("runs", 0, "at_end")),
    ("learning/scores/metaworld-mt10.json", ("rows",)),
)
"""(file, place of its rows): success rates of tasks, which the pages list in lines that begin with the task."""


def published_rows() -> list[dict[str, Any]]:
    """Returns the rows that one command can train: those with runs of several seeds and no other run as input."""
    rows = []
    for path in sorted(RUNS.glob("*.json")):
        stored = json.loads(path.read_text())
        runs = stored.get("runs") or [{}]
        if "at_end" not in runs[0] or len(runs) < 2:
            continue
        train = [argument for argument in stored["train"].split()[2:] if "/" not in argument]  # without folders
        evaluate = stored["eval"].split()[3:]
        # Opponents that are other runs of this machine are left out.
        evaluate = [_without_runs(argument) for argument in evaluate]
        kept = [
            label for argument in evaluate if argument.startswith("opponents=") for label in argument[10:].split(",")
        ]
        figures = []
        for index, first in enumerate(runs[0]["at_end"]):
            label = row_label(first)
            if ("policy" in first and first["policy"] not in TRAINED) or (kept and label not in kept):
                continue
            for metric in next(iter(stored["at_end"].values())):
                values = [run["at_end"][index][metric] for run in runs]
                figures.append({"label": label, "metric": metric, "values": values, "trials": trials(first)})
        rows.append(
            {
                "name": path.stem,
                "train": train,
                "evaluate": evaluate,
                "seeds": [run["seed"] for run in runs],
                "seconds": round(statistics.fmean(run["train_s"] for run in runs), 1),
                "machine": _machine(stored["host"]),
                "figures": figures,
            }
        )
    return rows


def _machine(host: dict[str, Any]) -> str:
    """Returns processor, cores and GPU of the published runs."""
    gpus = "".join(f", {gpu['name']}" for gpu in host["gpus"])
    return f"{host['cpu']}, {host['cores']} cores{gpus}"


def _without_runs(argument: str) -> str:
    """Removes the names of runs and placeholders from an argument with a list of opponents."""
    name, _, values = argument.partition("=")
    return f"{name}={','.join(value for value in values.split(',') if '{' not in value and '/' not in value)}"


def texts() -> list[tuple[str, str]]:
    """Returns (row and metric, text) of every figure that the pages must contain."""
    found = []
    for name, label, metric, form in TEXTS:
        stored = json.loads((RUNS / f"{name}.json").read_text())["at_end"][label][metric]
        top = 1.0 if metric in SHARES else float("inf")
        mean, *bounds = (form.format(min(stored[key], top)) for key in ("mean", "low", "high") if key in stored)
        interval = f" [{', '.join(bound.rstrip('%') for bound in bounds)}]" if bounds else ""  # a row of one seed
        found.append((f"{name}, {label}, {metric}", mean.replace("%", " %") + interval))
    return found


def missing_cells(page: str) -> list[str]:
    """Returns the success rates of `TABLES` that a page does not contain in a line that begins with their task."""
    missing = []
    for file, place in TABLES:
        rows = json.loads((RESULTS / file).read_text())
        for key in place:
            rows = rows[key]
        for row in rows:
            # A deterministic policy repeats an episode if it plays a goal again, so each goal counts once.
            ends = wilson_interval(row["success"] * GOALS, GOALS)
            low, high = (f"{end:.0%}".rstrip("%") for end in ends)
            cell = f"{row['success']:.0%}".replace("%", " %")
            if row["policy"] in ("expert", "collective"):
                cell += f" [{low}, {high}]"
            if not any(cell in line for line in page.splitlines() if line.startswith(f"| {row['task']} |")):
                missing.append(f"{file}, {row['task']}, {row['policy']}: {cell}")
    return missing


def missing_steps(page: str, separator: str) -> list[str]:
    """Returns the steps to the target of the transfer runs, by held-out task and kind, that a page does not contain.

    Kinds of which a seed did not reach the target, and those with the same steps for all seeds, are left out, because
    the pages state them in words. `separator` stands between the numbers.
    """
    missing = []
    for path in sorted(RESULTS.glob("learning/metaworld_transfer*/*.json")):
        stored, steps = json.loads(path.read_text()), defaultdict(list)
        for row in stored["rows"]:
            last = row["curve"][-1]
            reached = last["success"] >= stored["target"]
            steps[row["kind"], row["noise"]].append(f"{last['env_steps']:,}" if reached else "")
        for (kind, noise), each in steps.items():
            if all(each) and len(set(each)) > 1 and separator.join(each) not in page:
                missing.append(f"{path.parent.name}/{path.name}, {kind}, {noise}: {separator.join(each)}")
    return missing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    options = parser.parse_args()
    text = json.dumps(published_rows(), indent=1) + "\n"
    if not options.check:
        ROWS.write_text(text)
    wrong = [] if ROWS.read_text() == text else [f"{ROWS.name} is not up to date: run python scripts/results.py"]
    for page in PAGES:
        content = page.read_text()
        absent = [f"{what}: {figure}" for what, figure in texts() if figure not in content]
        absent += missing_cells(content) + missing_steps(content, "、" if "zh-CN" in page.name else ", ")
        wrong += [f"{page.name} does not contain {each}" for each in absent]
    print("\n".join(wrong), end="\n" if wrong else "")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
