"""Tensors as the arrays that numba's kernels read."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def device_array(tensor: Tensor) -> Any:
    """The memory of a contiguous `tensor` as a numpy view (CPU) or a numba device array (CUDA)."""
    assert tensor.is_contiguous()
    if tensor.device.type == "cpu":
        return tensor.detach().numpy()
    from numba import cuda

    with torch.cuda.device(tensor.device):
        return cuda.as_cuda_array(tensor.detach())
