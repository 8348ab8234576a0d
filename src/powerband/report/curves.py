"""A run's metrics as curves: reading them, choosing what is worth drawing, smoothing and thinning it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

LEARNING = ("charts/episodic_return", "charts/win", "charts/score", "eval/", "charts/")
LOSSES = ("losses/",)
APART = ("charts/SPS", "charts/updates_per_s")
"""Rates: they belong to the machine's curves."""
BOUNDS = ("_low", "_high")
POINTS = 300
"""Points of a curve on a page."""


def read_metrics(run_dir: Path) -> list[dict]:
    """Lines of ``metrics.jsonl``, oldest first; a torn last line (a run killed while writing) is left out.

    Raises:
        ValueError: The folder has no metrics.
    """
    path = run_dir / "metrics.jsonl"
    if not path.exists():
        raise ValueError(f"{run_dir} has no metrics.jsonl: it is not a run folder, or nothing was logged yet.")
    lines = []
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError:
            continue
    return lines


def series(metrics: list[dict], tag: str, over: str = "env_steps") -> tuple[list[float], list[float]]:
    """`over` (env_steps or time_s) and values of one tag where it was logged and is finite."""
    points = [(line[over], line[tag]) for line in metrics if _is_figure(line.get(tag))]
    points = [(x, y) for x, y in points if math.isfinite(y)]
    return [x for x, _ in points], [y for _, y in points]


def curve_tags(metrics: list[dict], starts: tuple[str, ...]) -> list[str]:
    """Tags that begin with one of `starts`, in the order in which a reader asks for them; no bounds, no rates."""
    tags = {tag for line in metrics for tag, value in line.items() if "/" in tag and _is_figure(value)}
    tags = {tag for tag in tags if not tag.endswith(BOUNDS) and tag not in APART}
    return list(dict.fromkeys(tag for start in starts for tag in sorted(tags) if tag.startswith(start)))


def is_constant(metrics: list[dict], tag: str) -> bool:
    """True where a tag has one value only, several times: a line that says nothing."""
    values = series(metrics, tag)[1]
    return len(values) > 1 and min(values) == max(values)


def smoothed(values: list[float], points: float) -> list[float]:
    """Exponential mean over about `points` values, without the pull of its start."""
    keep, mean, weight, out = 1 - 2 / (max(points, 1.0) + 1), 0.0, 0.0, []
    for value in values:
        mean, weight = keep * mean + (1 - keep) * value, keep * weight + (1 - keep)
        out.append(mean / weight)
    return out


def span(count: int) -> int:
    """Values that a curve of `count` values is smoothed over: a twentieth of them, none below 20."""
    return max(1, count // 20) if count >= 20 else 1


def thinned(xs: list[float], ys: list[float], limit: int = POINTS) -> tuple[list[float], list[float]]:
    """At most about `limit` points: means of neighbours; the last point stays the last."""
    size = math.ceil(len(xs) / limit)
    if size <= 1:
        return xs, ys
    starts = range(0, len(xs), size)
    return [xs[min(i + size, len(xs)) - 1] for i in starts], [_mean(ys[i : i + size]) for i in starts]


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _is_figure(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
