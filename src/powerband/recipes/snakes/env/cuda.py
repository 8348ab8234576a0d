"""CUDA kernels that move and restart boards, with one thread per board. Importing this module needs numba-cuda.

The kernels call the same functions as the CPU loops in `kernels`; numba-cuda compiles these functions for the device.
"""

from __future__ import annotations

from typing import Any

from powerband.envs.numba.launch_cuda import launch
from powerband.envs.numba.numba_cuda import cuda
from powerband.recipes.snakes.env.board import SnakesState
from powerband.recipes.snakes.env.rules.board_moves import move_board, write_rows
from powerband.recipes.snakes.env.rules.game import RUNNING, reset_board

THREADS_PER_BLOCK = 32  # boards are few and independent, so small blocks spread them over many multiprocessors


@cuda.jit
def move(s, mirrored, relative, seed, kind, m):
    """Executes one move on every board, and writes rewards and results.

    `s`: arrays of the boards; `mirrored`: number of boards on which the learner plays both teams; `relative`: True if
    the learner's actions are 0 forward, 1 left, 2 right; `seed`: seed as uint64; `kind`: reward function, one of
    the constants GAME, MIXED and SHAPED; `m`: arrays of the `MoveBuffers`, with inputs and outputs of the move.
    """
    b = cuda.grid(1)
    if b < s.grid.shape[0]:
        move_board(s, b, mirrored, relative, seed, m)
        write_rows(s, b, mirrored, kind, m)


@cuda.jit
def restart(s, outcome, seed):
    """Starts a new game on every board b for which outcome[b] is not RUNNING.

    `s`: arrays of the N boards; `outcome`: (N,) RUNNING, STEP_LIMIT or GAME_OVER after the last move; `seed`: seed as
    uint64.
    """
    b = cuda.grid(1)
    if b < s.grid.shape[0] and outcome[b] != RUNNING:
        reset_board(s, b, seed)


def launch_per_board(kernel: Any, state: SnakesState, *arguments: Any) -> None:
    """Launches `kernel` with the arrays of `state` and `arguments`, one thread per board."""
    launch(kernel, state.num_boards, state.grid.device, state.arrays, *arguments, block=THREADS_PER_BLOCK)
