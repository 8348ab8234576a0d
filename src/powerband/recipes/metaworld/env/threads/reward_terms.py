"""Terms of Meta-World's rewards as scalar functions that numba compiles, and the arrays that they read.

In all functions, `s` are the arrays of all simulations (`RewardArrays`) and `n` is the index of a simulation.

Source: Meta-World, Yu et al. 2019, arXiv:1910.10897, section 4, and its package, version 3. `long_tail` and `gaussian`
are the two shapes of dm_control's `tolerance`, Tassa et al. 2018, arXiv:1801.00690.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

HAND, RIGHT_CLAW, LEFT_CLAW, RIGHT_PAD, LEFT_PAD, RIGHT_TIP, LEFT_TIP, OBJECT = range(8)
"""Indices of the places of every task. A place is a position of three numbers, which a reward reads."""
COMMON_PLACES = (
    "body:hand body:rightclaw body:leftclaw body:rightpad body:leftpad site:rightEndEffector site:leftEndEffector"
).split()
"""Elements of the model whose positions are the first seven places of every task."""
PEG_HEAD, BOX_1, BOX_1_END, BOX_2, BOX_2_END = range(8, 13)
"""Indices of the further places of peg-insert-side; two corners give a box."""
TURN, JOINT, PLACES = 13, 16, 17
"""The orientation of the object takes three places; the angle of the door is the first number of the last place."""
GOAL, OBJECT_START, TCP_START, HAND_START, AIM, STARTS = range(6)
"""Indices of the positions that a reset sets, three numbers each. AIM depends on the task: start of the peg's head or
of the window's handle, or the distance of the button."""
START_INDEX = {"goal": GOAL, "object": OBJECT_START, "tcp": TCP_START, "hand": HAND_START, "extra": AIM}
"""Name of a start position in `metaworld_private.start_positions` -> its index."""
RADIUS = 0.05
"""Distance in metres at which most tasks count as solved."""


class RewardArrays(NamedTuple):
    """Arrays of N simulations, from which observations and rewards are computed.

    Attributes:
        task: (N,) int64: index among the ten tasks.
        place: (N, P, 3) float64: places, which are positions in metres or other values that rewards read. Constants of
            the module, such as RIGHT_TIP, are the indices of axis 1.
        flat: (N, P * 3) float64: the same memory as `place`.
        size: (N, P) int64: number of values of a place; TURN has 9 (a matrix), 4 (a quaternion) or 0.
        start: (N, S, 3) float64: positions in metres that the last reset has set, such as that of the goal.
        low, high: (N, 39) float64: bounds of an observation.
        last: (N, 18) float64: observation of the step before.
        action: (N, 4) float32 in [-1, 1].
        obs: (N, at least 39) float64; written.
        reward: (N,) float64; written.
        success: (N,) bool: the task is solved at this step; written.
    """

    task: Any
    place: Any
    flat: Any
    size: Any
    start: Any
    low: Any
    high: Any
    last: Any
    action: Any
    obs: Any
    reward: Any
    success: Any


@njit
def distance(a, b):
    """Returns the distance of two points `a` and `b`, (x, y, z) each."""
    x, y, z = a[0] - b[0], a[1] - b[1], a[2] - b[2]
    return np.sqrt(x * x + y * y + z * z)


@njit
def outside(x, low, high, margin):
    """Returns the distance of `x` from the interval low .. high in units of `margin`; infinite if the margin is 0."""
    if low <= x <= high:
        return 0.0
    return np.inf if margin == 0.0 else (low - x if x < low else x - high) / margin


@njit
def long_tail(x, low, high, margin):
    """Returns a score of `x` in 0 .. 1 with a long tail: 1 in low .. high, 0.1 at a distance of `margin`."""
    return 1.0 / ((outside(x, low, high, margin) * 3.0) ** 2 + 1.0)


@njit
def gaussian(x, low, high, margin):
    """Returns a score of `x` in 0 .. 1 with a Gaussian tail: 1 in low .. high, 0.1 at a distance of `margin`."""
    return np.exp(np.log(0.1) * outside(x, low, high, margin) ** 2)


@njit
def hamacher(a, b):
    """Returns the Hamacher product of two numbers `a` and `b` in 0 .. 1: a smooth "and"."""
    total = a + b - a * b
    return a * b / total if total > 0.0 else 0.0


@njit
def tip(s, n):
    """Returns the point (x, y, z) between the fingertips in simulation `n` of `s` (`RewardArrays`)."""
    right, left = s.place[n, RIGHT_TIP], s.place[n, LEFT_TIP]
    return (right[0] + left[0]) / 2, (right[1] + left[1]) / 2, (right[2] + left[2]) / 2


@njit
def observed_object(s, n):
    """Returns the position (x, y, z) of the object in the observation of simulation `n` of `s` (`RewardArrays`)."""
    return s.obs[n, 4], s.obs[n, 5], s.obs[n, 6]


@njit
def distance_xz(a, b):
    """Returns the distance of two points `a` and `b`, (x, y, z) each, without their difference along y."""
    return np.sqrt((a[0] - b[0]) ** 2 + (a[2] - b[2]) ** 2)


@njit
def closing(s, n):
    """Returns how much the action of simulation `n` of `s` (`RewardArrays`) closes the gripper, 0 .. 1."""
    return min(max(0.0, np.float64(s.action[n, 3])), 1.0)


@njit
def held(s, n, sides):
    """Returns how well the gripper holds the object in simulation `n` of `s` (`RewardArrays`), 0 .. 1.

    The result is 1 if the object is between the fingers and the action closes them. `sides`, 0 .. 1, is a score of the
    finger positions along y, the axis from finger to finger. It is combined with a score in the plane of x and z.
    """
    margin = distance_xz(s.start[n, OBJECT_START], s.start[n, TCP_START]) - 0.005
    caged = hamacher(sides, long_tail(distance_xz(tip(s, n), observed_object(s, n)), 0.0, 0.005, margin))
    gripped = closing(s, n) if caged > 0.97 else 0.0
    return (hamacher(caged, gripped) + caged) / 2


@njit
def caging(s, n, radius, near):
    """Returns how well the gripper holds an object in simulation `n` of `s` (`RewardArrays`), 0 .. 1.

    The result is `held` with a score of 1 if both finger pads are `radius` to `near` metres from the object along y.
    Outside this interval the score falls, at a rate that depends on the start position of the object.
    """
    y, start_y = s.obs[n, 5], s.start[n, OBJECT_START, 1]
    right, left = s.place[n, RIGHT_PAD, 1], s.place[n, LEFT_PAD, 1]
    on_right = long_tail(abs(right - y), radius, near, abs(abs(right - start_y) - near))
    on_left = long_tail(abs(left - y), radius, near, abs(abs(left - start_y) - near))
    return held(s, n, hamacher(on_left, on_right))


@njit
def picking(s, n):
    """Returns how well the gripper holds the object of pick-place in simulation `n` of `s` (`RewardArrays`), 0 .. 1.

    The result differs from `caging` in two points. Distances of the finger pads from the object are signed. The rate at
    which the score falls depends on the present position of the object.
    """
    y, right, left = s.obs[n, 5], s.place[n, RIGHT_PAD, 1], s.place[n, LEFT_PAD, 1]
    on_right = long_tail(y - right, 0.015, 0.05, abs(abs(y - right) - 0.05))
    on_left = long_tail(left - y, 0.015, 0.05, abs(abs(y - left) - 0.05))
    return held(s, n, hamacher(on_left, on_right))


@njit
def within(x, a, b):
    """Returns True if `x` is between `a` and `b`, in either order."""
    return a <= x <= b if b >= a else b <= x <= a


@njit
def through(point, zero, one):
    """Returns 1 if `point` (x, y, z) is outside of a box; inside, a number from 0 to 1.

    The number is 0 at the corner `zero` of the box and 1 at the opposite corner `one`.
    """
    product = 1.0
    for axis in range(3):
        if not within(point[axis], zero[axis], one[axis]):
            return 1.0
        product *= (point[axis] - zero[axis]) / (one[axis] - zero[axis])
    return product


@njit
def scaled_distance(a, b, x, y, z):
    """Returns the distance of two points `a` and `b` whose coordinates are multiplied by `x`, `y` and `z`."""
    return distance((a[0] * x, a[1] * y, a[2] * z), (b[0] * x, b[1] * y, b[2] * z))
