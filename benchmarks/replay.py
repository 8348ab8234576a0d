"""Microseconds of CPU time to sample a batch: the packed replay against Stable-Baselines3's.

python benchmarks/replay.py --json benchmarks/results/replay.json
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

ROWS, INPUTS, DIM = 100_000, 39, 4


def median_us(draws: dict[str, Callable[[], object]], turns: int, count: int) -> dict[str, float]:
    """CPU microseconds a call, median over turns; the sides take turns."""
    times: dict[str, list[float]] = {name: [] for name in draws}
    for turn in range(turns + 1):
        for name, draw in draws.items():
            start = time.process_time()
            for _ in range(count):
                draw()
            if turn:
                times[name].append((time.process_time() - start) / count * 1e6)
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--turns", type=int, default=9)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    vector, scalar, flag = TensorSpec((INPUTS,)), TensorSpec(()), TensorSpec((), torch.bool)
    fields = {"obs": vector, "next_obs": vector, "action": TensorSpec((DIM,)), "reward": scalar, "terminated": flag}
    replay = Replay(ROWS, 1000, "cpu", fields)
    for _ in range(ROWS // 1000):
        replay.add(
            {
                "obs": torch.randn(1000, INPUTS),
                "next_obs": torch.randn(1000, INPUTS),
                "action": torch.randn(1000, DIM),
                "reward": torch.randn(1000),
                "terminated": torch.zeros(1000, dtype=torch.bool),
            }
        )
    generator, noise = torch.Generator().manual_seed(0), NoiseSource(0)("replay", arguments.batch)
    draws: dict[str, Callable[[], object]] = {
        "packed, generator": lambda: replay.sample(arguments.batch, generator),
        "packed, noise": lambda: replay.sample(arguments.batch, noise),
    }
    try:
        import gymnasium
        from stable_baselines3.common.buffers import ReplayBuffer

        box = gymnasium.spaces.Box(-1.0, 1.0, (INPUTS,), np.float32)
        peer = ReplayBuffer(ROWS, box, gymnasium.spaces.Box(-1.0, 1.0, (DIM,), np.float32), device="cpu")
        peer.full = True
        draws["sb3"] = lambda: peer.sample(arguments.batch)
    except ImportError:
        print("stable_baselines3 is not installed: pip install 'powerband[peers]' to compare with it")
    times = median_us(draws, arguments.turns, 300)
    for name, value in times.items():
        print(f"{name:20s} {value:8.1f} us a batch of {arguments.batch}")
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps({"batch": arguments.batch, "cpu_us": times}, indent=2) + "\n")


if __name__ == "__main__":
    main()
