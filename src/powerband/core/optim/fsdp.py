"""Sharded weights (FSDP 2): gathers them for a checkpoint and shards them again when it is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn


def is_sharded(net: nn.Module) -> bool:
    """True if weights of `net` are sharded: FSDP 2 has divided them among the ranks."""
    from torch.distributed.tensor import DTensor

    return any(isinstance(weight, DTensor) for weight in net.parameters())


def full_tensor(tensor: Tensor) -> Tensor:
    """The full tensor of a sharded `tensor`, for which all ranks must call this; any other `tensor` unchanged."""
    from torch.distributed.tensor import DTensor

    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def gather_full_tensors(tree: Any, keep: bool) -> Any:
    """`tree` with full tensors in place of sharded ones. All ranks must call it.

    Gathered tensors move to the CPU, because the memory of the device may be too small for all of them.

    Args:
        tree: Nested dicts of tensors and plain values, in the same order on all ranks.
        keep: True on ranks that use the result. False frees each gathered tensor at once, and returns {} for a dict.
    """
    from torch.distributed.tensor import DTensor

    if isinstance(tree, Mapping):
        gathered = {name: gather_full_tensors(item, keep) for name, item in tree.items()}
        return gathered if keep else {}
    if not isinstance(tree, DTensor):
        return tree
    full = tree.full_tensor().detach()
    return full.cpu() if keep else None


def local_shards(tree: Any) -> Any:
    """`tree`, nested dicts of tensors and plain values, with this rank's shards in place of sharded tensors."""
    from torch.distributed.tensor import DTensor

    if isinstance(tree, Mapping):
        return {name: local_shards(item) for name, item in tree.items()}
    return tree.to_local() if isinstance(tree, DTensor) else tree


def shard_like(full: Tensor, like: Tensor) -> Tensor:
    """This rank's shard of the tensor `full`, divided among the ranks in the same way as the tensor `like`.

    All ranks must have `full`. If `like` is not sharded, this is `full` itself.
    """
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(like, DTensor):
        return full
    return distribute_tensor(full.to(like.device), like.device_mesh, like.placements, src_data_rank=None)
