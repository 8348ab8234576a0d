"""Fused DQN: values, and the gradient of the loss, of a small network on a CPU, each in one compiled function.

`DQN._loss` defines the loss. PyTorch runs about sixty operators for an update, whose overhead exceeds the arithmetic of
narrow layers several times. Here numba compiles the same computation; a test compares the two. The first use on a
machine compiles for some seconds and stores the result on disk, next to this file or in ``NUMBA_CACHE_DIR``.

Shapes: B rows of a batch, F features, K actions, P parameters with the gaps of `FlatAdam`. Numbers are float32 unless a
type is named. Layers are explained in `mlp`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor

from powerband.core.machine.cache_stamp import source_checksum
from powerband.core.optim import compiled_adam
from powerband.core.optim.compiled_adam import OPTIONS, compiled
from powerband.core.optim.flat_adam import FlatAdam, FlatTarget
from powerband.nets.compiled import mlp, product
from powerband.nets.compiled.mlp import RELU, backward, forward, layer_table
from powerband.nets.mlp import MLP

HALF, ONE = np.float32(0.5), np.float32(1)
NO_MASK, NO_WEIGHT = np.ones((0, 0), np.bool_), np.ones(0, np.float32)


@compiled
def best_allowed(values, mask, row):
    """Returns the first action with the largest value in row `row` of values (B, K) that mask (B, K) bool allows.

    An empty mask allows all of the K actions; a row of B without allowed actions gets action 0. As for `argmax` in
    PyTorch, NaN is larger than every number.
    """
    best = -1
    for k in range(values.shape[1]):
        if mask.size and not mask[row, k]:
            continue
        value = values[row, k]
        if best < 0 or (not value <= values[row, best] and values[row, best] == values[row, best]):
            best = k
    return max(best, 0)


@cache
def kernels() -> tuple[Any, Any]:
    """Returns two compiled functions: values and gradient."""
    # A cached function may close over numbers only: a compiled function in its closure would never match the cache.
    stamp = source_checksum(compiled_adam, mlp, product)

    @njit(cache=True, **OPTIONS)
    def values(theta, layers, obs, result):
        """Writes values (N, K actions) of features obs (N, F) to `result`. `mlp.forward` explains theta and layers."""
        result[:] = forward(theta, layers, obs)[1] + np.float32(0 * stamp)

    @njit(cache=True, **OPTIONS)
    def gradient(theta, target, layers, batch, mask, weight, double, delta, grad, errors, figures):
        """Writes the gradient of the loss of B rows, with F features and K actions, to `grad`.

        Args:
            theta: Parameters (P,) of the network.
            target: Parameters (P,) of the target network.
            layers: Layers of both networks (L, 5) int64, see `mlp.forward`.
            batch: obs (B, F), action (B,) int64, reward (B,), next_obs (B, F) and discount (B,).
            mask: Allowed next actions (B, K) bool; an empty array allows all.
            weight: Weights of the rows (B,); an empty array weighs all by 1.
            double: Whether the network chooses the next action, instead of the target network.
            delta: Error above which the loss is linear.
            grad: Gradient (P,) of the parameters, overwritten.
            errors: Absolute errors (B,), overwritten.
            figures: Loss and mean Q (2,), overwritten.
        """
        obs, action, reward, next_obs, discount = batch
        rows = np.float32(len(obs) + 0 * stamp)
        next_q = forward(target, layers, next_obs)[1]
        chooser = forward(theta, layers, next_obs)[1] if double else next_q
        activations, q = forward(theta, layers, obs)
        q_grad = np.zeros(q.shape, np.float32)
        grad[:], figures[:] = 0, 0
        for r in range(len(obs)):
            chosen = q[r, action[r]]
            error = chosen - reward[r] - discount[r] * next_q[r, best_allowed(chooser, mask, r)]
            size = abs(error)
            share = (weight[r] if weight.size else ONE) / rows
            linear = size > delta
            figures[0] += share * (delta * (size - HALF * delta) if linear else HALF * error * error)
            figures[1] += chosen / rows
            q_grad[r, action[r]] = share * (delta * np.sign(error) if linear else error)
            errors[r] = size
        backward(theta, layers, obs, activations, q_grad, grad)

    return values, gradient


class FusedDQN:
    """Calls the compiled functions for the network of one learner and its optimiser.

    All tensors are on the CPU, so ``numpy()`` is a view of the same memory and waits for nothing.

    Args:
        net: Network with ReLU layers and one output per action, in float32 on a CPU.
        adam: Optimiser of the network; `gradient` writes its flat gradient.
        target: Target network.
        double: Whether the network chooses the next action, instead of the target network.
        delta: Error above which the loss is linear.
    """

    def __init__(self, net: MLP, adam: FlatAdam, target: FlatTarget, double: bool, delta: float) -> None:
        self.adam, self.theta, self.target = adam, adam.flat.detach().numpy(), target.flat.numpy()
        self.layers, self.num_actions = layer_table(adam.flat, (*net.hidden, net.output), RELU), net.width
        self.double, self.delta = double, np.float32(delta)

    def values(self, obs: Tensor) -> Tensor:
        """Computes values (N, K) of features (N, F numbers) of N environments and K actions."""
        result = torch.empty(len(obs), self.num_actions)
        kernels()[0](self.theta, self.layers, obs.contiguous().numpy(), result.numpy())
        return result

    def gradient(
        self, batch: tuple[Tensor, ...], mask: Tensor | None, weight: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Computes the gradient of the loss, and writes it to the ``grad`` of the optimiser.

        Args:
            batch: Features (B, F), actions (B,) int64, rewards (B,), next features (B, F) and discounts (B,), for B
                rows and F features.
            mask: Allowed next actions (B, K) bool; None allows all.
            weight: Weights (B,) of the rows; None weighs all by 1.

        Returns:
            Loss and mean Q, 0-d tensors, and absolute errors (B,).
        """
        arrays = tuple(tensor.contiguous().numpy() for tensor in batch)
        errors, figures = torch.empty(len(batch[0])), torch.empty(2)
        kernels()[1](
            self.theta, self.target, self.layers, arrays,
            NO_MASK if mask is None else mask.contiguous().numpy(),
            NO_WEIGHT if weight is None else weight.contiguous().numpy(),
            self.double, self.delta, self.adam.grad.numpy(), errors.numpy(), figures.numpy(),
        )  # fmt: skip
        return figures[0], figures[1], errors
