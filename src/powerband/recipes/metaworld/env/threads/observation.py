"""Computes the observations of all simulations from positions, in functions that numba compiles.

No simulator is needed. `s` are the arrays of all simulations (`RewardArrays`) and `n` is the index of a simulation.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from powerband.recipes.metaworld.env.threads.reward_terms import (
    GOAL,
    HAND,
    LEFT_CLAW,
    OBJECT,
    RIGHT_CLAW,
    TURN,
    distance,
)

OFFSETS = np.array([[0, 0, 0]] * 4 + [[0, -0.16, 0], [0, -0.16, 0.05], [0, 0, 0.193]] + [[0, 0, 0]] * 3)
"""(10, 3) metres: from the place of a task's object to its position in the observation."""


@njit
def quaternion(m, q):
    """Converts a rotation matrix `m` (3, 3) to a unit quaternion (x, y, z, w), and writes it into `q` (4,).

    Its largest component is positive. Source: Markley 2008.
    """
    trace = m[0, 0] + m[1, 1] + m[2, 2]
    i = 0
    for axis in range(1, 3):
        i = axis if m[axis, axis] > m[i, i] else i
    if trace > m[i, i]:
        q[0], q[1], q[2], q[3] = m[2, 1] - m[1, 2], m[0, 2] - m[2, 0], m[1, 0] - m[0, 1], 1.0 + trace
    else:
        j, k = (i + 1) % 3, (i + 2) % 3
        q[i], q[j], q[k] = 1.0 - trace + 2.0 * m[i, i], m[j, i] + m[i, j], m[k, i] + m[i, k]
        q[3] = m[k, j] - m[j, k]
    length = np.sqrt(q[0] * q[0] + q[1] * q[1] + q[2] * q[2] + q[3] * q[3])
    for axis in range(4):
        q[axis] /= length


@njit
def observe(s, n):
    """Writes the observation of simulation `n` of `s` (`RewardArrays`), of one of the ten tasks of MT10."""
    now, size = s.obs[n, :18], s.size[n, TURN]
    now[:] = 0.0
    for axis in range(3):
        now[4 + axis] = s.place[n, OBJECT, axis] + OFFSETS[s.task[n], axis]
        s.obs[n, 36 + axis] = s.start[n, GOAL, axis]
    if size == 9:
        quaternion(s.place[n, TURN : TURN + 3], now[7:11])
    for axis in range(size if size == 4 else 0):
        now[7 + axis] = s.place[n, TURN + axis // 3, axis % 3]
    complete(s, n)


@njit
def observe_objects(s, n, positions, quaternions, goal):
    """Writes the observation of simulation `n` of `s` (`RewardArrays`), of any task.

    `positions` (3 for each object), `quaternions` (4 for each object) and `goal` (3) are vectors.
    """
    now = s.obs[n, :18]
    now[:] = 0.0
    for index in range(positions.shape[0] // 3):
        first = 4 + 7 * index
        now[first : first + 3] = positions[3 * index : 3 * index + 3]
        now[first + 3 : first + 7] = quaternions[4 * index : 4 * index + 4]
    s.obs[n, 36:39] = goal
    complete(s, n)


@njit
def complete(s, n):
    """Adds hand, gripper and the step before to an observation that has objects and goal, and clips it to its bounds.

    An observation consists of 18 entries of this step, the same 18 of the step before, and the goal (3 entries).
    """
    now = s.obs[n, :18]
    for axis in range(3):
        now[axis] = s.place[n, HAND, axis]
    now[3] = min(distance(s.place[n, RIGHT_CLAW], s.place[n, LEFT_CLAW]) / 0.1, 1.0)
    for entry in range(18):
        s.obs[n, 18 + entry], s.last[n, entry] = s.last[n, entry], now[entry]
    for entry in range(39):
        value = s.obs[n, entry]
        s.obs[n, entry] = s.low[n, entry] if value < s.low[n, entry] else min(value, s.high[n, entry])
