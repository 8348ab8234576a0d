"""Information gain: each UAV, in order, chooses the move whose next measurement has the largest expected gain.

The gain of a cell is the one in the reward, W (H_before - H_after) with W after the measurement. The expectation is
over both outcomes. If an earlier UAV is going to measure the same cell, the gain is discounted: u <- u (1 - u_other).
Parameter names as in `moves`.
"""

from __future__ import annotations

import numpy as np

from powerband.envs.numba.hashing import inlined
from powerband.recipes.uav.env.rules.moves import (
    allowed_moves,
    clamp_index,
    exclude_taken_cells,
    step_x,
    step_y,
    step_z,
)
from powerband.recipes.uav.env.world import LOG_ODDS_UNITS, MAX_BELIEF, belief_tables, log_odds_steps, twice_roi_weight
from powerband.recipes.uav.settings import LATTICE, NUM_ACTIONS, World


def expected_gains(world: World) -> np.ndarray:
    """Computes the expected gain of measuring a cell.

    Returns:
        (altitudes, 2 MAX_BELIEF + 1) float32: gain in bits by altitude and belief, at least 0.
    """
    belief = np.arange(-MAX_BELIEF, MAX_BELIEF + 1)
    p, entropy = 1 / (1 + np.exp(-belief / LOG_ODDS_UNITS)), belief_tables()[1]
    entropy = entropy / entropy.max()
    rows = []
    for step, noise in zip(log_odds_steps(world), world.sensor_noise, strict=True):
        gain = np.zeros(len(belief))
        for sign in (1, -1):
            positive = p * (1 - noise) + (1 - p) * noise
            probability = positive if sign > 0 else 1 - positive
            after = np.clip(belief + sign * step, -MAX_BELIEF, MAX_BELIEF)
            gain += probability * twice_roi_weight(after) / 2 * (entropy - entropy[after + MAX_BELIEF])
        rows.append(gain)
    return np.maximum(rows, 0).astype(np.float32)


@inlined
def after_x(s, n, i, action):
    """Returns lattice x after an action."""
    return clamp_index(s.position[n, i, 0] + step_x(action), LATTICE)


@inlined
def after_y(s, n, i, action):
    """Returns lattice y after an action."""
    return clamp_index(s.position[n, i, 1] + step_y(action), LATTICE)


@inlined
def after_z(s, w, n, i, action):
    """Returns the index of the altitude after an action."""
    return clamp_index(s.position[n, i, 2] + step_z(action), w.height.shape[0])


@inlined
def expected_gain(s, w, n, i, action, gains, shared, chosen):
    """Returns the sum of the discounted gains, by the UAV's own map, over its footprint after `action`."""
    x, y, z = after_x(s, n, i, action), after_y(s, n, i, action), after_z(s, w, n, i, action)
    total = 0.0
    for row in range(w.low[z, x], w.high[z, x]):
        for col in range(w.low[z, y], w.high[z, y]):
            at = np.uint32(np.int64(s.belief[n, i, np.uint32(row), np.uint32(col)]) + MAX_BELIEF)
            gain = gains[z, at]
            for j in range(i):
                if shared and s.heard[n, i] >> j & 1:
                    jx, jy = after_x(s, n, j, chosen[n, j]), after_y(s, n, j, chosen[n, j])
                    jz = after_z(s, w, n, j, chosen[n, j])
                    if w.low[jz, jx] <= row < w.high[jz, jx] and w.low[jz, jy] <= col < w.high[jz, jy]:
                        gain *= 1.0 - gains[jz, at]
            total += gain
    return total


@inlined
def choose_greedy_move(s, w, n, i, gains, shared, chosen, mask, value):
    """Chooses the move of UAV `i` after the UAVs before it.

    Args:
        gains: Table of `expected_gains`.
        shared: Discount the cells that UAVs, whose messages UAV `i` received, are going to measure.
        chosen: (N, A) int64, written: the move.
        mask: (N, A, 6) bool, written: the allowed moves.
        value: (N, A, 6) float32, written: gain of every allowed move, 0 for the others.
    """
    allowed = exclude_taken_cells(s, n, i, allowed_moves(s, w, n, i), chosen)
    best, selected = -1.0, 0
    for action in range(NUM_ACTIONS):
        mask[n, i, action] = allowed >> action & 1
        value[n, i, action] = 0.0
        if allowed >> action & 1:
            gain = expected_gain(s, w, n, i, action, gains, shared, chosen)
            value[n, i, action] = gain
            if gain > best:
                best, selected = gain, action
    chosen[n, i] = selected
