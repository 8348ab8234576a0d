"""LIBERO behind the VecEnv protocol: simulators in supervised worker processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from powerband.core.device import cores
from powerband.envs.libero.single import make_libero
from powerband.envs.supervision import Fault, Supervision
from powerband.envs.vector import WorkerVecEnv

FIGURES = ("success", "steps")


def libero_envs(
    rows: Sequence[dict[str, Any]],
    num_workers: int = -1,
    *,
    device: torch.device | str = "cpu",
    seed: int = 0,
    supervision: Supervision | None = None,
    tell: Callable[[Fault], object] | None = None,
) -> WorkerVecEnv:
    """One simulation a row; ``Step.episode`` has ``success`` and ``steps``, the actions of the episode.

    Args:
        rows: Words of `LiberoEnv` for each row; what is observed is alike in all.
        num_workers: Worker processes; -1 is one a core, 0 steps in this process.
        device: Where observations are delivered.
        seed: Seed of the run: draws where objects stand.
        supervision, tell: As `WorkerVecEnv`.
    """
    workers = min(len(rows), cores() if num_workers < 0 else num_workers)
    return WorkerVecEnv(
        [(make_libero, words) for words in rows],
        num_workers=workers,
        device=device,
        seed=seed,
        figures=FIGURES,
        resume="truncated",
        supervision=supervision,
        tell=tell,
    )
