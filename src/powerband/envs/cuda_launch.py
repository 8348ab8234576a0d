"""Launching the simulators' CUDA kernels. Import it only where numba-cuda is installed."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from numba import cuda

warnings.filterwarnings("ignore", message="Grid size .* under-utilization")


def launch(kernel: Any, threads: int, device: torch.device, *arguments: Any, block: int = 64) -> None:
    """Runs `kernel` with at least `threads` threads on torch's current stream, ordered with torch's work.

    Args:
        kernel: Made by ``cuda.jit``; it leaves out the threads beyond its rows.
        threads: Over all blocks.
        device: Where the arguments lie.
        arguments: As numba takes them.
        block: Threads of a block.
    """
    with torch.cuda.device(device):
        stream = cuda.external_stream(torch.cuda.current_stream(device).cuda_stream)
        kernel[-(-threads // block), block, stream](*arguments)
