"""Room: did memory run out, how much is free, and what is the largest size that fits."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

import torch

from powerband.core.errors import ConfigError
from powerband.core.machine import memory

OUT_OF_MEMORY_TEXTS = (
    "out of memory",  # CUDA's driver and runtime, numba's too
    "can't allocate memory",  # PyTorch's allocator on Linux
    "not enough memory",  # the same on Windows
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)
"""What an error says where memory ran out and it has no type of its own."""


class OutOfMemory(ConfigError):
    """Memory ran out: where, on which rank, which setting asked for it, and what fits."""


def out_of_memory_message(error: BaseException) -> str:
    """What an error says, in one line, where it means that memory ran out; "" where it means something else."""
    typed = isinstance(error, torch.OutOfMemoryError | MemoryError)
    if not typed and not (
        isinstance(error, RuntimeError) and any(words in str(error) for words in OUT_OF_MEMORY_TEXTS)
    ):
        return ""
    said = " ".join(str(error).split()) or type(error).__name__
    said = re.sub(r"^\[[^\]]*\][^.]*\. ", "", said)  # the source line and condition that PyTorch's own check names
    sentences = said.split(". ")
    return ". ".join(sentences[:2])[:200].rstrip(". ")


def largest_that_fits(fits: Callable[[int], bool], low: int, high: int, step: int = 1) -> int:
    """The largest multiple of `step` from `low` to `high` that fits, found by bisection; 0 where none does.

    Args:
        fits: Tries a size; what fits at a size is taken to fit at every smaller one.
        low, high: Bounds, both tried; 1 <= low.
        step: Sizes are multiples of this.

    Raises:
        ValueError: A bound or a step below 1.
    """
    if low < 1 or step < 1:
        raise ValueError(f"low={low} and step={step} must be 1 or more: a size of 0 needs no room.")
    below, above = -(-low // step) - 1, high // step + 1  # in steps: `below` is known to fit, `above` not to
    floor = below
    if above - 1 > below and fits((above - 1) * step):
        return (above - 1) * step
    above -= 1
    while above - below > 1:
        middle = (below + above) // 2
        if fits(middle * step):
            below = middle
        else:
            above = middle
    return below * step if below > floor else 0


def fits_in_memory(call: Callable[[], object], device: torch.device) -> bool:
    """True where `call` finds the memory that it needs; what it held is given back before this returns.

    Raises:
        Exception: What `call` raises for another reason.
    """
    try:
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        fits = True
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory_message(error):
            raise
        fits = False
    if device.type == "cuda":  # the error is gone by now, and with it what its frames held
        torch.cuda.empty_cache()
    return fits


def free_bytes(device: torch.device) -> int:
    """Bytes that this process can still have: of the GPU, or its share of the machine's (and its container's) memory.

    Ranks of one machine share its memory equally. 0 where it cannot be read.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    free = memory.free(device)
    return 0 if free is None else free // int(os.environ.get("LOCAL_WORLD_SIZE", 1))
