"""Figures of a window that the run and its environments give."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from powerband.core.machine import memory
from powerband.core.machine.device import cores
from powerband.core.run.run import Run
from powerband.data.types import tree_leaves
from powerband.tune.measure import probes
from powerband.tune.measure.cpu_time import CpuMeter


@dataclass(frozen=True)
class WindowStart:
    """State of a run at the beginning of a window.

    Attributes:
        env_steps, grad_steps, ticks: Environment steps, updates and iterations so far.
        workers: Statistics of the workers of the environments; None without workers.
        meter: Use of the processors since then.
    """

    env_steps: int
    grad_steps: int
    ticks: int
    workers: dict[str, Any] | None
    meter: CpuMeter


def run_figures(run: Run, begun: WindowStart, ticks: int) -> dict[str, Any]:
    """Returns the figures of the window that the run and its environments give, for `WindowFacts`.

    Args:
        run: Run whose window ends now.
        begun: Its state when the window began.
        ticks: Iterations so far.
    """
    env = run.registered("env")
    facts: dict[str, Any] = {
        "iterations": ticks - begun.ticks,
        "env_steps": run.env_steps - begun.env_steps,
        "grad_steps": run.grad_steps - begun.grad_steps,
        "world_size": run.ranks.world_size,
        "cores": cores(),
        "threads": torch.get_num_threads(),
        "precision": run.settings.precision,
        "sync_s": probes.measure_sync_s(run.device),
        "memory_bytes": memory.peak(run.device),
    }
    if env is None:
        return facts
    leaves = tree_leaves(env.spec.obs)
    facts |= {
        "num_envs": env.num_envs,
        "overlappable": env.spec.overlappable,
        "can_overlap": env.spec.overlappable and run.registered("replay") is not None,
        "overlap": run.settings.overlap and env.spec.overlappable,
        "image_obs": any(leaf.dtype == torch.uint8 and len(leaf.shape) >= 3 for leaf in leaves),
    }
    now, then = worker_statistics(run), begun.workers
    if now is None or then is None:
        return facts
    steps = facts["env_steps"] / max(1, run.ranks.world_size * env.num_envs)
    spent = [b - a for a, b in zip(then["spent_s"], now["spent_s"], strict=True)]
    return facts | {
        "env_step_s": [seconds / max(steps, 1) for seconds in spent],
        "env_worst_s": now["worst_s"],
        "worker_rows": now["worker_rows"],
        "env_cpu_s": sum(now["cpu_s"]) - sum(then["cpu_s"]),
        "renderer": now["renderer"] or "",
    }


def worker_statistics(run: Run) -> dict[str, Any] | None:
    """Returns the statistics of the workers of the environments; None without workers."""
    env = run.registered("env")
    return None if env is None else env.worker_statistics() or None
