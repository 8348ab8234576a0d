"""LIBERO's simulator with two cameras of 128 pixels: ours beside the package as it comes, in one run, one process each.

    python benchmarks/libero_env.py [--steps 48] [--rounds 3] [--json benchmarks/results/libero_env.json]

An action is a step of 1/20 s. The package renders both cameras in every one, with shadows, reflections and
multisampling. Ours without them, frame by frame (what recording demonstrations costs), the same in chunks of 16 actions
of which the last two are seen (what an evaluation costs), and with nothing rendered. All take the same actions from the
same seed; ratios are medians over rounds in which all are timed one after the other.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from powerband.core import rendering
from powerband.core.device import host_facts
from powerband.envs.libero.single import LiberoEnv
from powerband.envs.libero.tasks import task_named

TASK = ("libero_spatial", "0")
CHUNK = 16


def package() -> Callable[[np.ndarray], object]:
    """The environment that LIBERO's own evaluation uses, with its defaults."""
    from libero.libero.envs import OffScreenRenderEnv

    problem = str(task_named(*TASK).problem)
    env = OffScreenRenderEnv(bddl_file_name=problem, camera_heights=128, camera_widths=128)
    env.seed(0)
    env.reset()
    return lambda actions: [env.step(action) for action in actions]


def ours(chunk: int, pixels: int = 128) -> Callable[[np.ndarray], object]:
    """`LiberoEnv`, `chunk` actions at a time."""
    env = LiberoEnv(*TASK, chunk=chunk, pixels=pixels, frames=min(2, chunk), max_steps=1_000_000)
    env.reset(seed=0)
    return lambda actions: [env.step(part) for part in actions.reshape(-1, chunk, 7)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rendered = rendering.prepare().line
    cases = {
        "frame by frame": ours(1),
        f"chunks of {CHUNK}": ours(CHUNK),
        "nothing rendered": ours(CHUNK, pixels=0),
        "the package": package(),
    }
    rng = np.random.default_rng(0)
    rates: dict[str, list[float]] = {name: [] for name in cases}
    for turn in range(given.rounds + 1):
        actions = rng.uniform(-0.3, 0.3, (given.steps, 7)).astype(np.float32)
        for name, step in cases.items():
            begun = time.perf_counter()
            step(actions)
            if turn:  # the first makes the renderers
                rates[name].append(given.steps / (time.perf_counter() - begun))
    rows = []
    for name, found in rates.items():
        ratio = statistics.median(mine / theirs for mine, theirs in zip(found, rates["the package"], strict=True))
        rows.append({"case": name, "steps_per_s": statistics.median(found), "rates": found, "times_the_package": ratio})
        print(f"{name:<18} {rows[-1]['steps_per_s']:7.1f} steps/s, {ratio:5.2f} times the package")
    if given.json:
        facts = {"host": host_facts(), "rendering": rendered, "task": TASK, "pixels": 128, "cameras": 2}
        given.json.write_text(json.dumps({**facts, "steps": given.steps, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
