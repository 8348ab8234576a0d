"""CUDA kernels without a GPU: NVVM compiles them, and in numba's simulator they match the CPU loops bit by bit."""

import pytest

from envs.cuda_child import both, count_compiled

COMPILE = """
from powerband.recipes.sketchnav.env import cuda as kernels
from powerband.recipes.sketchnav.plans.episodes.episodes import EpisodeConfig
from powerband.recipes.sketchnav.plans.episodes.generation import generate_episodes
from powerband.recipes.sketchnav.env.sensors import Sensors, sensor_arrays
from powerband.recipes.sketchnav.env.state import Agents
from powerband.recipes.sketchnav.env.world import Rules, world_arrays

cpu = torch.device("cpu")
episodes = generate_episodes(EpisodeConfig(max_size_m=8.0, plans=1, goals=1, starts=1, sketch_px=36), "train", 0)
s = numba.typeof(Agents.empty(2, 0, cpu).arrays)
w = numba.typeof(world_arrays(episodes, Rules(), 36, False, cpu))
o = numba.typeof(sensor_arrays(Sensors(), cpu))
n, flag, real = numba.int64, numba.boolean, numba.float64
images = numba.uint8[:, :, :, ::1]
compiled(kernels.begin_agents, s, w, n, n, flag)
compiled(kernels.step_agents, s, w, n[::1])
compiled(kernels.render_columns, s, w, images, images, real, real, real, flag)
compiled(kernels.render_columns, s, w, images, numba.float32[:, :, :, ::1], real, real, real, flag)
compiled(kernels.expert_kernel, s, w)
metres, row = numba.float32[:, :, :, ::1], numba.float32[:, ::1]
compiled(kernels.depth_noise_kernel, s, w, o, n, metres, images, real, real, flag)
compiled(kernels.colour_noise_kernel, s, w, o, n, images, flag)
compiled(kernels.pose_noise_kernel, s, w, o, n, row, row)
"""

PLAY = """
import os
import numpy as np
import torch
from powerband.recipes.sketchnav.plans.episodes.episodes import EpisodeConfig
from powerband.recipes.sketchnav.plans.episodes.generation import generate_episodes
from powerband.recipes.sketchnav.env.sensors import Sensors, sensor_arrays
from powerband.recipes.sketchnav.env.state import AgentArrays, Agents
from powerband.recipes.sketchnav.env.world import Rules, world_arrays

N, SEED, SIZE = 2, 12345, 16
device = os.environ.get("NUMBA_ENABLE_CUDASIM") == "1"
cpu = torch.device("cpu")
episodes = generate_episodes(EpisodeConfig(max_size_m=8.0, plans=1, goals=2, starts=1, sketch_px=36), "train", 0)
agents, w = Agents.empty(N, 3, cpu), world_arrays(episodes, Rules(expert_bonus=0.1, max_steps=4), SIZE, False, cpu)
sensors = Sensors(depth_noise=0.02, rgb_noise=20.0, gps_noise_m=0.3, compass_noise_deg=9.0)
o, gps, compass = sensor_arrays(sensors, cpu), np.zeros((N, 2), np.float32), np.zeros((N, 1), np.float32)
metres = np.zeros((N, 1, SIZE, SIZE), np.float32)
s, rgb, depth = agents.arrays, np.zeros((N, 3, SIZE, SIZE), np.uint8), np.zeros((N, 1, SIZE, SIZE), np.uint8)
if device:
    from numba import cuda
    from powerband.recipes.sketchnav.env import cuda as kernels
    np.seterr(over="ignore")
    s = AgentArrays(*map(cuda.to_device, s))
    w = w._replace(**{k: cuda.to_device(v) for k, v in w._asdict().items() if isinstance(v, np.ndarray)})
    o = o._replace(normal=cuda.to_device(o.normal), colour=cuda.to_device(o.colour))
    rgb, depth, metres, gps, compass = map(cuda.to_device, (rgb, depth, metres, gps, compass))
    named = {
        "begin": (kernels.begin_agents, 1),
        "step": (kernels.step_agents, 1),
        "render": (kernels.render_columns, SIZE),
        "depth_noise": (kernels.depth_noise_kernel, SIZE**2),
        "colour_noise": (kernels.colour_noise_kernel, SIZE**2),
        "pose_noise": (kernels.pose_noise_kernel, 1),
    }

    def run(name, *arguments):
        kernel, each = named[name]
        kernel[-(-N * each // 16), 16](s, w, *arguments)
else:
    from powerband.recipes.sketchnav.env.kernels import cpu_loops
    run = lambda name, *arguments: cpu_loops(False)[name](s, w, 0, N, *arguments)

rng = np.random.default_rng(0)
run("begin", SEED, N, False)
for t in range(7):
    action = rng.integers(1, 4, N) if t else np.ones(N, np.int64)
    run("step", cuda.to_device(action) if device else action)
    if t < 2:
        run("render", rgb, depth, 50.0, -20.0, 255.0, False)
    else:
        run("render", rgb, metres, 1.0, 0.0, 1e9, False)
        run("depth_noise", o, SEED, metres, depth, 50.0, -20.0, False)
        run("colour_noise", o, SEED, rgb, False)
        run("pose_noise", o, SEED, gps, compass)
    run("begin", SEED, N, True)
    for name, array in {**s._asdict(), "rgb": rgb, "depth": depth, "gps": gps, "compass": compass}.items():
        array = array.copy_to_host() if device else array
        if array.dtype in (np.float32, np.float64):
            array = array.round(4) + array.dtype.type(0)
        print(t, name, array.tolist())
"""


@pytest.mark.slow
def test_kernels_compile_to_ptx() -> None:
    assert count_compiled(COMPILE) == 8


def test_simulated_kernels_move_and_render_like_the_cpu() -> None:
    simulated, plain = both(PLAY)
    assert simulated == plain and simulated
