"""Frames of the navigators' ray caster beside other renderers of indoor scenes, in one run, one process each.

    python benchmarks/sketchnav_env.py [--seconds 2] [--rounds 5] [--pixels 64] [--threads 2] [--json out.json]

A frame is one action with its RGB-D picture, motion, collision, way, reward and ends of episodes included for ours.
Beside it: MiniWorld's FourRooms (`pip install miniworld`; RGB alone, its own physics), our plans rendered by MuJoCo
(RGB and depth, no physics), and the numpy picture of the tests, a ray for each pixel. Peers use one thread; ours is
given for one thread and for `--threads`. Ratios are medians over rounds in which all are timed one after the other.
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

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from powerband.core import rendering  # noqa: E402

rendering.prepare()  # before MuJoCo is imported

import numpy as np  # noqa: E402
import torch  # noqa: E402

from envs.sketchnav import reference  # noqa: E402
from powerband.core.device import host_facts  # noqa: E402
from powerband.envs.sketchnav.env import SketchNavEnv  # noqa: E402
from powerband.envs.sketchnav.episodes import UNIT_M, Episodes, Scenes, draw_episodes  # noqa: E402
from powerband.envs.sketchnav.mujoco_scene import MujocoView  # noqa: E402

ROWS = 128


def ours(episodes: Episodes, pixels: int, threads: int) -> Callable[[], int]:
    """Random actions of `ROWS` agents, STOP among them."""
    env = SketchNavEnv(ROWS, episodes, pixels=pixels, threads=threads)
    generator = torch.Generator().manual_seed(0)
    weight = torch.tensor([0.005, 0.5, 0.25, 0.245])

    def step() -> int:
        env.step(torch.multinomial(weight, ROWS, replacement=True, generator=generator))
        return ROWS

    return step


def mujoco(episodes: Episodes, pixels: int) -> Callable[[], int]:
    """RGB and depth of one plan from places on its ways."""
    view, rng = MujocoView(episodes.cells_of(0), pixels), np.random.default_rng(0)
    places = episodes.start[episodes.plan == 0][:, :2].numpy() * UNIT_M

    def step() -> int:
        x, y = places[rng.integers(len(places))]
        view.see(float(x), float(y), float(rng.uniform(0, 2 * math.pi)))
        return 1

    return step


def plain(episodes: Episodes, pixels: int) -> Callable[[], int]:
    """The tests' picture."""
    cells, rng = episodes.cells_of(0), np.random.default_rng(0)
    places = episodes.start[episodes.plan == 0][:, :2].numpy() * UNIT_M

    def step() -> int:
        x, y = places[rng.integers(len(places))]
        reference.picture(cells, float(x), float(y), float(rng.uniform(0, 2 * math.pi)), pixels)
        return 1

    return step


def miniworld(pixels: int) -> Callable[[], int]:
    """Random actions in MiniWorld's FourRooms."""
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
    """Frames a second."""
    frames, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        frames += step()
    return frames / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pixels", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    episodes = draw_episodes(Scenes(most_m=16.0, plans=16, goals=2, starts=4), "train", 0)
    sides: dict[str, Callable[[], int]] = {
        "powerband, 1 thread": ours(episodes, options.pixels, 1),
        f"powerband, {options.threads} threads": ours(episodes, options.pixels, options.threads),
        "numpy, a ray a pixel": plain(episodes, options.pixels),
    }
    for name, make in {
        "MuJoCo, the same plans": lambda: mujoco(episodes, options.pixels),
        "MiniWorld FourRooms": lambda: miniworld(options.pixels),
    }.items():
        try:
            sides[name] = make()
        except Exception as error:
            print(f"{name}: not measured ({type(error).__name__}: {error})", flush=True)
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for step in sides.values():
        step()
    for _ in range(options.rounds):
        for name, step in sides.items():
            rates[name].append(rate(step, options.seconds))
    ratios = {}
    for name, values in rates.items():
        print(f"{name:<26}{statistics.median(values):>12,.0f} frames/s")
    for mine in [name for name in sides if name.startswith("powerband")]:
        for other in [name for name in sides if not name.startswith("powerband")]:
            each = [a / b for a, b in zip(rates[mine], rates[other], strict=True)]
            ratios[f"{mine} / {other}"] = statistics.median(each)
            print(f"{mine} / {other}: {statistics.median(each):.1f}x")
    if options.json:
        found = {"host": host_facts(), "pixels": options.pixels, "rates": rates, "ratios": ratios}
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
