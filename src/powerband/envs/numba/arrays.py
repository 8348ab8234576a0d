"""Arrays: tensors in the form that numba's kernels read, and the check of the actions that they receive."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def check_action(action: Tensor, shape: tuple[int, ...], num_actions: int) -> None:
    """Refuses actions that an environment does not define.

    The range is checked on the CPU only, because on CUDA the check would be a host-device synchronisation.

    Args:
        action: Actions of all environments.
        shape: Expected shape.
        num_actions: Number of valid actions, which are 0..num_actions - 1.

    Raises:
        ValueError: The shape or the dtype is wrong; on the CPU also an action outside 0..num_actions - 1.
    """
    if action.shape != shape or action.dtype != torch.int64:
        raise ValueError(
            f"The action has shape {tuple(action.shape)} and dtype {action.dtype}; expected {shape} and torch.int64."
        )
    if action.device.type == "cpu":
        low, high = (int(bound) for bound in torch.aminmax(action))
        if low < 0 or high >= num_actions:
            raise ValueError(f"The actions reach from {low} to {high}; expected 0..{num_actions - 1}.")


def device_array(tensor: Tensor) -> Any:
    """Returns the memory of a contiguous `tensor` as a numpy view (CPU) or a numba device array (CUDA)."""
    assert tensor.is_contiguous()
    if tensor.device.type == "cpu":
        return tensor.detach().numpy()
    from powerband.envs.numba.numba_cuda import cuda

    with torch.cuda.device(tensor.device):
        return cuda.as_cuda_array(tensor.detach())
