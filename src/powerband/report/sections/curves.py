"""Curves of a run: reads metrics, selects the tags to draw, smooths and downsamples their values."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from powerband.core.errors import ConfigError
from powerband.core.telemetry.metrics_file import MetricsReader

LEARNING_PREFIXES = ("charts/episodic_return", "charts/win", "charts/score", "eval/", "charts/")
LOSS_PREFIXES = ("losses/",)
RATE_TAGS = ("charts/SPS", "charts/updates_per_s")
"""Tags of rates, which the page draws in the section on the utilisation of the machine."""
TITLES = {f"charts/{name}": f"charts/{name}, share of the training's episodes" for name in ("win", "draw", "loss")}
"""Tag -> title of its chart, where the tag alone could be misunderstood; ``charts/loss`` is no loss of an update."""
BOUND_SUFFIXES = ("_low", "_high")
MAX_POINTS = 300
"""Largest number of points of a curve on a page."""


def read_metrics(run_dir: Path) -> list[dict]:
    """Reads ``metrics.jsonl``. Damaged lines are skipped, such as the last one of a run that was killed.

    Args:
        run_dir: The run folder.

    Returns:
        One dict per line (log interval), the oldest first.

    Raises:
        ConfigError: The folder has no metrics.
    """
    return read_lines(run_dir)[0]


def read_lines(run_dir: Path) -> tuple[list[dict], str]:
    """As `read_metrics`, and returns a note about the damaged lines too, or ""."""
    reader = MetricsReader(run_dir / "metrics.jsonl")
    try:
        # Evaluations of checkpoints are written when they end, after lines with more steps.
        return sorted(reader.read(ended=True), key=lambda line: line["env_steps"]), reader.note
    except FileNotFoundError as error:
        raise ConfigError(
            f"{run_dir} has no metrics.jsonl: it is not a run folder, or the run has logged nothing yet. Name a run "
            f"folder that contains this file."
        ) from error
    except OSError as error:
        raise ConfigError(f"{reader.path} cannot be read ({error.strerror}). Name another run folder.") from error


def series(metrics: list[dict], tag: str, over: str = "env_steps") -> tuple[list[float], list[float]]:
    """Selects the logged, finite values of one metric.

    Args:
        metrics: Lines of ``metrics.jsonl``, one dict per log interval.
        tag: Name of the metric, such as ``eval/return``.
        over: Key of the x axis: ``env_steps``, or ``time_s`` for seconds of wall time.

    Returns:
        (coordinates on the x axis, values of the metric).
    """
    points = [(line[over], line[tag]) for line in metrics if _is_number(line.get(tag))]
    points = [(x, y) for x, y in points if math.isfinite(y)]
    return [x for x, _ in points], [y for _, y in points]


def curve_tags(metrics: list[dict], prefixes: tuple[str, ...]) -> list[str]:
    """Selects the tags (names of metrics) to draw by prefix, without rates and without bounds of intervals.

    Args:
        metrics: Lines of ``metrics.jsonl``, one dict per log interval.
        prefixes: Prefixes of the tags, the most important first.

    Returns:
        Tags in the order of `prefixes`, then by name.
    """
    tags = {tag for line in metrics for tag, value in line.items() if "/" in tag and _is_number(value)}
    tags = {tag for tag in tags if not tag.endswith(BOUND_SUFFIXES) and tag not in RATE_TAGS}
    return list(dict.fromkeys(tag for prefix in prefixes for tag in sorted(tags) if tag.startswith(prefix)))


def is_constant(metrics: list[dict], tag: str) -> bool:
    """Returns whether a metric has at least two values and all are equal, so that its curve would be a flat line.

    Args:
        metrics: Lines of ``metrics.jsonl``, one dict per log interval.
        tag: Name of the metric, such as ``eval/return``.
    """
    values = series(metrics, tag)[1]
    return len(values) > 1 and min(values) == max(values)


def exponential_mean(values: list[float], points: float) -> list[float]:
    """Computes the exponential mean over about `points` values, with bias correction at the start.

    Args:
        values: Values to smooth.
        points: Length of the mean; the decay is 1 - 2 / (points + 1).
    """
    decay, mean, weight, means = 1 - 2 / (max(points, 1.0) + 1), 0.0, 0.0, []
    for value in values:
        mean, weight = decay * mean + (1 - decay) * value, decay * weight + (1 - decay)
        means.append(mean / weight)
    return means


def smoothing_points(count: int) -> int:
    """Returns the length of the mean that smooths a curve of `count` values: a twentieth of them, 1 below 20 values."""
    return max(1, count // 20) if count >= 20 else 1


def downsample(xs: list[float], ys: list[float], limit: int = MAX_POINTS) -> tuple[list[float], list[float]]:
    """Reduces a curve to at most `limit` points by averaging neighbours.

    Args:
        xs: Coordinates on the x axis.
        ys: Values.
        limit: Largest number of points.

    Returns:
        (xs, ys) of the reduced curve. Each point has the last x of its neighbours and the mean of their values.
    """
    size = math.ceil(len(xs) / limit)
    if size <= 1:
        return xs, ys
    starts = range(0, len(xs), size)
    return [xs[min(i + size, len(xs)) - 1] for i in starts], [_mean(ys[i : i + size]) for i in starts]


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
