"""What the guard costs: runs of the real loops with it and without it, in turns, by processor time.

    python benchmarks/guard.py --json benchmarks/results/guard.json

Without: `Guard.watch`, `hold`, `tick` and the loop's `Learning` do nothing but call the learner. The figure is the
median over rounds of the processor time with it over that without it; one call by itself is timed beside it.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from powerband import cli
from powerband.core.device import host_facts
from powerband.core.distributed import Ranks
from powerband.core.guard import Guard
from powerband.loops.learning import Learning

COMMON = "gpus=none threads=1 tensorboard=false log_interval_s=1000"
LOOPS = {
    "snakes/ddpg": f"snakes algo=ddpg ddpg.hidden=64 global_batch_size=64 warmup=200 env_steps=1200 {COMMON}",
    "gym/sac 64x64": f"gym variant=pendulum env_steps=1500 {COMMON}",
    "gym/ppo": f"gym variant=cartpole env_steps=20000 {COMMON}",
}
"""Small networks: what an update costs beside the guard is least there."""


@contextlib.contextmanager
def without() -> Any:
    """The loops as if there was no guard."""
    kept = {name: getattr(Guard, name) for name in ("watch", "hold", "tick")}
    calls = Learning.act, Learning.update
    for name in kept:
        setattr(Guard, name, lambda self, *given: None)
    Learning.act = lambda self, obs, carry, explore=True: self.learner.act(obs, carry, explore=explore)
    Learning.update = lambda self, batch, whole=None: self.learner.update(batch)
    try:
        yield
    finally:
        for name, method in kept.items():
            setattr(Guard, name, method)
        Learning.act, Learning.update = calls


def run(words: str) -> float:
    """Processor seconds of one run in this process."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        start = time.process_time()
        assert cli.main(["train", *words.split(), f"run_dir={folder}/run"]) == 0
        return time.process_time() - start


def call_us(count: int = 20_000) -> float:
    """Microseconds of `hold` and `watch` for an update with eight figures."""
    guard, batch, names = Guard(Ranks()), {"obs": torch.zeros(4)}, tuple("abcdefgh")
    figures = torch.rand(8, dtype=torch.float64)
    times = []
    for _ in range(9):
        start = time.process_time()
        for _ in range(count):
            guard.hold(batch)
            guard.watch(names, figures)
        times.append((time.process_time() - start) / count)
    return statistics.median(times) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    result: dict[str, Any] = {"host": host_facts(), "watch_us": call_us(), "loops": {}}
    print(f"hold and watch: {result['watch_us']:.2f} us an update")
    for name, words in LOOPS.items():
        run(words)  # compiles, imports
        ratios, seconds = [], []
        for index in range(options.rounds):
            pair = {}
            for guarded in (True, False) if index % 2 else (False, True):
                with contextlib.nullcontext() if guarded else without():
                    pair[guarded] = run(words)
            ratios.append(pair[True] / pair[False])
            seconds.append(pair[False])
        ratio = statistics.median(ratios)
        result["loops"][name] = {"words": words, "ratio": ratio, "ratios": ratios, "seconds": seconds}
        print(f"{name:<14} {ratio - 1:+.2%} (rounds {min(ratios) - 1:+.2%} to {max(ratios) - 1:+.2%})")
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
