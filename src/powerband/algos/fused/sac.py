"""Fused SAC: actions, and gradients of critics and actor, of small networks on a CPU, each in one compiled function.

`SAC._critic_loss` and `SAC._actor_loss` define the losses. PyTorch runs about two hundred operators for an update,
whose overhead exceeds the arithmetic of narrow layers several times. Here numba compiles the same computation; a test
compares the two. The first use on a machine compiles for some seconds and stores the result on disk, next to this file
or in ``NUMBA_CACHE_DIR``.

Shapes: B rows of a batch, N environments, F features, D entries of an action, P parameters with the gaps of `FlatAdam`.
Numbers are float32 unless a type is named. Layers are explained in `mlp`.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor

from powerband.core.machine.cache_stamp import source_checksum
from powerband.core.noise import Noise, compiled_streams
from powerband.core.noise.compiled_streams import draw_normal, draw_pink
from powerband.core.optim import compiled_adam
from powerband.core.optim.compiled_adam import OPTIONS, compiled
from powerband.core.optim.flat_adam import FlatAdam, FlatTarget
from powerband.nets.compiled import mlp, product
from powerband.nets.compiled.mlp import (
    RELU,
    backward,
    chosen_rows,
    forward,
    input_gradient,
    joined,
    layer_table,
    position,
    tanh_,
    twin_layer_table,
)
from powerband.nets.mlp import MLP, TwinMLP

LOG_STD_MIN, LOG_STD_MAX = np.float32(-20), np.float32(2)
"""Bounds of the policy's log standard deviation, before the tanh."""
NOUGHT, HALF, ONE, TWO = np.float32(0), np.float32(0.5), np.float32(1), np.float32(2)
NO_NOISE = np.zeros(1, np.int64)
LOG_2, HALF_LOG_2PI = np.float32(math.log(2)), np.float32(0.5 * math.log(2 * math.pi))


@compiled
def squashed(outputs, normal):
    """Samples actions (B, D) in (-1, 1), the tanh of normally distributed numbers, and computes log-probabilities (B,).

    The results equal those of `SAC._policy`.

    Args:
        outputs: Outputs (B, 2 D) of the policy: means, then log standard deviations of D entries of an action, B rows.
        normal: Standard normal numbers (B, D).
    """
    rows, width = normal.shape
    action, log_prob = np.empty((rows, width), np.float32), np.zeros(rows, np.float32)
    for r in range(rows):
        for d in range(width):
            log_std = min(max(outputs[r, width + d], LOG_STD_MIN), LOG_STD_MAX)
            u = outputs[r, d] + math.exp(log_std) * normal[r, d]
            softplus = max(-TWO * u, NOUGHT) + math.log1p(math.exp(-abs(TWO * u)))
            action[r, d] = u
            log_prob[r] -= HALF * normal[r, d] * normal[r, d] + log_std + TWO * (LOG_2 - u - softplus) + HALF_LOG_2PI
    tanh_(action.reshape(action.size))
    return action, log_prob


@compiled
def squashed_backward(outputs, normal, action, action_grad, log_prob_grad):
    """Backward pass of `squashed`; replaces `outputs` by their gradient.

    Args:
        outputs: Outputs (B, 2 D) of the policy for B rows and D entries of an action.
        normal: Standard normal numbers (B, D) that `squashed` received.
        action: Actions (B, D) that `squashed` returned.
        action_grad: Gradient (B, D) of the actions.
        log_prob_grad: Gradient of each log-probability, one number for all rows.
    """
    rows, width = normal.shape
    for r in range(rows):
        for d in range(width):
            log_std = outputs[r, width + d]
            a = action[r, d]
            u_grad = action_grad[r, d] * (ONE - a * a) + TWO * a * log_prob_grad
            outputs[r, d] = u_grad
            outputs[r, width + d] = NOUGHT
            if LOG_STD_MIN <= log_std <= LOG_STD_MAX:
                outputs[r, width + d] = u_grad * math.exp(log_std) * normal[r, d] - log_prob_grad


@cache
def kernels() -> tuple[Any, Any, Any]:
    """Returns three compiled functions: act, critic_gradient and actor_gradient.

    Their common arguments, for B rows, F features and D entries of an action:

    - ``policy``: parameters (P,) of the actor as one array, and its layers, see `mlp.forward`.
    - ``critics``, ``targets``: parameters (P,) of both critics, and of both target critics, as one array.
    - ``layers``: layers (2, L, 5) int64 of the two critics with L layers each, see `mlp.forward`.
    - ``keys`` (B,), ``counter`` (1,) int64: the `Noise` that draws the random numbers (B, 2 D) of an update.
    """
    # A cached function may close over numbers only: a compiled function in its closure would never match the cache.
    stamp = source_checksum(compiled_adam, compiled_streams, mlp, product)

    @njit(cache=True, **OPTIONS)
    def act(policy, obs, keys, counter, explore, pink, centre, scale, action):
        """Writes actions (N, D) in the environment's units to `action`, for N environments and D entries of an action.

        `kernels` explains `policy`. `obs` are features (N, F numbers). If `explore`, the `Noise` of keys (N,) and
        counter (1,) samples the actions, with pink noise if `pink`; otherwise they are the mean. `centre` and `scale`
        (D,) are centre and half range of the actions.
        """
        width = action.shape[1] + 0 * stamp
        outputs = forward(policy[0], policy[1], obs)[1]
        normal = np.zeros((len(obs), width), np.float32)
        if explore:
            if pink:
                draw_pink(normal, keys, counter)
            else:
                draw_normal(normal, keys, counter)
            squashed_action = squashed(outputs, normal)[0]
        else:
            squashed_action = outputs[:, :width].copy()
            tanh_(squashed_action.reshape(squashed_action.size))
        for n in range(len(obs)):
            for d in range(width):
                action[n, d] = centre[d] + scale[d] * squashed_action[n, d]

    @njit(cache=True, **OPTIONS)
    def critic_gradient(policy, critics, targets, layers, keys, counter, alpha, batch, grad, normal, figures):
        """Writes the gradient of the critics' loss to `grad`, for B rows, F features and D entries of an action.

        Args:
            policy, critics, targets, layers, keys, counter: Networks and noise, as `kernels` explains.
            alpha: Temperature, the weight of the entropy.
            batch: obs (B, F), action (B, D) in [-1, 1], reward (B,), next_obs (B, F) and discount (B,).
            grad: Gradient (P,) of the parameters of both critics, overwritten.
            normal: Standard normal numbers (B, 2 D), overwritten. The first half samples next actions, the second half
                is for `actor_gradient`.
            figures: Loss and mean Q (2,), overwritten.
        """
        obs, action, reward, next_obs, discount = batch
        rows, width = np.float32(len(obs) + 0 * stamp), action.shape[1]
        draw_normal(normal, keys, counter)
        outputs = forward(policy[0], policy[1], next_obs)[1]
        next_action, next_log_prob = squashed(outputs, normal[:, :width].copy())
        x = joined(next_obs, next_action)
        first, second = forward(targets, layers[0], x)[1], forward(targets, layers[1], x)[1]
        target = np.empty(len(obs), np.float32)
        for r in range(len(obs)):
            target[r] = reward[r] + discount[r] * (min(first[r, 0], second[r, 0]) - alpha * next_log_prob[r])
        x = joined(obs, action)
        grad[:], figures[:] = 0, 0
        for member in range(2):
            activations, q = forward(critics, layers[member], x)
            for r in range(len(obs)):
                error = q[r, 0] - target[r]
                figures[0] += HALF * error * error / rows
                figures[1] += HALF * q[r, 0] / rows
                q[r, 0] = error / rows
            backward(critics, layers[member], x, activations, q.copy(), grad)

    @njit(cache=True, **OPTIONS)
    def actor_gradient(policy, critics, layers, alpha, log_alpha_at, target_entropy, obs, normal, grad, figures):
        """Writes the gradient of the actor and of log_alpha, the log temperature, to `grad`.

        Args:
            policy, critics, layers: Networks, as `kernels` explains.
            alpha: Temperature, the weight of the entropy.
            log_alpha_at: Position of log_alpha in the parameters of the actor.
            target_entropy: Entropy that the temperature aims at.
            obs: Features (B, F numbers) of B rows.
            normal: Standard normal numbers (B, D entries) that sample the actions.
            grad: Gradient (P,) of the P parameters, overwritten.
            figures: Loss and mean log-probability (2,), overwritten.
        """
        rows, width = np.float32(len(obs) + 0 * stamp), normal.shape[1]
        policy_activations, outputs = forward(policy[0], policy[1], obs)
        action, log_prob = squashed(outputs, normal)
        x = joined(obs, action)
        first_activations, first = forward(critics, layers[0], x)
        second_activations, second = forward(critics, layers[1], x)
        smaller = np.empty(len(obs), np.int64)
        figures[:] = 0
        for r in range(len(obs)):
            smaller[r] = 0 if first[r, 0] <= second[r, 0] else 1
            figures[0] += (alpha * log_prob[r] - (first[r, 0] if smaller[r] == 0 else second[r, 0])) / rows
            figures[1] += log_prob[r] / rows
        action_grad = np.empty((len(obs), width), np.float32)
        for member in range(2):
            activations = first_activations if member == 0 else second_activations
            chosen = np.flatnonzero(smaller == member)  # the minimum has no gradient for the other critic
            activations = chosen_rows(activations, layers[member], len(obs), chosen)
            q_grad = np.full((len(chosen), 1), -ONE / rows, np.float32)
            x_grad = input_gradient(critics, layers[member], activations, q_grad)
            for i in range(len(chosen)):
                for d in range(width):
                    action_grad[chosen[i], d] = x_grad[i, obs.shape[1] + d]
        squashed_backward(outputs, normal, action, action_grad, alpha / rows)
        grad[:] = 0
        backward(policy[0], policy[1], obs, policy_activations, outputs.copy(), grad)
        grad[log_alpha_at] = -(figures[1] + target_entropy)
        figures[0] += policy[0][log_alpha_at] * grad[log_alpha_at]

    return act, critic_gradient, actor_gradient


class FusedSAC:
    """Calls the compiled functions for the networks of one learner and their optimisers.

    Args:
        actor: Network of the policy, with ReLU layers in float32 on a CPU.
        critic: The two critics.
        actor_adam: Optimiser of the actor and of log_alpha; `actor_gradient` writes its flat gradient.
        critic_adam: Optimiser of the critics; `critic_gradient` writes its flat gradient.
        target: Target critics.
        log_alpha: Logarithm of the temperature, 0-d.
        bounds: Centre and half range of the actions (D,).
    """

    def __init__(
        self,
        actor: MLP,
        critic: TwinMLP,
        actor_adam: FlatAdam,
        critic_adam: FlatAdam,
        target: FlatTarget,
        log_alpha: Tensor,
        bounds: tuple[Tensor, Tensor],
    ) -> None:
        self.actor_adam, self.critic_adam = actor_adam, critic_adam
        theta, critics = actor_adam.flat.detach(), critic_adam.flat.detach()
        self.layers = twin_layer_table(critics, critic)
        self.policy = theta.numpy(), layer_table(theta, (*actor.hidden, actor.output), RELU)
        self.critics, self.targets = critics.numpy(), target.flat.numpy()
        self.log_alpha_at = position(theta, log_alpha)
        self.bounds = tuple(bound.numpy() for bound in bounds)

    def act(self, obs: Tensor, noise: Noise | None, pink: bool = False) -> Tensor:
        """Samples actions with the numbers of `noise`, or takes the mean if `noise` is None.

        Args:
            obs: Features (N, F numbers) of N environments.
            noise: Source of the random numbers, or None.
            pink: Uses the pink noise of the source.

        Returns:
            Actions (N, D entries) in the environment's units.
        """
        action = torch.empty(len(obs), len(self.bounds[0]))
        keys, counter = (NO_NOISE, NO_NOISE) if noise is None else (noise.keys.numpy(), noise.counter.view(1).numpy())
        rows = obs.contiguous().numpy()
        kernels()[0](self.policy, rows, keys, counter, noise is not None, pink, *self.bounds, action.numpy())
        return action

    def critic_gradient(self, batch: tuple[Tensor, ...], noise: Noise, alpha: float) -> tuple[Tensor, Tensor, Tensor]:
        """Computes the gradient of the critics' loss, and writes it to the ``grad`` of the critics' optimiser.

        Args:
            batch: Features (B, F), actions (B, D) in [-1, 1], rewards (B,), next features (B, F) and discounts (B,),
                for B rows, F features and D entries of an action.
            noise: Source of the random numbers, with one id per row.
            alpha: Temperature, the weight of the entropy.

        Returns:
            Loss and mean Q, 0-d tensors, and standard normal numbers (B, 2 D), whose second half is for
            `actor_gradient`.
        """
        arrays = tuple(tensor.contiguous().numpy() for tensor in batch)
        normal, figures = torch.empty(len(batch[0]), 2 * batch[1].shape[1]), torch.empty(2)
        stream = noise.keys.numpy(), noise.counter.view(1).numpy()
        kernels()[1](
            self.policy, self.critics, self.targets, self.layers, *stream, np.float32(alpha), arrays,
            self.critic_adam.grad.numpy(), normal.numpy(), figures.numpy(),
        )  # fmt: skip
        return figures[0], figures[1], normal

    def actor_gradient(self, obs: Tensor, normal: Tensor, alpha: float, target_entropy: float) -> tuple[Tensor, Tensor]:
        """Computes the gradient of the actor and of log_alpha, and writes it to the ``grad`` of their optimiser.

        Args:
            obs: Features (B, F numbers) of B rows.
            normal: Standard normal numbers (B, D entries) that sample the actions.
            alpha: Temperature, the weight of the entropy.
            target_entropy: Entropy that the temperature aims at.

        Returns:
            Loss and mean log-probability, 0-d tensors.
        """
        figures = torch.empty(2)
        kernels()[2](
            self.policy, self.critics, self.layers, np.float32(alpha), self.log_alpha_at, np.float32(target_entropy),
            obs.contiguous().numpy(), normal.contiguous().numpy(), self.actor_adam.grad.numpy(), figures.numpy(),
        )  # fmt: skip
        return figures[0], figures[1]
