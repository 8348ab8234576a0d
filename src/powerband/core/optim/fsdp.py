"""Weights that lie in shards on the ranks (FSDP 2): made whole for a checkpoint, taken apart where one is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn


def is_sharded(net: nn.Module) -> bool:
    """Whether weights of `net` lie in shards."""
    from torch.distributed.tensor import DTensor

    return any(isinstance(weight, DTensor) for weight in net.parameters())


def full_tensor(tensor: Tensor) -> Tensor:
    """All of a tensor; a collective where it lies in shards."""
    from torch.distributed.tensor import DTensor

    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def gather_full_tensors(tree: Any, keep: bool) -> Any:
    """`tree` with whole tensors, those that lay in shards on the CPU: a device may not have the room. A collective.

    Args:
        tree: Nested dicts of tensors and plain values, in the same order on all ranks.
        keep: Else the tensors are let go one by one and {} comes back.
    """
    from torch.distributed.tensor import DTensor

    if isinstance(tree, Mapping):
        made = {name: gather_full_tensors(item, keep) for name, item in tree.items()}
        return made if keep else {}
    if not isinstance(tree, DTensor):
        return tree
    found = tree.full_tensor().detach()
    return found.cpu() if keep else None


def local_shards(tree: Any) -> Any:
    """`tree` with what this rank holds in place of tensors in shards."""
    from torch.distributed.tensor import DTensor

    if isinstance(tree, Mapping):
        return {name: local_shards(item) for name, item in tree.items()}
    return tree.to_local() if isinstance(tree, DTensor) else tree


def shard_like(full: Tensor, like: Tensor) -> Tensor:
    """This rank's shard of a whole tensor that all ranks have, where `like` lies in shards; no collective."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(like, DTensor):
        return full
    return distribute_tensor(full.to(like.device), like.device_mesh, like.placements, src_data_rank=None)
