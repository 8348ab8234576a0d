"""Tensors as the arrays that numba's kernels read, and what they may hold."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def check_action(action: Tensor, shape: tuple[int, ...], num_actions: int) -> None:
    """Refuses actions that the rules do not know; their range is looked at on the CPU only, as it would wait for CUDA.

    Raises:
        ValueError: Wrong shape or dtype; on CPU also an action out of 0..num_actions - 1.
    """
    if action.shape != shape or action.dtype != torch.int64:
        raise ValueError(f"action is {tuple(action.shape)} {action.dtype}: give {shape} torch.int64")
    if action.device.type == "cpu":
        low, high = (int(bound) for bound in torch.aminmax(action))
        if low < 0 or high >= num_actions:
            raise ValueError(f"actions reach from {low} to {high}: give 0..{num_actions - 1}")


def device_array(tensor: Tensor) -> Any:
    """The memory of a contiguous `tensor` as a numpy view (CPU) or a numba device array (CUDA)."""
    assert tensor.is_contiguous()
    if tensor.device.type == "cpu":
        return tensor.detach().numpy()
    from numba import cuda

    with torch.cuda.device(tensor.device):
        return cuda.as_cuda_array(tensor.detach())
