"""Steps per second of LIBERO simulations with two cameras of 128 pixels, compared with the LIBERO package.

    python benchmarks/environments/libero_env.py [--steps 48] [--rounds 3] [
        --json benchmarks/results/environments/libero_env.json]

An action lasts 1/20 s. The package renders both cameras after every action, with shadows, reflections and
multisampling. powerband renders without these effects, in four cases:

- every frame, as for recording demonstrations;
- every frame with the original meshes (quality "plain");
- the last two frames of a chunk of 16 actions, as for evaluations;
- no frames.

Each case runs in a separate process with the same actions and the same seed. Each round measures all cases one after
the other, and ratios are medians over rounds.
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


def make_package_env() -> Callable[[np.ndarray], object]:
    """Returns a function that executes actions in the environment of LIBERO's own evaluation, with its defaults."""
    from libero.libero.envs import OffScreenRenderEnv

    problem = str(find_task(*TASK).problem)
    env = OffScreenRenderEnv(bddl_file_name=problem, camera_heights=128, camera_widths=128)
    env.seed(0)
    env.reset()
    return lambda actions: [env.step(action) for action in actions]


def make_env(chunk: int, pixels: int = 128, quality: Quality = "coarse") -> Callable[[np.ndarray], object]:
    """Returns a function that executes actions in a `LiberoEnv`, in steps of `chunk` actions."""
    options = {"chunk": chunk, "frames": min(2, chunk), "pixels": pixels, "quality": quality, "max_steps": 1_000_000}
    env = LiberoEnv(*TASK, **options)
    env.reset(seed=0)
    return lambda actions: [env.step(part) for part in actions.reshape(-1, chunk, 7)]


CASES: dict[str, Callable[[], Callable[[np.ndarray], object]]] = {
    "frame by frame": partial(make_env, 1),
    "frame by frame, meshes as they are": partial(make_env, 1, quality="plain"),
    f"chunks of {CHUNK}": partial(make_env, CHUNK),
    "nothing rendered": partial(make_env, CHUNK, pixels=0),
    "the package": make_package_env,
}


def serve(case: str, connection: Connection) -> None:
    """Executes the actions that it receives, and sends the seconds of wall time and of CPU time that they took.

    Each case has its own process. In a shared process, the package would render in powerband's OpenGL context.
    """
    rendering.prepare()
    step = CASES[case]()
    connection.send(None)
    while (actions := connection.recv()) is not None:
        wall, cpu = time.perf_counter(), time.process_time()
        step(actions)
        connection.send((time.perf_counter() - wall, time.process_time() - cpu))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=48, help="actions per round")
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds")
    parser.add_argument("--json", type=Path, help="file for the results")
    options = parser.parse_args()
    renderer = rendering.prepare().line
    context, connections = get_context("spawn"), {}
    for case in CASES:
        connections[case], remote = context.Pipe()
        context.Process(target=serve, args=(case, remote), daemon=True).start()
        connections[case].recv()
    rng = np.random.default_rng(0)
    rates: dict[str, list[float]] = {case: [] for case in CASES}
    cpu_ms: dict[str, list[float]] = {case: [] for case in CASES}
    for index in range(options.rounds + 1):
        actions = rng.uniform(-0.3, 0.3, (options.steps, 7)).astype(np.float32)
        for case, connection in connections.items():
            connection.send(actions)
            wall_s, cpu_s = connection.recv()
            if index:  # round 0 warms up
                rates[case].append(options.steps / wall_s)
                cpu_ms[case].append(1000 * cpu_s / options.steps)
    for connection in connections.values():
        connection.send(None)
    rows = []
    for case, values in rates.items():
        ratio = statistics.median(rate / package for rate, package in zip(values, rates["the package"], strict=True))
        row = {"case": case, "steps_per_s": statistics.median(values), "rates": values, "times_the_package": ratio}
        rows.append(row | {"processor_ms_per_step": statistics.median(cpu_ms[case])})
        print(
            f"{case:<34} {row['steps_per_s']:7.1f} steps/s, {ratio:5.2f} times the package; "
            f"{rows[-1]['processor_ms_per_step']:6.1f} ms of CPU time per step"
        )
    if options.json:
        facts = {"host": host_facts(), "rendering": renderer, "task": TASK, "pixels": 128, "cameras": 2}
        options.json.write_text(json.dumps({**facts, "steps": options.steps, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
