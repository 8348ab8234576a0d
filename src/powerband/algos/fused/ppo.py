"""Fused PPO: actions, and updates on mini-batches, of small networks on a CPU, each in one compiled function.

`PPO._loss` defines the loss. PyTorch runs about a hundred operators for its gradient, whose overhead exceeds the
arithmetic of 64 rows several times. Here numba compiles the same computation; a test compares the two. The first use
on a machine compiles for some seconds and stores the result on disk, next to this file or in ``NUMBA_CACHE_DIR``.

Shapes: B rows of a rollout, R rows of a mini-batch, F features, K discrete actions, D entries of a continuous action, P
parameters with the gaps of `FlatAdam`. Numbers are float32 unless a type is named. Actions are (R, 1) int64, or (R, D)
if they are continuous.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor

from powerband.algos.settings import PPOConfig
from powerband.core.machine.cache_stamp import source_checksum
from powerband.core.noise import Noise, compiled_streams
from powerband.core.optim import compiled_adam
from powerband.core.optim.compiled_adam import OPTIONS, adam_step, clip_grad_, compiled
from powerband.core.optim.flat_adam import FlatAdam
from powerband.nets.actor_critic import ActorCritic
from powerband.nets.compiled import distributions, mlp, product
from powerband.nets.compiled.distributions import (
    distribution,
    distribution_backward,
    likeliest,
    log_softmax_,
    sample_index,
    sample_normal,
)
from powerband.nets.compiled.mlp import backward, forward, normalised

HALF, ONE = np.float32(0.5), np.float32(1)
NO_COUNTER = np.zeros(1, np.int64)
FIGURES = tuple(f"losses/{name}" for name in ("policy", "value", "entropy", "kl", "clipped", "grad_norm"))


@compiled
def take(values, rows):
    """Returns the rows of values (B, ...) with the indices rows (R,) int64, as (R, ...).

    Empty `values`, such as the mask if all actions are allowed, are returned unchanged.
    """
    if not len(values):
        return values
    taken = np.empty((len(rows), values.shape[1]), values.dtype)
    for r in range(len(rows)):
        for column in range(values.shape[1]):
            taken[r, column] = values[rows[r], column]
    return taken


@compiled
def loss_gradient(theta, log_std_at, policy, critic, norm, x, mask, action, old, settings, grad, figures):
    """Computes the gradient of the loss `PPO._loss` and statistics for a mini-batch of R rows.

    Args:
        theta, log_std_at, policy, critic, norm, x, mask: Network and observations, as `kernels` explains.
        action: Actions (R, 1) int64 if discrete, else (R, D) with D entries.
        old: Log-probability, value, advantage and return of each row in the rollout (R, 4).
        settings: Clip range, value and entropy coefficients, value clip range, and largest KL divergence. Infinity
            disables either of the last two.
        grad: Gradient (P,) of all P parameters, overwritten.
        figures: The first five entries of `FIGURES`: policy and value loss, entropy, KL divergence and clipped
            fraction.
    """
    clip, value_coef, entropy_coef, value_clip, max_kl = settings
    x = normalised(x, norm[0], norm[1], norm[2])
    rows = np.float32(len(x))
    log_std = theta[log_std_at[0] : log_std_at[1]]
    policy_activations, outputs = forward(theta, policy, x)
    critic_activations, value = forward(theta, critic, x)
    if not log_std.size:
        log_softmax_(outputs, mask)
    log_prob, entropy = distribution(outputs, log_std, action)
    log_prob_grad, value_grad = np.zeros(len(x), np.float32), np.zeros((len(x), 1), np.float32)
    figures[:] = 0
    for r in range(len(x)):
        old_log_prob, old_value, advantage, returns = old[r, 0], old[r, 1], old[r, 2], old[r, 3]
        log_ratio = log_prob[r] - old_log_prob
        ratio = math.exp(log_ratio)
        clipped = ONE + clip if ratio > ONE + clip else ratio
        clipped = ONE - clip if ratio < ONE - clip else clipped
        gain, clipped_gain = ratio * advantage, clipped * advantage
        if clipped_gain < gain:
            figures[0] -= clipped_gain / rows
        else:
            figures[0] -= gain / rows
            log_prob_grad[r] = -gain / rows
        error, change = value[r, 0] - returns, value[r, 0] - old_value
        square, value_grad[r, 0] = error * error, value_coef * error / rows
        if abs(change) > value_clip:
            clipped_error = old_value + math.copysign(value_clip, change) - returns
            if clipped_error * clipped_error > square:
                square, value_grad[r, 0] = clipped_error * clipped_error, np.float32(0)
        figures[1] += HALF * square / rows
        figures[2] += entropy[r] / rows
        figures[3] += (ratio - ONE - log_ratio) / rows
        figures[4] += np.float32(clipped != ratio) / rows
    entropy_grad = -entropy_coef / rows
    if figures[3] > max_kl:  # this mini-batch trains the value only
        log_prob_grad[:] = 0
        entropy_grad = np.float32(0)
    grad[:] = 0
    log_std_grad = grad[log_std_at[0] : log_std_at[1]]
    distribution_backward(outputs, log_std, action, log_prob_grad, entropy_grad, log_std_grad)
    backward(theta, policy, x, policy_activations, outputs, grad)
    backward(theta, critic, x, critic_activations, value_grad, grad)


@cache
def kernels() -> tuple[Any, Any, Any]:
    """Returns three compiled functions: act, gradient and epoch.

    ``act`` chooses actions, ``gradient`` computes the gradient of one mini-batch, and ``epoch`` takes one optimiser
    step on each mini-batch of a rollout. Their common arguments, in order:

    - ``theta`` (P,): all P parameters as one array.
    - ``log_std_at``: position of the first entry of log_std in ``theta`` and the position after its last entry; both
      are equal for discrete actions.
    - ``policy``, ``critic``: layers of the two networks, see `mlp.forward`.
    - ``norm``: mean and variance (F,) and clip of `RunningNorm`; empty arrays if observations are not normalised.
    - ``x`` (R, F): F features of R rows.
    - ``mask`` (R, K) bool: True for allowed actions out of K; empty if all are allowed.
    """
    # A cached function may close over numbers only: a compiled function in its closure would never match the cache.
    stamp = source_checksum(compiled_adam, compiled_streams, distributions, mlp, product)

    @njit(cache=True, **OPTIONS)
    def act(theta, log_std_at, policy, critic, norm, x, mask, keys, counter, explore, action, log_prob, value):
        """Writes the actions, log-probabilities (R,) and values (R,) of R rows to `action`, `log_prob` and `value`.

        `kernels` explains the arguments up to `mask`. If `explore`, actions are sampled with the `Noise` of keys (n,)
        and counter (1,); otherwise they are the likeliest ones. Actions are (R, 1) int64 if discrete, else (R, D
        entries).
        """
        x = normalised(x, norm[0], norm[1], norm[2])
        log_std = theta[log_std_at[0] : log_std_at[1] + 0 * stamp]
        outputs, values = forward(theta, policy, x)[1], forward(theta, critic, x)[1]
        if not log_std.size:
            log_softmax_(outputs, mask)
        if not explore:
            likeliest(action, outputs, log_std)
        elif log_std.size:
            sample_normal(action, outputs, log_std, keys, counter)
        else:
            sample_index(action, outputs, keys, counter)
        chosen, _ = distribution(outputs, log_std, action)
        for r in range(len(x)):
            value[r], log_prob[r] = values[r, 0], chosen[r]

    @njit(cache=True, **OPTIONS)
    def gradient(*arguments):
        """Calls `loss_gradient` with the same arguments."""
        loss_gradient(*arguments)
        return 0 * stamp

    @njit(cache=True, **OPTIONS)
    def epoch(
        theta,
        log_std_at,
        policy,
        critic,
        norm,
        x,
        mask,
        action,
        old,
        settings,
        grad,
        order,
        size,
        max_norm,
        adam,
        means,
    ):
        """Takes one step of Adam on each mini-batch of `size` rows of a rollout.

        Args:
            theta, log_std_at, policy, critic, norm, x, mask: Network, and observations of B rows, as `kernels`
                explains.
            action, old, settings, grad: As in `loss_gradient`, with B rows.
            order: Order of the rows, a permutation (B,) int64.
            size: Rows of a mini-batch; the last one may be smaller.
            max_norm: Largest 2-norm of the gradient.
            adam: State and settings of Adam, as in `adam_step`.
            means: Means over mini-batches (6,) of the losses and statistics that `FIGURES` names, overwritten.
        """
        figures = np.empty(means.size, np.float32)
        count = np.float32(-(-len(order) // size) + 0 * stamp)
        means[:] = 0
        for first in range(0, len(order), size):
            rows = order[first : first + size]
            part, allowed, chosen, before = take(x, rows), take(mask, rows), take(action, rows), take(old, rows)
            loss_gradient(
                theta, log_std_at, policy, critic, norm, part, allowed, chosen, before, settings, grad, figures
            )
            figures[5] = clip_grad_(grad, max_norm)
            adam_step(theta, grad, adam)
            for i in range(means.size):
                means[i] += figures[i] / count

    return act, gradient, epoch


class FusedPPO:
    """Calls the three compiled functions for one network and its optimiser.

    Args:
        net: Network with two trunks of tanh layers, without GRU and central critic, in float32 on a CPU.
        adam: Optimiser of the network; `gradient` writes its flat gradient.
        config: Hyper-parameters.
    """

    max_rows = 1024
    """Rows up to which these functions are used. With layers of 256 units, PyTorch is as fast from 1,024 rows on."""

    def __init__(self, net: ActorCritic, adam: FlatAdam, config: PPOConfig) -> None:
        assert net.value_trunk is not None
        self.norm, self.adam, self.theta = net.norm, adam, adam.flat.detach()
        self.action_type = (torch.int64, 1) if net.log_std is None else (torch.float32, net.outputs)

        self.layers = (
            mlp.layer_table(self.theta, (*net.trunk.hidden, net.head), mlp.TANH),
            mlp.layer_table(self.theta, (*net.value_trunk.hidden, net.value_head), mlp.TANH),
        )
        begin, size = (0, 0) if net.log_std is None else (mlp.position(self.theta, net.log_std), net.log_std.numel())
        limits = (config.value_clip, None if config.target_kl is None else 1.5 * config.target_kl)
        bounds = (math.inf if limit is None else limit for limit in limits)
        self.log_std_at = begin, begin + size
        self.settings = tuple(map(np.float32, (config.clip, config.value_coef, config.entropy_coef, *bounds)))

    def set_entropy_coef(self, coef: float) -> None:
        """Sets the weight of the entropy bonus."""
        clip, value_coef, _, *bounds = self.settings
        self.settings = (clip, value_coef, np.float32(coef), *bounds)

    def _arguments(self, x: Tensor, mask: Tensor | None) -> tuple:
        """Returns the common arguments of the compiled functions."""
        empty = np.empty(0, np.float32)
        norm = (empty, empty) if self.norm is None else (self.norm.mean.numpy(), self.norm.var.numpy())
        clip = np.float32(math.inf if self.norm is None else self.norm.clip)
        allowed = np.empty((0, 0), np.bool_) if mask is None else mask.numpy()
        return self.theta.numpy(), self.log_std_at, *self.layers, (*norm, clip), x.contiguous().numpy(), allowed

    def act(self, x: Tensor, mask: Tensor | None, noise: Noise | None) -> tuple[Tensor, Tensor, Tensor]:
        """Samples actions with the numbers of `noise`, or takes the likeliest actions if `noise` is None.

        Args:
            x: Features (R, F numbers) of R rows.
            mask: Allowed actions (R, K actions) bool; None allows all.
            noise: Source of the random numbers of these rows, or None.

        Returns:
            Actions (R,) int64 if discrete, else (R, D entries); log-probabilities (R,); values (R,).
        """
        dtype, width = self.action_type
        action, log_prob, value = torch.empty(len(x), width, dtype=dtype), torch.empty(len(x)), torch.empty(len(x))
        counter, keys = (
            (NO_COUNTER, NO_COUNTER) if noise is None else (noise.counter.view(1).numpy(), noise.keys.numpy())
        )
        results = (action.numpy(), log_prob.numpy(), value.numpy())
        kernels()[0](*self._arguments(x, mask), keys, counter, noise is not None, *results)
        return action if dtype.is_floating_point else action.view(-1), log_prob, value

    def gradient(self, x: Tensor, mask: Tensor | None, action: Tensor, old: Tensor) -> dict[str, Tensor]:
        """Computes the gradient of the PPO loss of a mini-batch, and writes it to the ``grad`` of the optimiser.

        Args:
            x: Features (R, F numbers) of R rows.
            mask: Allowed actions (R, K actions) bool; None allows all.
            action: Actions (R,) int64 if discrete, else (R, D entries).
            old: Log-probability, value, advantage and return of each row in the rollout (R, 4).

        Returns:
            Losses and statistics by name, 0-d tensors.
        """
        figures = torch.empty(len(FIGURES) - 1)
        kernels()[1](*self._arguments(x, mask), *self._learning(action, old), figures.numpy())
        return dict(zip(FIGURES[:-1], figures.unbind(), strict=True))

    def epoch(
        self, x: Tensor, mask: Tensor | None, action: Tensor, old: Tensor, order: Tensor, size: int
    ) -> dict[str, Tensor]:
        """Takes one optimiser step on each mini-batch of a rollout.

        Args:
            x, mask, action, old: As in `gradient`, with all B rows of the rollout.
            order: Order of the rows, a permutation (B,) int64.
            size: Rows of a mini-batch.

        Returns:
            Means over the mini-batches of the losses and statistics by name, 0-d tensors.
        """
        figures, adam = torch.empty(len(FIGURES)), self.adam.adam
        state = tuple(adam.state[name].view(-1).numpy() for name in ("exp_avg", "exp_avg_sq", "step"))
        steps = (
            order.numpy(),
            size,
            np.float32(self.adam.max_grad_norm),
            (*state, float(adam.lr), *adam.betas, adam.eps),
        )
        kernels()[2](*self._arguments(x, mask), *self._learning(action, old), *steps, figures.numpy())
        return dict(zip(FIGURES, figures.unbind(), strict=True))

    def _learning(self, action: Tensor, old: Tensor) -> tuple:
        """Returns the further common arguments of `gradient` and `epoch`."""
        return action.reshape(-1, self.action_type[1]).numpy(), old.numpy(), self.settings, self.adam.grad.numpy()
