"""EMA: a copy of a network whose weights are an exponential moving average of those of the trained network."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn

from powerband.core.optim.fsdp import full_tensor, is_sharded
from powerband.core.optim.torch_private import lerp_all_

Net = TypeVar("Net", bound=nn.Module)


@runtime_checkable
class CachesFeatures(Protocol):
    """A module that caches features computed from its weights until `clear_cache` is called."""

    def clear_cache(self) -> None:
        """Discards all cached features."""


def ema_copy(net: Net) -> Net:
    """Returns a copy of `net` with its own weights, which need no gradients.

    Tensors that are plain attributes of modules, not parameters or buffers, are not weights. The copy shares them with
    `net`.
    """
    shared = {id(tensor): tensor for tensor in plain_tensors(net)}
    return copy.deepcopy(net, shared).requires_grad_(False)


def feature_caches(net: nn.Module) -> list[CachesFeatures]:
    """Lists the modules of a network that cache features; `update_ema` clears their caches."""
    return [module for module in net.modules() if isinstance(module, CachesFeatures)]


@torch.no_grad()
def update_ema(averaged: nn.Module, net: nn.Module, keep: float, caches: Iterable[CachesFeatures] = ()) -> None:
    """Moves the averaged weights towards the trained weights, in place.

    Every rank (process of the training) stores all averaged weights. If the weights of `net` are sharded over the
    ranks, every rank must call this function at the same time.

    Args:
        averaged: Network from `ema_copy`.
        net: Trained network.
        keep: Weight of the old average, 0 to 1; the trained weights get the weight 1 - keep.
        caches: Result of `feature_caches` for `averaged`; the caches are cleared, because their features become stale.
    """
    if is_sharded(net):
        for old, new in zip(averaged.parameters(), net.parameters(), strict=True):  # one full tensor at a time
            old.lerp_(full_tensor(new), 1 - keep)
    else:
        lerp_all_(list(averaged.parameters()), list(net.parameters()), 1 - keep)
    for module in caches:
        module.clear_cache()


def plain_tensors(net: nn.Module) -> list[Tensor]:
    """Lists the tensors that are plain attributes of modules of `net`, not parameters or buffers."""
    return [value for module in net.modules() for value in vars(module).values() if isinstance(value, Tensor)]
