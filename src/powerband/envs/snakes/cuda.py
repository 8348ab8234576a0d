"""The CUDA kernels: one thread a board, calling what the CPU loops call. Import it only where numba-cuda is installed.

numba-cuda compiles a CPU function again, for the device, where a kernel calls it.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from numba import cuda

from .board import SnakesState
from .kernels import move_board, write_rows
from .rules import RUNNING, reset_board

THREADS_PER_BLOCK = 32  # boards are independent and few: spread them over as many multiprocessors as possible

warnings.filterwarnings("ignore", message="Grid size .* under-utilization")


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


def launch(kernel: Any, state: SnakesState, *arguments: Any) -> None:
    """Runs `kernel` on torch's current stream, so that torch's work before and after is ordered with it."""
    device = state.grid.device
    with torch.cuda.device(device):
        stream = cuda.external_stream(torch.cuda.current_stream(device).cuda_stream)
        blocks = -(-state.num_boards // THREADS_PER_BLOCK)
        kernel[blocks, THREADS_PER_BLOCK, stream](state.arrays, *arguments)
