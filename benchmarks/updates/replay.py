"""CPU time of sampling a batch from the packed replay buffer, compared with the one of Stable-Baselines3.

python benchmarks/updates/replay.py --json benchmarks/results/updates/replay.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from powerband.core.noise import NoiseSource
from powerband.data.replay import Replay
from powerband.data.types import TensorSpec

ROWS, INPUTS, ACTIONS = 100_000, 39, 4
"""Transitions in the buffer, length of an observation, length of an action."""


def median_us(samplers: dict[str, Callable[[], object]], rounds: int, count: int) -> dict[str, float]:
    """Returns the CPU microseconds per call of each function, median over interleaved rounds of `count` calls."""
    times: dict[str, list[float]] = {name: [] for name in samplers}
    for index in range(rounds + 1):
        for name, sample in samplers.items():
            start = time.process_time()
            for _ in range(count):
                sample()
            if index:  # round 0 warms up
                times[name].append((time.process_time() - start) / count * 1e6)
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=Path, help="file for the results")
    parser.add_argument("--batch", type=int, default=256, help="transitions per batch")
    parser.add_argument("--rounds", type=int, default=9, help="interleaved rounds")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    vector, scalar, flag = TensorSpec((INPUTS,)), TensorSpec(()), TensorSpec((), torch.bool)
    fields = {"obs": vector, "next_obs": vector, "action": TensorSpec((ACTIONS,)), "reward": scalar, "terminated": flag}
    replay = Replay(ROWS, 1000, "cpu", fields)
    for _ in range(ROWS // 1000):
        replay.add(
            {
                "obs": torch.randn(1000, INPUTS),
                "next_obs": torch.randn(1000, INPUTS),
                "action": torch.randn(1000, ACTIONS),
                "reward": torch.randn(1000),
                "terminated": torch.zeros(1000, dtype=torch.bool),
            }
        )
    generator, noise = torch.Generator().manual_seed(0), NoiseSource(0)("replay", arguments.batch)
    samplers: dict[str, Callable[[], object]] = {
        "packed, generator": lambda: replay.sample(arguments.batch, generator),
        "packed, noise": lambda: replay.sample(arguments.batch, noise),
    }
    try:
        import gymnasium
        from stable_baselines3.common.buffers import ReplayBuffer

        box = gymnasium.spaces.Box(-1.0, 1.0, (INPUTS,), np.float32)
        buffer = ReplayBuffer(ROWS, box, gymnasium.spaces.Box(-1.0, 1.0, (ACTIONS,), np.float32), device="cpu")
        buffer.full = True
        samplers["sb3"] = lambda: buffer.sample(arguments.batch)
    except ImportError:
        print("stable_baselines3 is not installed. Install it with pip install 'powerband[peers]' to measure it.")
    times = median_us(samplers, arguments.rounds, 300)
    for name, value in times.items():
        print(f"{name:20s} {value:8.1f} us per batch of {arguments.batch}")
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps({"batch": arguments.batch, "cpu_us": times}, indent=2) + "\n")


if __name__ == "__main__":
    main()
