"""FactoredAdam: Adam without a first moment, whose second moment of a matrix is stored as one row and one column.

Source: Shazeer and Stern 2018, arXiv 1804.04235 (Adafactor), with the learning rate of the user in place of relative
step sizes, and decoupled weight decay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

EPS = 1e-30
"""Constant that is added to squared gradients."""
DECAY_POWER = 0.8
"""At step n, counted from 1, the second moment keeps the share 1 - n ** -DECAY_POWER."""
MAX_RMS = 1.0
"""Updates with a larger root mean square are scaled down to it, before they are multiplied by the learning rate."""


class FactoredAdam(torch.optim.Optimizer):
    """Optimiser whose state has n + m numbers for a matrix of n x m, where Adam has 2 n m.

    Args:
        params: Parameters in float32.
        lr: Learning rate.
        weight_decay: Decoupled weight decay, as in `torch.optim.AdamW`.
    """

    def __init__(self, params: Iterable[nn.Parameter], lr: float, weight_decay: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Updates all parameters that have a gradient. `closure` must be None."""
        assert closure is None
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    update = _scaled_gradient(parameter.grad, self.state[parameter])
                    parameter.mul_(1 - group["lr"] * group["weight_decay"]).sub_(update, alpha=group["lr"])


def _scaled_gradient(gradient: Tensor, state: dict[str, Tensor]) -> Tensor:
    """Divides a gradient by the root of its second moment, which is in `state`, and limits its root mean square."""
    if not state:
        state["step"] = torch.zeros((), device=gradient.device)
        if gradient.dim() > 1:
            state["row"] = gradient.new_zeros(gradient.shape[:-1])
            state["column"] = gradient.new_zeros((*gradient.shape[:-2], gradient.shape[-1]))
        else:
            state["square"] = torch.zeros_like(gradient)
    state["step"] += 1
    share = state["step"] ** -DECAY_POWER
    square = gradient.square() + EPS
    if gradient.dim() > 1:
        row = state["row"].lerp_(square.mean(-1), share)
        column = state["column"].lerp_(square.mean(-2), share)
        scale = (row / row.mean(-1, keepdim=True)).rsqrt().unsqueeze(-1) * column.rsqrt().unsqueeze(-2)
    else:
        scale = state["square"].lerp_(square, share).rsqrt()
    update = gradient * scale
    return update / (update.square().mean().sqrt() / MAX_RMS).clamp(min=1.0)
