"""Writes the table and the picture of the learning suite from the results that exist; missing rows are named.

    python benchmarks/suite/table.py --table benchmarks/results/suite/table.md --picture docs/pictures/suite.png

The score of a run is its mean return over the final 100 episodes. Ratios and normalised scores put random actions at 0
and the median of the peer at 1. Time is CPU seconds of training on one thread, without evaluations: other programs
that share the machine change it much less than the wall time.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from aggregate import median_curve, normalized_iqm, time_to
from powerband.bench.intervals import median_interval
from rows import POINTS, SYSTEMS, TASKS, Row, Task, all_rows

RESULTS = Path(__file__).parents[1] / "results" / "suite"
LABELS = dict(zip(SYSTEMS, ("powerband", "powerband, tuned", "SB3, Zoo", "SB3"), strict=True))
COLOURS = dict(zip(SYSTEMS, ("#7fb2e5", "#0b4f9e", "#d9480f", "#f5b183"), strict=True))
PEERS = ("sb3-zoo", "sb3")
Results = dict[str, dict[str, list[dict[str, Any]]]]
"""Key of a task -> system -> results of its seeds."""


def load(folder: Path) -> tuple[Results, list[Row]]:
    """Reads the results in a folder, and returns them with the rows that have none."""
    results: Results = {}
    missing = []
    for row in all_rows():
        path = folder / f"{row.name}.json"
        if path.exists():
            results.setdefault(row.task.key, {}).setdefault(row.system, []).append(json.loads(path.read_text()))
        else:
            missing.append(row)
    return results, missing


def scores(rows: list[dict[str, Any]]) -> np.ndarray:
    """Returns the final scores (seeds,) of the runs of one task and system."""
    return np.array([row["final"]["return"] for row in rows])


@dataclass(frozen=True)
class Pair:
    """A system of powerband and a peer on one task.

    Attributes:
        ours, peer: Results of the seeds of both.
        random: Mean return of random actions.
        steps: Budget in environment steps.
    """

    ours: list[dict[str, Any]]
    peer: list[dict[str, Any]]
    random: float
    steps: int

    @property
    def ratio(self) -> float:
        """Median score in units of the peer's median score, both above random actions."""
        ours, peer = np.median(scores(self.ours)), np.median(scores(self.peer))
        return float((ours - self.random) / (peer - self.random))

    @property
    def times(self) -> tuple[float, float, bool]:
        """CPU seconds of both until the median curve reaches the peer's last point, and whether ours does."""
        steps = np.linspace(0, self.steps, POINTS + 1)[1:]
        peer_s, peer_return = median_curve([row["curve"] for row in self.peer], steps)
        ours, reached = time_to(peer_return[-1], *median_curve([row["curve"] for row in self.ours], steps))
        return ours, time_to(peer_return[-1], peer_s, peer_return)[0], reached


def best_peer(systems: dict[str, Any]) -> str:
    """Returns the peer with the higher median score; "" without one."""
    return max(
        (peer for peer in PEERS if peer in systems), key=lambda peer: np.median(scores(systems[peer])), default=""
    )


def pair(task: Task, systems: dict[str, Any], ours: str, peer: str, randoms: dict[str, float]) -> Pair | None:
    """Returns the pair of two systems on a task; None if one has no results."""
    if ours not in systems or peer not in systems:
        return None
    return Pair(systems[ours], systems[peer], randoms[task.name], task.steps)


def defaults(systems: dict[str, Any]) -> tuple[str, str]:
    """Systems of the comparison of defaults."""
    return "powerband", "sb3"


def best_settings(systems: dict[str, Any]) -> tuple[str, str]:
    """Systems of the comparison of best settings: tuned ones where there are any, and the better peer."""
    return "powerband-tuned" if "powerband-tuned" in systems else "powerband", best_peer(systems)


COMPARISONS = {"defaults of both": defaults, "best settings of both": best_settings}


def cell(rows: list[dict[str, Any]] | None, seeds: int) -> str:
    """Formats the median score of a system with its interval, and the number of its seeds if some are missing."""
    if not rows:
        return "missing"
    (low, high), median = median_interval(scores(rows)), float(np.median(scores(rows)))
    return f"{median:,.1f} [{low:,.1f}, {high:,.1f}]" + (f" ({len(rows)} of {seeds} seeds)" * (len(rows) < seeds))


def ratio_and_time(compared: Pair | None) -> tuple[str, str]:
    """Formats the ratio of scores and the ratio of times of a pair."""
    if compared is None:
        return "missing", "missing"
    ours, peer, reached = compared.times
    return f"{compared.ratio:.2f}", f"{ours / peer:.2f}" if reached else f"not reached (> {ours / peer:.2f})"


def overall(name: str, pairs: list[Pair], tasks: int) -> str:
    """Formats the interquartile mean and the geometric mean of the times of one comparison."""
    if not pairs:
        return f"- {name}: no task has results of both.\n"
    ours, peers = [scores(each.ours) for each in pairs], [scores(each.peer) for each in pairs]
    mean, low, high = normalized_iqm(ours, peers, [each.random for each in pairs])
    times = [each.times for each in pairs]
    ratio = float(np.exp(np.mean([np.log(ours / peer) for ours, peer, _ in times])))
    late = sum(not reached for _, _, reached in times)
    bound = f" (a lower bound: {late} tasks do not reach it)" if late else ""
    return (
        f"- {name}, {len(pairs)} of {tasks} tasks: peer-normalised interquartile mean {mean:.3f} "
        f"[{low:.3f}, {high:.3f}]; CPU time to the peer's final score {ratio:.2f} times the peer's in the geometric "
        f"mean{bound}.\n"
    )


def table(results: Results, missing: list[Row], randoms: dict[str, float]) -> str:
    """Returns the Markdown text: one table row per task and algorithm, the overall figures, and what is missing."""
    heads = ["task, algorithm", "env steps", *LABELS.values()]
    heads += [f"{figure}, {name}" for name in COMPARISONS for figure in ("score / peer", "time / peer")]
    lines = [f"| {' | '.join(heads)} |", "|" + " --- |" * len(heads)]
    pairs: dict[str, list[Pair]] = {name: [] for name in COMPARISONS}
    tuned = {row.task.key for row in all_rows() if row.system == "powerband-tuned"}
    for task in TASKS:
        if task.key not in results:
            continue
        systems = results[task.key]
        cells = [f"{task.name}, {task.algo}", f"{task.steps:,}"]
        for system in SYSTEMS:
            absent = (system == "sb3-zoo" and not task.zoo) or (system == "powerband-tuned" and task.key not in tuned)
            cells.append("none" if absent else cell(systems.get(system), task.seeds))
        for name, choose in COMPARISONS.items():
            compared = pair(task, systems, *choose(systems), randoms)
            pairs[name] += [compared] if compared else []
            cells += ratio_and_time(compared)
        lines.append(f"| {' | '.join(cells)} |")
    text = "\n".join(lines) + "\n\n"
    text += "".join(overall(name, found, len(TASKS)) for name, found in pairs.items())
    total = len(missing) + sum(len(rows) for systems in results.values() for rows in systems.values())
    absent = [task.key for task in TASKS if task.key not in results]
    text += f"- {len(missing)} of {total} rows have no result yet. "
    return text + (f"Tasks without any: {', '.join(absent)}.\n" if absent else "Every task has some.\n")


def draw(results: Results, picture: Path) -> None:
    """Draws the median curve of each system with the range over seeds, over steps and over CPU seconds."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    tasks = [task for task in TASKS if task.key in results]
    _, axes = plt.subplots(len(tasks), 2, figsize=(9, 2.4 * len(tasks)), squeeze=False, layout="constrained")
    for task, (left, right) in zip(tasks, axes, strict=True):
        steps = np.linspace(0, task.steps, POINTS + 1)[1:]
        for system, rows in results[task.key].items():
            curves = [row["curve"] for row in rows]
            each = np.array([median_curve([curve], steps)[1] for curve in curves])
            seconds, returns = median_curve(curves, steps)
            style: dict[str, Any] = {"color": COLOURS[system], "label": f"{LABELS[system]} ({len(rows)} seeds)"}
            left.fill_between(steps, each.min(0), each.max(0), color=COLOURS[system], alpha=0.2, linewidth=0)
            left.plot(steps, returns, **style)
            right.plot(seconds, returns, **style)
        left.set(title=f"{task.name}, {task.algo}", xlabel="environment steps", ylabel="return")
        right.set(xlabel="CPU seconds of training")
        left.legend(fontsize=6)
    plt.savefig(picture, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the results")
    parser.add_argument("--table", type=Path, help="Markdown file to write; the table is printed in any case")
    parser.add_argument("--picture", type=Path, help="PNG file to write")
    options = parser.parse_args()
    results, missing = load(options.results)
    text = table(results, missing, json.loads((RESULTS / "random.json").read_text()))
    print(text)
    if options.table:
        options.table.write_text(text)
    if options.picture and results:
        draw(results, options.picture)


if __name__ == "__main__":
    main()
