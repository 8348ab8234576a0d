"""Averaged weights: a copy of a network that follows the one that is trained, and acts."""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
from torch import Tensor, nn

from powerband.core.sharded import sharded, whole

Net = TypeVar("Net", bound=nn.Module)


def follower(net: Net) -> Net:
    """A copy without gradients; plain tensors (pictures, instructions: no weights) are shared, not copied."""
    shared = {id(tensor): tensor for tensor in shown(net)}
    return copy.deepcopy(net, shared).requires_grad_(False)


@torch.no_grad()
def follow(acting: nn.Module, net: nn.Module, keep: float) -> None:
    """Moves the weights of `acting` to `keep` of themselves and the rest of those of `net`, in place.

    The weights of `acting` are whole, as one rank draws chunks with them. Where those of `net` lie in shards, this is a
    collective.
    """
    if sharded(net):
        for averaged, weight in zip(acting.parameters(), net.parameters(), strict=True):  # one whole one at a time
            averaged.lerp_(whole(weight), 1 - keep)
    else:
        torch._foreach_lerp_(list(acting.parameters()), list(net.parameters()), 1 - keep)
    forget(acting)


def shown(net: nn.Module) -> list[Tensor]:
    """Plain tensors that modules of `net` hold beside parameters and buffers."""
    return [value for module in net.modules() for value in vars(module).values() if isinstance(value, Tensor)]


def forget(net: nn.Module) -> None:
    """Tells the modules of `net` that keep what they computed that the weights have changed."""
    for module in net.modules():
        if hasattr(module, "forget"):
            module.forget()
