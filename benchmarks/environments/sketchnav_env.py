"""Frame rate of sketchnav's ray caster, compared with MiniWorld, MuJoCo and a plain numpy renderer.

    python benchmarks/environments/sketchnav_env.py [--seconds 2] [--rounds 5] [--pixels 64] [--threads 2] \
        [--json out.json]
    python benchmarks/environments/sketchnav_env.py --device cuda --agents 128 1024 8192 [--json out.json]

A frame of sketchnav is one action with its RGB-D image, motion, collision test, path length, reward and episode end.
The baselines are:

- MiniWorld's FourRooms (`pip install miniworld`), with RGB only and its own physics;
- MuJoCo with the same plans, with RGB and depth but without physics;
- the numpy renderer of the tests, with one ray per pixel.

The baselines use one thread; sketchnav uses one thread and `--threads`. Each round measures all renderers one after the
other, and a ratio is the median over rounds. All renderers run in one process. With `--device cuda` only sketchnav
runs, on the device, with each number of agents in turn.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from powerband.core.machine import rendering  # noqa: E402

rendering.prepare()  # before MuJoCo is imported

import numpy as np  # noqa: E402
import torch  # noqa: E402

from powerband.core.machine.device import host_facts  # noqa: E402
from powerband.doctor.stopwatch import synchronize  # noqa: E402
from powerband.recipes.sketchnav.env.env import SketchNavEnv  # noqa: E402
from powerband.recipes.sketchnav.mujoco.scene import MujocoRenderer  # noqa: E402
from powerband.recipes.sketchnav.plans.episodes.episodes import COORDINATE_UNIT_M, EpisodeConfig, Episodes  # noqa: E402
from powerband.recipes.sketchnav.plans.episodes.generation import generate_episodes  # noqa: E402
from recipes.sketchnav.env import reference  # noqa: E402

ROWS = 128
STEPS = 10
"""Steps on a device between two readings of the clock, at which the device has finished."""


def sketchnav(
    episodes: Episodes, pixels: int, threads: int, rows: int = ROWS, device: str = "cpu"
) -> Callable[[], int]:
    """Returns a function that takes random actions of `rows` agents, including STOP."""
    env = SketchNavEnv(rows, episodes, pixels=pixels, threads=threads, device=device)
    generator = torch.Generator(device).manual_seed(0)
    weight = torch.tensor([0.005, 0.5, 0.25, 0.245], device=device)

    def step() -> int:
        env.step(torch.multinomial(weight, rows, replacement=True, generator=generator))
        return rows

    return step


def mujoco(episodes: Episodes, pixels: int) -> Callable[[], int]:
    """Returns a function that renders RGB and depth of one plan at the start of an episode."""
    renderer, rng = MujocoRenderer(episodes.plan_cells(0), pixels), np.random.default_rng(0)
    places = episodes.start[episodes.plan == 0][:, :2].numpy() * COORDINATE_UNIT_M

    def step() -> int:
        x, y = places[rng.integers(len(places))]
        renderer.render(float(x), float(y), float(rng.uniform(0, 2 * math.pi)))
        return 1

    return step


def numpy_rays(episodes: Episodes, pixels: int) -> Callable[[], int]:
    """Returns a function that renders with the reference renderer of the tests."""
    cells, rng = episodes.plan_cells(0), np.random.default_rng(0)
    places = episodes.start[episodes.plan == 0][:, :2].numpy() * COORDINATE_UNIT_M

    def step() -> int:
        x, y = places[rng.integers(len(places))]
        reference.picture(cells, float(x), float(y), float(rng.uniform(0, 2 * math.pi)), pixels)
        return 1

    return step


def miniworld(pixels: int) -> Callable[[], int]:
    """Returns a function that takes a random action in MiniWorld's FourRooms."""
    import gymnasium
    import pyglet

    pyglet.options["headless"] = True
    import miniworld  # noqa: F401

    env = gymnasium.make("MiniWorld-FourRooms-v0", obs_width=pixels, obs_height=pixels)
    env.reset(seed=0)
    rng = np.random.default_rng(0)

    def step() -> int:
        _, _, terminated, truncated, _ = env.step(int(rng.integers(env.action_space.n)))
        if terminated or truncated:
            env.reset()
        return 1

    return step


def rate(step: Callable[[], int], seconds: float) -> float:
    """Returns the frames per second; `step` returns the number of frames of a call."""
    frames, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        frames += step()
    return frames / (time.perf_counter() - start)


def on_device(episodes: Episodes, options: argparse.Namespace) -> None:
    """Measures sketchnav alone on a device, with each number of agents."""
    result: dict[str, Any] = {"host": host_facts(), "device": options.device, "pixels": options.pixels, "rows": []}
    for agents in options.agents:
        step = sketchnav(episodes, options.pixels, 1, agents, options.device)

        def steps(step=step) -> int:
            frames = sum(step() for _ in range(STEPS))
            synchronize(torch.device(options.device))
            return frames

        steps()  # compiles the kernels
        frames_per_s = rate(steps, options.seconds)
        result["rows"].append({"agents": agents, "frames_per_s": frames_per_s})
        print(f"{agents:6} agents: {frames_per_s:,.0f} frames/s", flush=True)
        if options.json:
            options.json.write_text(json.dumps(result, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pixels", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", help="measure sketchnav alone on this device")
    parser.add_argument("--agents", type=int, nargs="+", default=[ROWS], help="agents with --device")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    episodes = generate_episodes(EpisodeConfig(max_size_m=16.0, plans=16, goals=2, starts=4), "train", 0)
    if options.device:
        on_device(episodes, options)
        return
    renderers: dict[str, Callable[[], int]] = {
        "powerband, 1 thread": sketchnav(episodes, options.pixels, 1),
        f"powerband, {options.threads} threads": sketchnav(episodes, options.pixels, options.threads),
        "numpy, a ray a pixel": numpy_rays(episodes, options.pixels),
    }
    for name, make in {
        "MuJoCo, the same plans": lambda: mujoco(episodes, options.pixels),
        "MiniWorld FourRooms": lambda: miniworld(options.pixels),
    }.items():
        try:
            renderers[name] = make()
        except Exception as error:
            print(f"{name}: not measured ({type(error).__name__}: {error})", flush=True)
    rates: dict[str, list[float]] = {name: [] for name in renderers}
    for step in renderers.values():
        step()
    for _ in range(options.rounds):
        for name, step in renderers.items():
            rates[name].append(rate(step, options.seconds))
    ratios = {}
    for name, values in rates.items():
        print(f"{name:<26}{statistics.median(values):>12,.0f} frames/s")
    for ours in [name for name in renderers if name.startswith("powerband")]:
        for baseline in [name for name in renderers if not name.startswith("powerband")]:
            ratio = statistics.median(a / b for a, b in zip(rates[ours], rates[baseline], strict=True))
            ratios[f"{ours} / {baseline}"] = ratio
            print(f"{ours} / {baseline}: {ratio:.1f}x")
    if options.json:
        result = {"host": host_facts(), "pixels": options.pixels, "rates": rates, "ratios": ratios}
        options.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
