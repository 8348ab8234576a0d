"""Compiled distributions: log-probabilities, gradients and samples of policies, for use inside functions of numba.

They equal `Categorical` and `DiagGaussian`, and draw the numbers of `Noise`. A cached function that uses this file
passes it and `compiled_streams` to `source_checksum`.

Shapes: R rows, K discrete actions, D entries of a continuous action. Discrete actions are (R, 1) int64; continuous ones
are (R, D), and have log_std (D,), which is empty for discrete actions.
"""

from __future__ import annotations

import math

import numpy as np

from powerband.core.noise.compiled_streams import draw_normal, random_bits
from powerband.core.optim.compiled_adam import compiled

HALF, ONE = np.float32(0.5), np.float32(1)
MASKED = np.float32(-1e9)
HALF_LOG_2PI, HALF_LOG_2PIE = np.float32(0.5 * math.log(2 * math.pi)), np.float32(0.5 * math.log(2 * math.pi * math.e))
UNIT_24 = np.float32(2.0**-24)
BELOW_ONE = np.float32(1 - 2.0**-22)


@compiled
def log_softmax_(logits, mask):
    """Replaces logits (R, K) of R rows and K discrete actions by log-probabilities, in place.

    `mask` is (R, K) bool, True for allowed actions, or empty if all actions are allowed.
    """
    for r in range(len(logits)):
        row, largest, total = logits[r], MASKED, np.float32(0)
        for k in range(row.size):
            if mask.size and not mask[r, k]:
                row[k] = MASKED
            largest = max(largest, row[k])
        for k in range(row.size):
            total += math.exp(row[k] - largest)
        for k in range(row.size):
            row[k] -= largest + math.log(total)


@compiled
def distribution(outputs, log_std, action):
    """Returns log-probabilities (R,) and entropies (R,) of R rows.

    Args:
        outputs: Log-probabilities (R, K) of K discrete actions, or means (R, D) of continuous actions with D entries.
        log_std: Log standard deviations (D,) of continuous actions; empty for discrete actions.
        action: Actions (R, 1) int64 if discrete, else (R, D), whose log-probabilities are returned.
    """
    rows, width = outputs.shape
    log_prob, entropy = np.zeros(rows, np.float32), np.zeros(rows, np.float32)
    for r in range(rows):
        if log_std.size:
            for d in range(width):
                scaled = (np.float32(action[r, d]) - outputs[r, d]) * math.exp(-log_std[d])
                log_prob[r] -= HALF * scaled * scaled + log_std[d] + HALF_LOG_2PI
                entropy[r] += log_std[d] + HALF_LOG_2PIE
        else:
            log_prob[r] = outputs[r, np.int64(action[r, 0])]
            for k in range(width):
                entropy[r] -= math.exp(outputs[r, k]) * outputs[r, k]
    return log_prob, entropy


@compiled
def distribution_backward(outputs, log_std, action, log_prob_grad, entropy_grad, log_std_grad):
    """Backward pass of `distribution`, which writes its results into `outputs` and `log_std_grad`.

    Args:
        outputs: Input of `distribution`, replaced by the gradient of the means (R, D). For discrete actions,
            log-probabilities are replaced by the gradient of the logits (R, K).
        log_std: Log standard deviations (D,) of continuous actions with D entries; empty for K discrete actions.
        action: Actions (R, 1) int64 if discrete, else (R, D); R rows.
        log_prob_grad: Gradient (R,) of the log-probabilities.
        entropy_grad: Gradient of each entropy, one number for all rows.
        log_std_grad: Gradient (D,) of `log_std`, to which this function adds.
    """
    rows, width = outputs.shape
    for r in range(rows):
        if log_std.size:
            for d in range(width):
                inverse = math.exp(-log_std[d])
                scaled = (np.float32(action[r, d]) - outputs[r, d]) * inverse
                outputs[r, d] = log_prob_grad[r] * scaled * inverse
                log_std_grad[d] += log_prob_grad[r] * (scaled * scaled - ONE) + entropy_grad
        else:
            entropy = np.float32(0)
            for k in range(width):
                entropy -= math.exp(outputs[r, k]) * outputs[r, k]
            for k in range(width):
                log_p = outputs[r, k]
                outputs[r, k] = -math.exp(log_p) * (log_prob_grad[r] + entropy_grad * (log_p + entropy))
            outputs[r, np.int64(action[r, 0])] += log_prob_grad[r]


@compiled
def sample_normal(action, means, log_std, keys, counter):
    """Writes normally distributed actions (R, D) of R rows and D entries to `action`.

    Args:
        action: Result (R, D).
        means: Means (R, D).
        log_std: Log standard deviations (D,).
        keys: Keys (n,) int64 of a `Noise`, whose numbers are used. n divides R.
        counter: Counter (1,) int64 of this `Noise`, which is increased.
    """
    rows, width = action.shape
    numbers = np.empty((len(keys), rows // len(keys) * width), np.float32)
    draw_normal(numbers, keys, counter)
    normal = numbers.reshape(rows, width)
    for r in range(rows):
        for d in range(width):
            action[r, d] = means[r, d] + math.exp(log_std[d]) * normal[r, d]


@compiled
def sample_index(action, log_probs, keys, counter):
    """Samples one of K actions in each of R rows, by the inverse distribution function as `inverse_cdf_sample`.

    Args:
        action: Result (R, 1) int64.
        log_probs: Log-probabilities (R, K).
        keys: Keys (n,) int64 of a `Noise`, whose uniform numbers are used. n divides R.
        counter: Counter (1,) int64 of this `Noise`, which is increased.
    """
    rows, width = log_probs.shape
    bits = random_bits(keys, counter, rows // len(keys)).reshape(rows)
    for r in range(rows):
        total, reached, index = np.float32(0), np.float32(0), 0
        for k in range(width):
            total += math.exp(log_probs[r, k])
        point = np.float32(bits[r] >> np.uint64(40)) * UNIT_24 * total * BELOW_ONE
        for k in range(width - 1):
            reached += math.exp(log_probs[r, k])
            index += point >= reached
        action[r, 0] = index


@compiled
def likeliest(action, outputs, log_std):
    """Writes the likeliest action of each of R rows to `action`.

    Continuous actions (R, D) are the means `outputs` (R, D). Discrete actions (R, 1), for which `log_std` is empty, are
    the indices of the largest of the log-probabilities `outputs` (R, K).
    """
    for r in range(len(outputs)):
        best = 0
        for k in range(outputs.shape[1]):
            if log_std.size:
                action[r, k] = outputs[r, k]
            elif outputs[r, k] > outputs[r, best]:
                best = k
        if not log_std.size:
            action[r, 0] = best
