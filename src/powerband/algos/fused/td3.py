"""Fused TD3: actions, and gradients of critics and actor, of small networks on a CPU, each in one compiled function.

`TD3._critic_loss` and `TD3._actor_loss` define the losses; a test compares the two. numba compiles the same computation
without the overhead of PyTorch's operators. The first use on a machine compiles for some seconds and stores the result
on disk, next to this file or in ``NUMBA_CACHE_DIR``.

Shapes: B rows of a batch, N environments, F features, D entries of an action, P parameters with the gaps of `FlatAdam`.
Numbers are float32 unless a type is named. Layers are explained in `mlp`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor

from powerband.algos.settings import TD3Config
from powerband.core.machine.cache_stamp import source_checksum
from powerband.core.optim import compiled_adam
from powerband.core.optim.compiled_adam import OPTIONS
from powerband.core.optim.flat_adam import FlatAdam, FlatTarget
from powerband.nets.compiled import mlp, product
from powerband.nets.compiled.mlp import (
    RELU,
    backward,
    forward,
    input_gradient,
    joined,
    layer_table,
    tanh_,
    twin_layer_table,
)
from powerband.nets.mlp import MLP, TwinMLP

HALF, ONE, TWO = np.float32(0.5), np.float32(1), np.float32(2)
NO_WEIGHT = np.ones(0, np.float32)


@cache
def kernels() -> tuple[Any, Any, Any]:
    """Returns three compiled functions: act, critic_gradient and actor_gradient.

    Their common arguments:

    - ``policy``, ``target_policy``: parameters (P,) of actor or target actor as one array, and its layers, see
      `mlp.forward`.
    - ``critics``, ``targets``: parameters (P,) of both critics, and of both target critics, as one array.
    - ``layers``: layers (2, L, 5) int64 of the two critics with L layers each.
    """
    # A cached function may close over numbers only: a compiled function in its closure would never match the cache.
    stamp = source_checksum(compiled_adam, mlp, product)

    @njit(cache=True, **OPTIONS)
    def act(policy, obs, action):
        """Writes actions (N, D) in [-1, 1], without noise, to `action`; `obs` are features (N, F)."""
        action[:] = forward(policy[0], policy[1], obs)[1] + np.float32(0 * stamp)
        tanh_(action.reshape(action.size))

    @njit(cache=True, **OPTIONS)
    def critic_gradient(
        target_policy, critics, targets, layers, target_noise, noise_clip, batch, weight, normal, grad, errors, figures
    ):
        """Writes the gradient of the critics' loss to `grad`.

        Args:
            target_policy, critics, targets, layers: Networks, as `kernels` explains.
            target_noise, noise_clip: Standard deviation and limit of the noise on the target policy's actions.
            batch: obs (B, F), action (B, D) in [-1, 1], reward (B,), next_obs (B, F) and discount (B,).
            weight: Weights of the rows (B,); an empty array weighs all by 1.
            normal: Standard normal numbers (B, D).
            grad: Gradient (P,) of the parameters of both critics, overwritten.
            errors: Errors Q(s, a) - y (2, B), overwritten.
            figures: Loss and mean Q (2,), overwritten.
        """
        obs, action, reward, next_obs, discount = batch
        rows = np.float32(len(obs) + 0 * stamp)
        next_action = forward(target_policy[0], target_policy[1], next_obs)[1]
        tanh_(next_action.reshape(next_action.size))
        for r in range(len(obs)):
            for d in range(action.shape[1]):
                noise = min(max(target_noise * normal[r, d], -noise_clip), noise_clip)
                next_action[r, d] = min(max(next_action[r, d] + noise, -ONE), ONE)
        x = joined(next_obs, next_action)
        first, second = forward(targets, layers[0], x)[1], forward(targets, layers[1], x)[1]
        x = joined(obs, action)
        grad[:], figures[:] = 0, 0
        for member in range(2):
            activations, q = forward(critics, layers[member], x)
            for r in range(len(obs)):
                error = q[r, 0] - (reward[r] + discount[r] * min(first[r, 0], second[r, 0]))
                share = (weight[r] if weight.size else ONE) / rows
                errors[member, r] = error
                figures[0] += share * error * error
                figures[1] += HALF * q[r, 0] / rows
                q[r, 0] = TWO * share * error
            backward(critics, layers[member], x, activations, q.copy(), grad)

    @njit(cache=True, **OPTIONS)
    def actor_gradient(policy, critics, layers, obs, grad, figures):
        """Writes the gradient of the actor's loss to `grad` (P,) and the loss to `figures` (1,).

        `kernels` explains the other arguments; `obs` are features (B, F).
        """
        rows, width = np.float32(len(obs) + 0 * stamp), policy[1][-1, 2]
        policy_activations, outputs = forward(policy[0], policy[1], obs)
        action = outputs.copy()
        tanh_(action.reshape(action.size))
        activations, q = forward(critics, layers[0], joined(obs, action))
        figures[0] = -q.sum() / rows
        action_grad = input_gradient(critics, layers[0], activations, np.full(q.shape, -ONE / rows, np.float32))
        outputs_grad = action_grad[:, -width:] * (ONE - action * action)
        grad[:] = 0
        backward(policy[0], policy[1], obs, policy_activations, outputs_grad, grad)

    return act, critic_gradient, actor_gradient


class FusedTD3:
    """Calls the compiled functions for the networks of one learner and their optimisers.

    All tensors are on the CPU, so ``numpy()`` is a view of the same memory and waits for nothing.

    Args:
        actor: Network of the policy, with ReLU layers in float32 on a CPU.
        critic: The two critics.
        adams: Optimisers of the actor and of the critics; the functions write their flat gradients.
        targets: Target actor and target critics.
        config: Noise on the target policy's actions.
    """

    def __init__(
        self,
        actor: MLP,
        critic: TwinMLP,
        adams: tuple[FlatAdam, FlatAdam],
        targets: tuple[FlatTarget, FlatTarget],
        config: TD3Config,
    ) -> None:
        self.actor_grad, self.critic_grad = (adam.grad.numpy() for adam in adams)
        theta, critics = (adam.flat.detach() for adam in adams)
        policy_layers = layer_table(theta, (*actor.hidden, actor.output), RELU)
        self.policy, self.target_policy = (theta.numpy(), policy_layers), (targets[0].flat.numpy(), policy_layers)
        self.critics, self.targets = critics.numpy(), targets[1].flat.numpy()
        self.layers, self.width = twin_layer_table(critics, critic), int(policy_layers[-1, 2])
        self.noise = np.float32(config.target_noise), np.float32(config.target_noise_clip)

    def act(self, obs: Tensor) -> Tensor:
        """Computes actions (N, D) in [-1, 1], without noise, from features (N, F) of N environments."""
        action = torch.empty(len(obs), self.width)
        kernels()[0](self.policy, obs.contiguous().numpy(), action.numpy())
        return action

    def critic_gradient(
        self, batch: tuple[Tensor, ...], weight: Tensor | None, normal: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Computes the gradient of the critics' loss, and writes it to the ``grad`` of the critics' optimiser.

        Args:
            batch: Features (B, F), actions (B, D) in [-1, 1], rewards (B,), next features (B, F) and discounts (B,),
                for B rows, F features and D entries of an action.
            weight: Weights (B,) of the rows; None weighs all by 1.
            normal: Standard normal numbers (B, D) for the noise on the target policy's actions.

        Returns:
            Loss and mean Q, 0-d tensors, and errors Q(s, a) - y (2 critics, B).
        """
        arrays = tuple(tensor.contiguous().numpy() for tensor in batch)
        errors, figures = torch.empty(2, len(batch[0])), torch.empty(2)
        kernels()[1](
            self.target_policy, self.critics, self.targets, self.layers, *self.noise, arrays,
            NO_WEIGHT if weight is None else weight.contiguous().numpy(), normal.contiguous().numpy(),
            self.critic_grad, errors.numpy(), figures.numpy(),
        )  # fmt: skip
        return figures[0], figures[1], errors

    def actor_gradient(self, obs: Tensor) -> Tensor:
        """Computes the gradient of the actor's loss for features (B, F), and writes it to its optimiser's ``grad``.

        Returns:
            The loss, a 0-d tensor.
        """
        figures = torch.empty(1)
        rows = obs.contiguous().numpy()
        kernels()[2](self.policy, self.critics, self.layers, rows, self.actor_grad, figures.numpy())
        return figures[0]
