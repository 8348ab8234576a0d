"""Processes that generate parts of an episode set at the same time as this one, and write them to the disk cache."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial

import torch

from powerband.core.machine.parent_death import signal_at_parent_death
from powerband.core.ranks.meeting import environment_without_launcher
from powerband.recipes.sketchnav.settings import EpisodeConfig, Split

PROGRAM = "powerband.recipes.sketchnav.plans.episodes.parts"
"""Module that the processes run."""
MOST_PROCESSES, PARTS_EACH = 15, 4
"""Largest number of processes, and number of missing parts for which one more is started: its start takes as long as
one or two parts."""


def process_count(missing: int) -> int:
    """Returns the number of processes for `missing` parts. With this process they use at most torch's threads.

    Ranks on the same machine start none, because they generate the same set together.
    """
    if int(os.environ.get("LOCAL_WORLD_SIZE", 1)) > 1:
        return 0
    return min(torch.get_num_threads() - 1, missing // PARTS_EACH, MOST_PROCESSES)


@contextmanager
def part_processes(count: int, scenes: EpisodeConfig, split: Split, seed: int) -> Iterator[None]:
    """Runs `count` processes, each of which begins at another place of the set, and ends them on exit.

    The caller reads what they have written to the cache, and generates the rest itself, whatever happens to them.

    Args:
        count: Number of processes.
        scenes: Distribution of the episodes of the set.
        split: Split of the episodes.
        seed: Seed of the episodes.
    """
    processes: list[subprocess.Popen] = []
    environment = environment_without_launcher()
    environment["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
    environment |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    try:
        for number in range(1, count + 1):
            request = {"scenes": asdict(scenes), "split": split, "seed": seed, "begin": number / (count + 1)}
            processes.append(
                subprocess.Popen(
                    [sys.executable, "-P", "-m", PROGRAM, json.dumps(request)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env=environment,
                    preexec_fn=partial(signal_at_parent_death, signal.SIGKILL),
                )
            )
        yield
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()
