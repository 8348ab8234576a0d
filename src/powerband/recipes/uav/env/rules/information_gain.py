"""Information gain: chooses for each UAV the move whose next measurement has the largest expected gain.

The gain u of a cell is W (H_before - H_after), as in the reward of `UavEnv`: H is the entropy of the cell, and W its
weight after the measurement. The expectation is over both outcomes. If an earlier UAV is going to measure the same
cell, with the gain u_other, the gain is discounted: u <- u (1 - u_other).

Parameter names: `s` is a `MissionArrays`, the state of all missions; `w` is a `WorldArrays`, the constants of the
world; `n` is the index of the mission in `s`; `i` and `j` are UAVs.
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
    """Computes the expected information gain of one measurement of a cell, for each altitude and each belief.

    The gain is the decrease of the cell's weighted entropy, in expectation over the result of the measurement. A belief
    b is the log odds of the cell in units of 1 / 2048, an integer from -MAX_BELIEF to MAX_BELIEF.

    Returns:
        (altitudes, 2 MAX_BELIEF + 1) float32: gain in bits, at least 0; column b + MAX_BELIEF is for the belief b.
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
    """Returns lattice coordinate x of UAV `i` of mission `n` after the move `action`. `s`: state of all missions."""
    return clamp_index(s.position[n, i, 0] + step_x(action), LATTICE)


@inlined
def after_y(s, n, i, action):
    """Returns lattice coordinate y of UAV `i` of mission `n` after the move `action`. `s`: state of all missions."""
    return clamp_index(s.position[n, i, 1] + step_y(action), LATTICE)


@inlined
def after_z(s, w, n, i, action):
    """Returns the altitude index of UAV `i` of mission `n` after the move `action`.

    `s`: state of all missions; `w`: constants of the world.
    """
    return clamp_index(s.position[n, i, 2] + step_z(action), w.height.shape[0])


@inlined
def expected_gain(s, w, n, i, action, gains, shared, chosen):
    """Returns the information gain that UAV `i` of mission `n` expects from its measurement after the move `action`.

    The gain is a sum in bits over the cells that the camera will see, by the UAV's own belief. `s`: state of all
    missions; `w`: constants of the world; `gains`: table of `expected_gains`; `shared`: True discounts cells that UAVs
    with a lower index will measure, if their messages arrived; `chosen`: (N missions, A UAVs), moves of these UAVs.
    """
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
    """Chooses the greedy move of UAV `i` of mission `n`, after the UAVs with a lower index have chosen.

    Args:
        s: State of all missions.
        w: Constants of the world.
        n: Index of the mission.
        i: Index of the UAV.
        gains: Table of `expected_gains`.
        shared: True discounts cells that a UAV with a lower index will measure, if UAV `i` received its message.
        chosen: (N missions, A UAVs) int64: the moves of UAVs with a lower index; the move of UAV `i` is written.
        mask: (N, A, 6) bool, written: the allowed moves of this UAV.
        value: (N, A, 6) float32, written: expected gain in bits of every allowed move, 0 for forbidden moves.
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
