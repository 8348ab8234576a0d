"""CUDA launch: runs numba's CUDA kernels on torch's current stream. Importing this module needs numba-cuda."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from powerband.envs.numba.dispatch import KernelState
from powerband.envs.numba.numba_cuda import cuda

warnings.filterwarnings("ignore", message="Grid size .* under-utilization")


def launch(kernel: Any, threads: int, device: torch.device, *arguments: Any, block: int = 64) -> None:
    """Runs a CUDA kernel of numba with at least `threads` threads on torch's current stream.

    Args:
        kernel: Kernel from ``cuda.jit``; its surplus threads must do nothing.
        threads: Number of threads over all blocks, rounded up to complete blocks.
        device: Device of the arguments.
        arguments: Arguments of the kernel, as numba accepts them.
        block: Threads per block.
    """
    with torch.cuda.device(device):
        stream = cuda.external_stream(torch.cuda.current_stream(device).cuda_stream)
        kernel[-(-threads // block), block, stream](*arguments)


def launch_per_row(kernel: Any, threads_per_row: int, state: KernelState, *arguments: Any, block: int = 64) -> None:
    """Runs a CUDA kernel of numba with a fixed number of threads for each environment of a state.

    Args:
        kernel: Kernel from ``cuda.jit`` whose first argument is a named tuple of the state's arrays.
        threads_per_row: Threads per environment.
        state: State of all environments.
        arguments: Remaining arguments of the kernel.
        block: Threads per block.
    """
    launch(kernel, state.num_rows * threads_per_row, state.device, state.arrays, *arguments, block=block)
