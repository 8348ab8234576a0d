"""LIBERO's simulator with two cameras of 128 pixels: ours beside the package as it comes, in one run, one process each.

    python benchmarks/libero_env.py [--steps 48] [--rounds 3] [--json benchmarks/results/libero_env.json]

An action is a step of 1/20 s. The package renders both cameras in every one, with shadows, reflections and
multisampling. Ours without them, frame by frame (what recording demonstrations costs), the same with meshes as they
are (quality "plain"), in chunks of 16 actions of which the last two are seen (what an evaluation costs), and with
nothing rendered. All take the same actions from the same seed; ratios are medians over rounds in which all are timed
one after the other.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from powerband.core.machine import rendering
from powerband.core.machine.device import host_facts
from powerband.recipes.libero.env.gymnasium_env import LiberoEnv
from powerband.recipes.libero.env.renderer import Quality
from powerband.recipes.libero.env.tasks import find_task

TASK = ("libero_spatial", "0")
CHUNK = 16


def package() -> Callable[[np.ndarray], object]:
    """The environment that LIBERO's own evaluation uses, with its defaults."""
    from libero.libero.envs import OffScreenRenderEnv

    problem = str(find_task(*TASK).problem)
    env = OffScreenRenderEnv(bddl_file_name=problem, camera_heights=128, camera_widths=128)
    env.seed(0)
    env.reset()
    return lambda actions: [env.step(action) for action in actions]


def ours(chunk: int, pixels: int = 128, quality: Quality = "coarse") -> Callable[[np.ndarray], object]:
    """`LiberoEnv`, `chunk` actions at a time."""
    words = {"chunk": chunk, "frames": min(2, chunk), "pixels": pixels, "quality": quality, "max_steps": 1_000_000}
    env = LiberoEnv(*TASK, **words)
    env.reset(seed=0)
    return lambda actions: [env.step(part) for part in actions.reshape(-1, chunk, 7)]


CASES: dict[str, Callable[[], Callable[[np.ndarray], object]]] = {
    "frame by frame": partial(ours, 1),
    "frame by frame, meshes as they are": partial(ours, 1, quality="plain"),
    f"chunks of {CHUNK}": partial(ours, CHUNK),
    "nothing rendered": partial(ours, CHUNK, pixels=0),
    "the package": package,
}


def serve(case: str, line: Connection) -> None:
    """In a process of its own: takes actions, and says how many seconds they took, on the clock and of the processor.

    The package draws in whichever OpenGL context is current, so that in one process it would draw in one of ours.
    """
    rendering.prepare()
    step = CASES[case]()
    line.send(None)
    while (actions := line.recv()) is not None:
        begun, used = time.perf_counter(), time.process_time()
        step(actions)
        line.send((time.perf_counter() - begun, time.process_time() - used))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rendered = rendering.prepare().line
    context, lines = get_context("spawn"), {}
    for case in CASES:
        lines[case], theirs = context.Pipe()
        context.Process(target=serve, args=(case, theirs), daemon=True).start()
        lines[case].recv()
    rng = np.random.default_rng(0)
    rates: dict[str, list[float]] = {case: [] for case in CASES}
    loads: dict[str, list[float]] = {case: [] for case in CASES}
    for turn in range(given.rounds + 1):
        actions = rng.uniform(-0.3, 0.3, (given.steps, 7)).astype(np.float32)
        for case, line in lines.items():
            line.send(actions)
            seconds, processor = line.recv()
            if turn:  # the first warms up
                rates[case].append(given.steps / seconds)
                loads[case].append(1000 * processor / given.steps)
    for line in lines.values():
        line.send(None)
    rows = []
    for case, found in rates.items():
        ratio = statistics.median(mine / theirs for mine, theirs in zip(found, rates["the package"], strict=True))
        row = {"case": case, "steps_per_s": statistics.median(found), "rates": found, "times_the_package": ratio}
        rows.append(row | {"processor_ms_per_step": statistics.median(loads[case])})
        print(
            f"{case:<34} {row['steps_per_s']:7.1f} steps/s, {ratio:5.2f} times the package; "
            f"{rows[-1]['processor_ms_per_step']:6.1f} ms of a processor a step"
        )
    if given.json:
        facts = {"host": host_facts(), "rendering": rendered, "task": TASK, "pixels": 128, "cameras": 2}
        given.json.write_text(json.dumps({**facts, "steps": given.steps, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
