"""CUDA start: initialises CUDA and counts the GPUs. The doctor runs this in a subprocess, because a driver may hang."""

from __future__ import annotations


def start_cuda() -> int:
    """Initialises CUDA and returns the number of GPUs."""
    import torch

    torch.cuda.init()
    return torch.cuda.device_count()
