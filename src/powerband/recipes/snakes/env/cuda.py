"""The CUDA kernels: one thread a board, calling what the CPU loops call. Import it only where numba-cuda is installed.

numba-cuda compiles a CPU function again, for the device, where a kernel calls it.
"""

from __future__ import annotations

from typing import Any

from numba import cuda

from powerband.envs.numba.launch_cuda import launch
from powerband.recipes.snakes.env.board import SnakesState
from powerband.recipes.snakes.env.rules.board_moves import move_board, write_rows
from powerband.recipes.snakes.env.rules.game import RUNNING, reset_board

THREADS_PER_BLOCK = 32  # boards are independent and few: spread them over as many multiprocessors as possible


@cuda.jit
def move(s, mirrored, relative, seed, kind, m):
    """Arguments of `kernels.move_boards`, as arrays."""
    b = cuda.grid(1)
    if b < s.grid.shape[0]:
        move_board(s, b, mirrored, relative, seed, m)
        write_rows(s, b, mirrored, kind, m)


@cuda.jit
def restart(s, outcome, seed):
    """Arguments of `kernels.restart_boards`, as arrays."""
    b = cuda.grid(1)
    if b < s.grid.shape[0] and outcome[b] != RUNNING:
        reset_board(s, b, seed)


def launch_per_board(kernel: Any, state: SnakesState, *arguments: Any) -> None:
    """Runs `kernel` with a thread a board."""
    launch(kernel, state.num_boards, state.grid.device, state.arrays, *arguments, block=THREADS_PER_BLOCK)
