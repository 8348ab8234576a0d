"""The CUDA kernels without a GPU: NVVM compiles them, and in numba's simulator they match the CPU loops bit for bit."""

import pytest

from envs.cuda_child import both, count_compiled

COMPILE = """
from powerband.recipes.uav.env import cuda as kernels
from powerband.recipes.uav.env.state import Missions
from powerband.recipes.uav.env.world import world_arrays
from powerband.recipes.uav.settings import World

world, cpu = World(map_cells=22), torch.device("cpu")
s = numba.typeof(Missions.empty(2, world, 0, cpu).arrays)
w = numba.typeof(world_arrays(world, cpu))
n, flag = numba.int64, numba.boolean
action, mask = numba.int64[:, ::1], numba.boolean[:, :, ::1]
real, value = numba.float32[:, ::1], numba.float32[:, :, ::1]
maps, team = numba.float32[:, :, :, :, ::1], numba.float32[:, :, :, ::1]
for kernel, arguments in (
    (kernels.begin_missions, (n, flag)),
    (kernels.move_missions, (n, action)),
    (kernels.measure_rows, (n,)),
    (kernels.fuse_rows, ()),
    (kernels.write_maps, (n, maps, team)),
    (kernels.choose_moves, (value, real, flag, action, mask)),
    (kernels.count_rows, (n, numba.int64[:, ::1])),
    (kernels.plan_moves, (real, flag, action, mask, value)),
):
    compiled(kernel, s, w, *arguments)
"""

PLAY = """
import os
import numpy as np
import torch
from powerband.recipes.uav.env.env import UavEnv
from powerband.recipes.uav.env.rules.information_gain import expected_gains
from powerband.recipes.uav.env.state import MissionArrays, Missions
from powerband.recipes.uav.env.world import world_arrays
from powerband.recipes.uav.settings import World

world = World(n_agents=3, map_cells=13, budget=3, failure_rate=0.2, random_comm_range=True)
N, SEED = 2, 12345
device = os.environ.get("NUMBA_ENABLE_CUDASIM") == "1"
missions, tables = Missions.empty(N, world, 7, torch.device("cpu")), world_arrays(world, torch.device("cpu"))
uav, team = np.zeros((N, 3, 7, 11, 11), np.float32), np.zeros((N, 4, 11, 11), np.float32)
chosen, mask = np.zeros((N, 3), np.int64), np.zeros((N, 3, 6), bool)
value, counts, gains = np.zeros((N, 3, 6), np.float32), np.zeros((N, 4), np.int64), expected_gains(world)
if device:
    from numba import cuda
    from powerband.recipes.uav.env import cuda as kernels
    np.seterr(over="ignore")
    s = MissionArrays(*map(cuda.to_device, missions.arrays))
    w = tables._replace(**{k: cuda.to_device(v) for k, v in tables._asdict().items() if isinstance(v, np.ndarray)})
    uav, team, chosen, mask, value, counts, gains = map(cuda.to_device, (uav, team, chosen, mask, value, counts, gains))
    launches = {"choose": (kernels.choose_moves, 1), "greedy": (kernels.plan_moves, 1),
                "write": (kernels.write_maps, 4), "count": (kernels.count_rows, 13)}

    def launch(kernel, each, *arguments):
        kernel[-(-N * each // 16), 16](s, w, *arguments)

    def run(name, *arguments):
        if name in launches:
            return launch(*launches[name], *arguments)
        launch(*((kernels.begin_missions, 1) if name == "begin" else (kernels.move_missions, 1)), *arguments)
        launch(kernels.measure_rows, 3 * s.measured.shape[2], arguments[0])
        launch(kernels.fuse_rows, 4 * 13)
else:
    from powerband.recipes.uav.env.kernels import cpu_loops
    s, w = missions.arrays, tables
    run = lambda name, *arguments: cpu_loops(False)[name](s, w, 0, N, *arguments)

rng = np.random.default_rng(0)
run("begin", SEED, True)
for t in range(4):
    run("write", t, uav, team)
    noise, probability = rng.random((N, 3)).astype(np.float32), rng.random((N, 3, 6)).astype(np.float32)
    if t % 2:
        run("choose", probability, noise, t == 1, chosen, mask)
    else:
        run("greedy", gains, t == 2, chosen, mask, value)
    run("step", SEED, chosen)
    run("count", 3, counts)
    parts = {**s._asdict(), "uav": uav, "team": team, "chosen": chosen, "mask": mask, "value": value, "counts": counts}
    for name, array in parts.items():
        array = array.copy_to_host() if device else array
        if array.dtype == np.float32:
            array = array.round(4) + np.float32(0)
        print(t, name, array.tolist())
"""


@pytest.mark.slow
def test_kernels_compile_to_ptx():
    assert count_compiled(COMPILE) == 8


def test_simulated_kernels_match_the_cpu():
    simulated, plain = both(PLAY)
    assert simulated == plain
