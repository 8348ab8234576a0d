"""Out of memory: recognises failed allocations, reports free memory, and finds the largest size that fits."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

import torch

from powerband.core.errors import ConfigError
from powerband.core.machine import memory

OUT_OF_MEMORY_TEXTS = (
    "out of memory",  # CUDA's driver and runtime, and numba
    "can't allocate memory",  # PyTorch's allocator on Linux
    "not enough memory",  # the same on Windows
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)
"""Texts of out-of-memory errors without a type of their own."""


class OutOfMemory(ConfigError):
    """An allocation failed. The message states the place, the rank, the responsible setting and a size that fits."""


def out_of_memory_message(error: BaseException) -> str:
    """The message of an out-of-memory error, in one line; "" for any other error."""
    typed = isinstance(error, torch.OutOfMemoryError | MemoryError)
    if not typed and not (isinstance(error, RuntimeError) and any(text in str(error) for text in OUT_OF_MEMORY_TEXTS)):
        return ""
    message = " ".join(str(error).split()) or type(error).__name__
    message = re.sub(r"^\[[^\]]*\][^.]*\. ", "", message)  # removes the source line and condition of PyTorch's check
    sentences = message.split(". ")
    return ". ".join(sentences[:2])[:200].rstrip(". ")


def largest_that_fits(fits: Callable[[int], bool], low: int, high: int, step: int = 1) -> int:
    """Finds the largest size from `low` to `high` that fits, by bisection; 0 if none fits.

    Args:
        fits: Returns True if a size, such as a batch size, fits. Every smaller size is then assumed to fit.
        low, high: Bounds, inclusive; 1 <= low.
        step: Sizes are multiples of this number.

    Raises:
        ValueError: `low` or `step` is below 1.
    """
    if low < 1 or step < 1:
        raise ValueError(f"low={low} and step={step} must both be 1 or more.")
    below, above = -(-low // step) - 1, high // step + 1  # in steps: `below` fits, `above` does not
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
    """True if `call` runs without an out-of-memory error. Its memory is released before this function returns.

    Raises:
        Exception: Any other error of `call`.
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
    if device.type == "cuda":  # outside `except`, so that the frames of the error hold no tensors
        torch.cuda.empty_cache()
    return fits


def free_bytes(device: torch.device) -> int:
    """Bytes that this process can still allocate on its GPU, or its share of the memory of the machine or container.

    Ranks of one machine have equal shares. Returns 0 if the free memory is unknown.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    left = memory.free(device)
    return 0 if left is None else left // int(os.environ.get("LOCAL_WORLD_SIZE", 1))
