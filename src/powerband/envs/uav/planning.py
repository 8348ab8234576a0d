"""Greedy information gain: each UAV, in order, moves to where its next measurement is expected to tell most.

The expected gain of a cell is that of the reward, W (H_before - H_after) with W after, over both outcomes. Where a UAV
chosen before would see the same cell, the gain is discounted: u <- u (1 - u_other). Names as in `rules`.
"""

from __future__ import annotations

import numpy as np

from powerband.envs.hashing import inlined

from .rules import allowed_moves, inside, keep_apart, step_x, step_y, step_z
from .world import LATTICE, LIMIT, NUM_ACTIONS, UNITS, World, belief_tables, weight_of


def expected_gains(world: World) -> np.ndarray:
    """(altitudes, 2 * LIMIT + 1) float32: expected gain of measuring a cell, by belief; in bits, at least 0."""
    belief = np.arange(-LIMIT, LIMIT + 1)
    p, entropy = 1 / (1 + np.exp(-belief / UNITS)), belief_tables()[1] / belief_tables()[1].max()
    rows = []
    for step, noise in zip(world.steps, world.sensor_noise, strict=True):
        gain = np.zeros(len(belief))
        for sign in (1, -1):
            chance = p * (1 - noise) + (1 - p) * noise
            after = np.clip(belief + sign * step, -LIMIT, LIMIT)
            gain += (chance if sign > 0 else 1 - chance) * weight_of(after) / 2 * (entropy - entropy[after + LIMIT])
        rows.append(gain)
    return np.maximum(rows, 0).astype(np.float32)


@inlined
def after_x(s, n, i, action):
    """Lattice x after an action."""
    return inside(s.position[n, i, 0] + step_x(action), LATTICE)


@inlined
def after_y(s, n, i, action):
    """Lattice y after an action."""
    return inside(s.position[n, i, 1] + step_y(action), LATTICE)


@inlined
def after_z(s, w, n, i, action):
    """Index of the altitude after an action."""
    return inside(s.position[n, i, 2] + step_z(action), w.height.shape[0])


@inlined
def worth(s, w, n, i, action, gains, shared, chosen):
    """Sum over the cells that UAV `i` would see after `action` of their discounted gains, by its own map."""
    x, y, z = after_x(s, n, i, action), after_y(s, n, i, action), after_z(s, w, n, i, action)
    total = 0.0
    for row in range(w.low[z, x], w.high[z, x]):
        for col in range(w.low[z, y], w.high[z, y]):
            at = np.uint32(np.int64(s.belief[n, i, np.uint32(row), np.uint32(col)]) + LIMIT)
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
def plan(s, w, n, i, gains, shared, chosen, mask, value):
    """Chooses for UAV `i` after those before it.

    Args:
        gains: As `expected_gains`.
        shared: Discounts what a UAV that was heard would see.
        chosen, mask: As in `rules.pick`.
        value: (N, A, 6) float32, written: worth of every move, 0 where it is not allowed.
    """
    allowed = keep_apart(s, n, i, allowed_moves(s, w, n, i), chosen)
    best, taken = -1.0, 0
    for action in range(NUM_ACTIONS):
        mask[n, i, action] = allowed >> action & 1
        value[n, i, action] = 0.0
        if allowed >> action & 1:
            gain = worth(s, w, n, i, action, gains, shared, chosen)
            value[n, i, action] = gain
            if gain > best:
                best, taken = gain, action
    chosen[n, i] = taken
