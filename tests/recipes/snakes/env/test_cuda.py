"""CUDA kernels without a GPU: NVVM compiles them; in the simulator of numba they equal the CPU loops bit for bit."""

import pytest

from envs.cuda_child import both, count_compiled

COMPILE = """
from powerband.recipes.snakes.env.board import SnakesState
from powerband.recipes.snakes.env.cuda import move, restart
from powerband.recipes.snakes.env.kernels import MoveBuffers

s = numba.typeof(SnakesState.empty(2).arrays)
m = numba.typeof(MoveBuffers(2, 4, torch.device("cpu")).arrays)
n, seed, flag = numba.int64, numba.uint64, numba.boolean
for kernel, arguments in ((move, (s, n, flag, seed, n, m)), (restart, (s, numba.uint8[::1], seed))):
    assert "call" not in compiled(kernel, *arguments).split(".visible .entry")[1], "not all inlined"
"""

PLAY = """
import os, sys
import numpy as np
import torch
from powerband.recipes.snakes.env.board import BoardArrays, SnakesState
from powerband.recipes.snakes.env.kernels import MoveArrays, MoveBuffers, move_boards, restart_all, restart_boards

N, SEED = 3, 2**63 + 11
state, moves = SnakesState.empty(N, first_board=5), MoveBuffers(N, N + 2, torch.device("cpu"))
device = os.environ.get("NUMBA_ENABLE_CUDASIM") == "1"
if device:
    from numba import cuda
    from powerband.recipes.snakes.env.cuda import move, restart
    s = BoardArrays(*map(cuda.to_device, state.arrays))
    m = MoveArrays(*map(cuda.to_device, moves.arrays))
    m.outcome.copy_to_device(np.full(N, 2, np.uint8))
    np.seterr(over="ignore")
    restart[1, 4](s, m.outcome, np.uint64(SEED))
else:
    restart_all(state, moves, seed=SEED)
    s, m = state.arrays, moves.arrays
rng = np.random.default_rng(0)
for t in range(60):
    action = rng.integers(0, 3 if t % 2 else 4, (N + 2, 3))
    if t == 30:
        step_count = np.array([198, 197, 20], np.int32)
        s.step_count.copy_to_device(step_count) if device else np.copyto(s.step_count, step_count)
    if device:
        m.action.copy_to_device(action)
        move[1, 4](s, 2, bool(t % 2), np.uint64(SEED), t % 3, m)
        restart[1, 4](s, m.outcome, np.uint64(SEED))
    else:
        np.copyto(m.action, action)
        move_boards(state, moves, mirrored=2, relative=bool(t % 2), seed=SEED, kind=t % 3, threads=1)
        restart_boards(state, moves, seed=SEED)
    arrays = {f"{t}/{k}": v for part in (s, m) for k, v in part._asdict().items()}
    if t in (0, 29, 30, 31, 32, 33, 58, 59):
        for name, value in arrays.items():
            value = value.copy_to_host() if device else value
            if value.dtype == np.float32:
                value = value.round(3) + np.float32(0)
            print(name, value.tolist())
"""


@pytest.mark.slow
def test_kernels_compile_to_ptx():
    assert count_compiled(COMPILE) == 2


def test_simulated_kernels_play_like_the_cpu():
    simulated, plain = both(PLAY)
    assert simulated == plain and simulated
