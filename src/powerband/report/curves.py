"""Reads a run's metrics and draws its curves."""

from __future__ import annotations

import json
import math
from pathlib import Path

PREFERRED = (
    "charts/episodic_return",
    "charts/win",
    "charts/score",
    "eval/",
    "charts/SPS",
    "losses/",
    "perf/share/",
)


def read_metrics(run_dir: Path) -> list[dict]:
    """Lines of ``metrics.jsonl``, oldest first; a torn last line (a run killed while writing) is left out.

    Raises:
        ValueError: The folder has no metrics.
    """
    path = run_dir / "metrics.jsonl"
    if not path.exists():
        raise ValueError(f"{run_dir} has no metrics.jsonl: it is not a run folder, or nothing was logged yet.")
    lines = []
    for text in path.read_text().splitlines():
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError:
            continue
    return lines


def series(metrics: list[dict], tag: str) -> tuple[list[float], list[float]]:
    """Environment steps and values of one tag where it was logged and is finite."""
    points = [(line["env_steps"], line[tag]) for line in metrics if isinstance(line.get(tag), int | float)]
    points = [(x, y) for x, y in points if math.isfinite(y)]
    return [x for x, _ in points], [y for _, y in points]


def curve_tags(metrics: list[dict]) -> list[str]:
    """Tags worth drawing, in the order in which a reader asks for them."""
    tags = {tag for line in metrics for tag, value in line.items() if "/" in tag and isinstance(value, int | float)}
    ordered = [tag for start in PREFERRED for tag in sorted(tags) if tag.startswith(start)]
    return list(dict.fromkeys(ordered))


def draw_curves(run_dir: Path, path: Path, limit: int = 12) -> Path:
    """Writes a PNG with one panel a tag (at most `limit`) against environment steps; returns `path`."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    metrics = read_metrics(run_dir)
    tags = curve_tags(metrics)[:limit]
    columns = min(3, max(1, len(tags)))
    rows = max(1, math.ceil(len(tags) / columns))
    figure, axes = plt.subplots(rows, columns, figsize=(4.6 * columns, 2.9 * rows), squeeze=False)
    for axis in axes.flat[len(tags) :]:
        axis.set_axis_off()
    for axis, tag in zip(axes.flat, tags, strict=False):
        steps, values = series(metrics, tag)
        axis.plot(steps, values, color="#1f6f8b", linewidth=1.6, marker="o" if len(steps) < 12 else None, markersize=3)
        axis.set_title(tag, fontsize=9, loc="left")
        axis.grid(alpha=0.25)
        axis.tick_params(labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
        axis.ticklabel_format(axis="x", style="sci", scilimits=(0, 4))
        axis.xaxis.get_offset_text().set_fontsize(8)
        axis.set_xlabel("env steps", fontsize=8)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path
