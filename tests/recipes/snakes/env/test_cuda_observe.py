"""CUDA kernels of observations and opponents without a GPU: NVVM compiles them, and in the simulator of numba they
equal the CPU loops bit for bit."""

import pytest

from envs.cuda_child import both, count_compiled

COMPILE = """
from powerband.recipes.snakes.env.board import SnakesState
from powerband.recipes.snakes.env.cuda_observe import choose_rows, observe_rows
from powerband.recipes.snakes.env.rules.flood import allocate_scratch

s, memory = numba.typeof(SnakesState.empty(2).arrays), [numba.typeof(part) for part in allocate_scratch(2)]
n, seed, flag = numba.int64, numba.uint64, numba.boolean
where = (s, n, numba.int64[::1], flag, flag[::1], flag, n, n)
jobs = ((observe_rows, (*where, *memory, numba.float32[:, :, ::1])), (choose_rows, (s, n, n, n, seed, n[:, ::1])))
for kernel, arguments in jobs:
    assert "call" not in compiled(kernel, *arguments).split(".visible .entry")[1], "not all inlined"
"""

SHOW = """
import os
import numpy as np
import torch
from powerband.recipes.snakes.env.board import BoardArrays, SnakesState
from powerband.recipes.snakes.env.observations import OBSERVATIONS
from powerband.recipes.snakes.env.rules.opponent_moves import GREEDY, GREEDY_TORUS, RANDOM
from powerband.recipes.snakes.env.opponents import GreedyOpponent, RandomOpponent
from recipes.snakes.env.reference_obs import random_boards

device = os.environ.get("NUMBA_ENABLE_CUDASIM") == "1"
state, _ = random_boards(2, seed=5, missing=0.5)
if device:
    from numba import cuda
    from powerband.recipes.snakes.env.cuda_observe import choose_rows, observe_rows
    from powerband.recipes.snakes.env.rules.flood import allocate_scratch
    np.seterr(over="ignore")
    s = BoardArrays(*map(cuda.to_device, state.arrays))
    index, due = cuda.to_device(np.array([1, 0])), cuda.to_device(np.array([True, False]))
for name, observation in OBSERVATIONS.items():
    for team in range(2):
        for listed, masked in ((False, False), (True, True)):
            out = torch.full((2, *observation.spec.shape), 9.0)
            if device:
                d_out = cuda.to_device(out.view(2, 3, -1).numpy())
                workers = allocate_scratch(4, cuda.device_array)  # fewer than rows: two of them write twice
                where = (0, index, listed, due, masked, team, observation.kind)
                observe_rows[1, 8](s, *where, *workers, d_out)
                out = d_out.copy_to_host()
            else:
                boards = torch.tensor([1, 0]) if listed else slice(0, 2)
                observation.write(state, team, boards, out, torch.tensor([True, False]) if masked else None)
                out = out.numpy()
            print(name, team, listed, out.tobytes().hex())
opponents = {RANDOM: RandomOpponent(), GREEDY: GreedyOpponent(), GREEDY_TORUS: GreedyOpponent("torus")}
for kind, opponent in opponents.items():
    for team in range(2):
        if device:
            actions = cuda.to_device(np.zeros((2, 3), np.int64))
            choose_rows[1, 4](s, 0, team, kind, np.uint64(11), actions)
            print(kind, actions.copy_to_host().tolist())
        else:
            print(kind, opponent.act_team(state, slice(0, 2), team, 11).tolist())
"""


@pytest.mark.slow
def test_kernels_compile_to_ptx():
    assert count_compiled(COMPILE) == 2


def test_simulated_kernels_write_the_same_bits():
    simulated, plain = both(SHOW)
    assert simulated == plain and simulated.count("\n") == 22
