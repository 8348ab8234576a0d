"""Defines the options of ``powerband eval`` for a run of uav, without importing torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from powerband.core.config.ranges import Seed, Size, Threads, check_ranges
from powerband.recipes.uav.settings import Agents, CommRange

OLD_EVALUATION_NAMES = {"missions": "episodes", "planners": "policies", "threads": "workers"}


@dataclass(frozen=True)
@check_ranges
class Evaluation:
    """Options of ``powerband eval`` for a run of uav."""

    episodes: Size = 100
    """Missions of each policy and planner; all of them fly the same missions."""
    policies: tuple[str, ...] = ("random", "lawnmower", "greedy")
    """Planners to compare the run's policy with: random, lawnmower (once per altitude), greedy, the folder of another
    run, or none."""
    n_agents: tuple[Agents, ...] = ()
    """Numbers of UAVs per team; empty uses the number of the run."""
    comm_range_m: tuple[CommRange, ...] = ()
    """Communication ranges in metres; empty uses the range of the run, or its random ranges (random_comm_range)."""
    seed: Seed = 10_000
    """Seed of the missions; training uses other seeds."""
    video: bool = True
    """Draw the first mission of the run's policy as an image and a video."""
    gpus: str = "none"
    """Device of the policy: none for the CPU, or the index of one GPU, such as 0."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Precision of the networks."""
    workers: Threads = 0
    """CPU threads of the missions and of the policy; 0 is the number of the run (threads)."""
