"""Compiled Adam: the optimiser step of `FlatAdam` as a function of numba, for updates that run inside one.

Shapes: P parameters of `FlatAdam`, a multiple of `ALIGNMENT`. A cached function that uses this file passes it to
`source_checksum`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from powerband.core.optim.flat_adam import FLUSH_BELOW

OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": {"contract"}}
"""Options of `njit`: "contract" allows fused multiply-adds, which do not depend on the run."""
compiled = njit(**OPTIONS)
reduction = njit(**OPTIONS | {"fastmath": {"contract", "reassoc"}})
"""Like `compiled`, for functions that return one sum. The compiler splits the sum into partial sums, one per entry of a
vector register. Their order is fixed when the function is compiled, so a machine repeats the result bit for bit."""
ONE, TINY, SMALL = np.float32(1), np.float32(FLUSH_BELOW), np.float32(1e-6)


@reduction
def scalar_product(a, b):
    """Returns the sum of a b over two arrays (n,)."""
    result = np.float32(0)
    for i in range(a.size):
        result += a[i] * b[i]
    return result


@reduction
def total(a):
    """Returns the sum of an array (n,)."""
    result = np.float32(0)
    for i in range(a.size):
        result += a[i]
    return result


@compiled
def clip_grad_(grad, max_norm):
    """Scales the flat gradient grad (P,) of P parameters, in place, to a 2-norm of at most `max_norm`.

    Returns:
        The 2-norm before the scaling.
    """
    norm = math.sqrt(scalar_product(grad, grad))
    factor = max_norm / (norm + SMALL)
    if not factor >= ONE:  # true for NaN too, which must not be hidden
        for i in range(grad.size):
            grad[i] *= factor
    return norm


@compiled
def adam_step(theta, grad, adam):
    """Takes one step of Adam on P parameters in place, with the same arithmetic as `FusedAdam`.

    Args:
        theta: Parameters (P,).
        grad: Their gradient (P,).
        adam: Tuple (exp_avg (P,), exp_avg_sq (P,), number of steps (1,), lr, beta1, beta2, eps). The arrays are updated
            in place.
    """
    exp_avg, exp_avg_sq, step, lr, beta1, beta2, eps = adam
    step[0] += ONE
    number = np.float64(step[0])
    rate = np.float32(lr / (1.0 - beta1**number))
    root = np.float32(math.sqrt(1.0 - beta2**number))
    weight1, weight2, keep2, epsilon = (
        np.float32(1.0 - beta1),
        np.float32(1.0 - beta2),
        np.float32(beta2),
        np.float32(eps),
    )
    for i in range(theta.size):
        first = exp_avg[i] + weight1 * (grad[i] - exp_avg[i])
        second = keep2 * exp_avg_sq[i] + weight2 * grad[i] * grad[i]
        first = np.float32(0) if abs(first) < TINY else first  # denormal numbers are slow, see `FusedAdam`
        second = np.float32(0) if second < TINY else second
        exp_avg[i], exp_avg_sq[i] = first, second
        theta[i] -= rate * first / (math.sqrt(second) / root + epsilon)
