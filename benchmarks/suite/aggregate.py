"""Statistics of the learning suite: interquartile means, bootstrap intervals and times to a score.

The interquartile mean and its stratified bootstrap follow Agarwal et al. 2021, "Deep RL at the edge of the statistical
precipice" (rliable): seeds are resampled within each task. Tasks with unequal numbers of seeds have equal weights here.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from powerband.bench.intervals import bootstrap_interval


def iqm(scores: Sequence[np.ndarray]) -> float:
    """Returns the mean of the middle half of all scores.

    Runs that lie partly in the middle half count with that part. With equally many seeds per task and a number of runs
    that is a multiple of four, this is rliable's interquartile mean.

    Args:
        scores: For each task the scores (seeds,) of its runs; each task has the same weight.
    """
    values = np.concatenate(scores)
    weights = np.concatenate([np.full(len(each), 1.0 / len(each)) for each in scores]) / len(scores)
    order = np.argsort(values)
    upper = np.cumsum(weights[order])
    inside = np.clip(np.minimum(upper, 0.75) - np.maximum(upper - weights[order], 0.25), 0, None)
    return float((inside * values[order]).sum() / inside.sum())


def normalized(ours: np.ndarray, peers: np.ndarray, random: float) -> np.ndarray:
    """Returns scores (seeds,) in units in which random actions have 0 and the median of the peers' runs has 1."""
    return (ours - random) / (np.median(peers) - random)


def normalized_iqm(
    ours: Sequence[np.ndarray], peers: Sequence[np.ndarray], randoms: Sequence[float]
) -> tuple[float, float, float]:
    """Returns (value, low, high) of the peer-normalised interquartile mean over tasks and seeds.

    The bootstrap resamples the seeds of both systems within each task.

    Args:
        ours: For each task the scores (seeds,).
        peers: For each task the scores (seeds,) of the peer.
        randoms: For each task the mean score of random actions.
    """
    count = len(ours)

    def statistic(groups: Sequence[np.ndarray]) -> float:
        pairs = zip(groups[:count], groups[count:], randoms, strict=True)
        return iqm([normalized(each, peer, random) for each, peer, random in pairs])

    groups = [*ours, *peers]
    return statistic(groups), *bootstrap_interval(statistic, groups)


def median_curve(curves: Sequence[Sequence[dict[str, float]]], steps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the medians over seeds of (CPU seconds, return) at `steps` (n,), by linear interpolation.

    Args:
        curves: For each seed its points with env_steps, cpu_s and return.
        steps: Environment steps.
    """
    tables = {
        key: np.array([np.interp(steps, [p["env_steps"] for p in curve], [p[key] for p in curve]) for curve in curves])
        for key in ("cpu_s", "return")
    }
    return np.median(tables["cpu_s"], 0), np.median(tables["return"], 0)


def time_to(target: float, seconds: np.ndarray, returns: np.ndarray) -> tuple[float, bool]:
    """Returns the seconds at which a curve first reaches a target, and whether it does.

    A curve that stays below the target gets its last second, a lower bound.
    """
    reached = np.flatnonzero(returns >= target)
    return (float(seconds[reached[0]]), True) if len(reached) else (float(seconds[-1]), False)
