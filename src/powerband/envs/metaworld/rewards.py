"""Observation, reward and success of Meta-World's ten tasks from where things are, by numba. No simulator here.

The shaped rewards (v2) of all rows at once, as formulas of positions and of what a reset has set. The `metaworld`
package gives the same to rounding: it computes norms by BLAS, and some products with the float32 action in float32.

Source: Meta-World, Yu et al. 2019, arXiv:1910.10897, section 4 and its package, version 3; `tolerance` and its two
shapes are of dm_control, Tassa et al. 2018, arXiv:1801.00690.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

HAND, RIGHT_CLAW, LEFT_CLAW, RIGHT_PAD, LEFT_PAD, RIGHT_TIP, LEFT_TIP, OBJECT = range(8)
"""Places of every task, each three numbers."""
PEG_HEAD, BOX_1, BOX_1_END, BOX_2, BOX_2_END = range(8, 13)
"""Places of peg-insert-side: the boxes are given by two corners."""
TURN, JOINT, PLACES = 13, 16, 17
"""How the object is turned takes three places, the angle of the door the first number of the last."""
GOAL, OBJECT_START, TCP_START, HAND_START, AIM, STARTS = range(6)
"""What a reset has set, each three numbers; AIM is a task's own: where the peg's head or the window's handle began, the
way of the button."""
RADIUS = 0.05
OFFSETS = np.array([[0, 0, 0]] * 4 + [[0, -0.16, 0], [0, -0.16, 0.05], [0, 0, 0.193]] + [[0, 0, 0]] * 3)
"""What is added to the place of a task's object."""


class Rows(NamedTuple):
    """N simulations as arrays.

    Attributes:
        task: (N,) int64: place among the ten.
        place: (N, 17, 3) float64, metres: places as numbered above.
        size: (N, 17) int64: how many numbers of a place are given; of TURN 9 (a matrix), 4 (a quaternion) or 0.
        start: (N, 5, 3) float64: what the reset has set.
        low, high: (N, 39) float64: bounds of an observation.
        last: (N, 18) float64: what was seen a step ago.
        action: (N, 4) float32.
        obs: (N, at least 39) float64. reward: (N,) float64. success: (N,) bool: here and now.
    """

    task: Any
    place: Any
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
def between(a, b):
    """Distance of two points."""
    x, y, z = a[0] - b[0], a[1] - b[1], a[2] - b[2]
    return np.sqrt(x * x + y * y + z * z)


@njit
def outside(x, low, high, margin):
    """How far `x` is outside low .. high, in margins; infinite where the margin is 0."""
    if low <= x <= high:
        return 0.0
    return np.inf if margin == 0.0 else (low - x if x < low else x - high) / margin


@njit
def long_tail(x, low, high, margin):
    """Tolerance: 1 in low .. high, 0.1 at a margin outside, falling with the square."""
    return 1.0 / ((outside(x, low, high, margin) * 3.0) ** 2 + 1.0)


@njit
def gaussian(x, low, high, margin):
    """Tolerance: 1 in low .. high, 0.1 at a margin outside, falling as a bell."""
    return np.exp(np.log(0.1) * outside(x, low, high, margin) ** 2)


@njit
def hamacher(a, b):
    """Hamacher product: both, of two numbers in 0 .. 1."""
    total = a + b - a * b
    return a * b / total if total > 0.0 else 0.0


@njit
def tip(s, n):
    """The middle between the fingers' tips."""
    right, left = s.place[n, RIGHT_TIP], s.place[n, LEFT_TIP]
    return (right[0] + left[0]) / 2, (right[1] + left[1]) / 2, (right[2] + left[2]) / 2


@njit
def seen(s, n):
    """The object as it is observed."""
    return s.obs[n, 4], s.obs[n, 5], s.obs[n, 6]


@njit
def apart_xz(a, b):
    """Distance of two points seen along y."""
    return np.sqrt((a[0] - b[0]) ** 2 + (a[2] - b[2]) ** 2)


@njit
def closing(s, n):
    """0 .. 1: how much the action closes the gripper."""
    return min(max(0.0, np.float64(s.action[n, 3])), 1.0)


@njit
def held(s, n, sides):
    """The object lies between the fingers (`sides`, along y, and here across), and the action closes them."""
    margin = apart_xz(s.start[n, OBJECT_START], s.start[n, TCP_START]) - 0.005
    caged = hamacher(sides, long_tail(apart_xz(tip(s, n), seen(s, n)), 0.0, 0.005, margin))
    gripped = closing(s, n) if caged > 0.97 else 0.0
    return (hamacher(caged, gripped) + caged) / 2


@njit
def caging(s, n, radius, near):
    """How well the fingers hold an object of `radius`; its margins grow as it leaves where it began."""
    y, began = s.obs[n, 5], s.start[n, OBJECT_START, 1]
    right, left = s.place[n, RIGHT_PAD, 1], s.place[n, LEFT_PAD, 1]
    on_right = long_tail(abs(right - y), radius, near, abs(abs(right - began) - near))
    on_left = long_tail(abs(left - y), radius, near, abs(abs(left - began) - near))
    return held(s, n, hamacher(on_left, on_right))


@njit
def picking(s, n):
    """As `caging`, of pick-place: sides have signs, and each margin is that of where the pad is now."""
    y, right, left = s.obs[n, 5], s.place[n, RIGHT_PAD, 1], s.place[n, LEFT_PAD, 1]
    on_right = long_tail(y - right, 0.015, 0.05, abs(abs(y - right) - 0.05))
    on_left = long_tail(left - y, 0.015, 0.05, abs(abs(y - left) - 0.05))
    return held(s, n, hamacher(on_left, on_right))


@njit
def within(x, a, b):
    return a <= x <= b if b >= a else b <= x <= a


@njit
def through(point, zero, one):
    """1 outside a box; inside it, grows from 0 at the corner `zero` to 1 at `one`."""
    product = 1.0
    for axis in range(3):
        if not within(point[axis], zero[axis], one[axis]):
            return 1.0
        product *= (point[axis] - zero[axis]) / (one[axis] - zero[axis])
    return product


@njit
def stretched(a, b, x, y, z):
    """Distance of two points whose axes count x, y and z times."""
    return between((a[0] * x, a[1] * y, a[2] * z), (b[0] * x, b[1] * y, b[2] * z))


@njit
def reach(s, n):
    goal = s.start[n, GOAL]
    way = between(tip(s, n), goal)
    return 10.0 * long_tail(way, 0.0, RADIUS, between(s.start[n, HAND_START], goal)), way <= RADIUS


@njit
def push(s, n):
    goal = s.start[n, GOAL]
    way = between(seen(s, n), goal)
    placed = long_tail(way, 0.0, RADIUS, between(s.start[n, OBJECT_START], goal))
    reward = 2.0 * caging(s, n, 0.015, 0.05)
    if between(seen(s, n), tip(s, n)) < 0.02 and s.obs[n, 3] > 0.0:
        reward += 1.0 + reward + 5.0 * placed
    return (10.0 if way < RADIUS else reward), way <= RADIUS


@njit
def pick_place(s, n):
    goal, began = s.start[n, GOAL], s.start[n, OBJECT_START]
    way = between(seen(s, n), goal)
    placed = long_tail(way, 0.0, RADIUS, between(began, goal))
    reward = hamacher(picking(s, n), placed)
    if between(seen(s, n), tip(s, n)) < 0.02 and s.obs[n, 3] > 0.0 and s.obs[n, 6] - 0.01 > began[2]:
        reward += 1.0 + 5.0 * placed
    return (10.0 if way < RADIUS else reward), way <= 0.07


@njit
def door_open(s, n):
    hand, handle, angle = s.obs[n, :3], seen(s, n), s.place[n, JOINT, 0]
    door = (handle[0] - 0.05, handle[1], handle[2])
    around = np.sqrt((hand[0] - door[0]) ** 2 + (hand[1] - door[1]) ** 2)
    floor = 0.0 if around <= 0.12 else 0.04 * np.log(around - 0.12) + 0.4
    above = 1.0 if hand[2] >= floor else long_tail(floor - hand[2], 0.0, 0.01, floor / 2.0)
    behind = (door[0] + 0.05, door[1] + 0.03, door[2] - 0.01)
    ready = hamacher(above, long_tail(between(hand, behind), 0.0, 0.06, 0.5))
    begun = 0.2 if angle < -np.pi / 90.0 else 0.0
    opened = begun + 0.8 * long_tail(np.pi / 2 + np.pi / 6 + angle, 0.0, 0.5, np.pi / 3)
    effort = (min(max(np.float64(s.action[n, 3]), -1.0), 1.0) + 1.0) / 2.0
    done = abs(handle[0] - s.start[n, GOAL, 0]) <= 0.08
    return (10.0 if done else 2.0 * hamacher(ready, effort) + 8.0 * opened), done


@njit
def drawer_open(s, n):
    goal, handle = s.start[n, GOAL], seen(s, n)
    way = between(handle, goal)
    began = (goal[0], goal[1] + 0.2, goal[2])
    far = stretched(began, s.start[n, TCP_START], 3.0, 3.0, 1.0)
    caged = long_tail(stretched(handle, s.obs[n, :3], 3.0, 3.0, 1.0), 0.0, 0.01, far)
    return 5.0 * (caged + long_tail(way, 0.0, 0.02, 0.2)), way <= 0.03


@njit
def drawer_close(s, n):
    goal, began = s.start[n, GOAL], s.start[n, OBJECT_START]
    way = between(seen(s, n), goal)
    placed = long_tail(way, 0.0, RADIUS, abs(between(began, goal) - RADIUS))
    far = abs(between(began, s.start[n, TCP_START]) - 0.005)
    reached = hamacher(gaussian(between(seen(s, n), tip(s, n)), 0.0, 0.005, far), closing(s, n))
    done = way <= RADIUS + 0.015
    return (10.0 if done else 10.0 * hamacher(reached, placed)), done


@njit
def button_press_topdown(s, n):
    button, way = seen(s, n), abs(s.start[n, GOAL, 2] - s.obs[n, 6])
    gap = between(button, tip(s, n))
    near = long_tail(gap, 0.0, 0.01, between(button, s.start[n, TCP_START]))
    reward = 5.0 * hamacher(1.0 - s.obs[n, 3], near)
    if gap <= 0.03:
        reward += 5.0 * long_tail(way, 0.0, 0.005, s.start[n, AIM, 0])
    return reward, way <= 0.024


@njit
def peg_insert_side(s, n):
    goal, head = s.start[n, GOAL], s.place[n, PEG_HEAD]
    way = stretched(head, goal, 1.0, 2.0, 2.0)
    placed = long_tail(way, 0.0, 0.07, stretched(s.start[n, AIM], goal, 1.0, 2.0, 2.0))
    boxes = hamacher(
        through(head, s.place[n, BOX_2], s.place[n, BOX_2_END]), through(head, s.place[n, BOX_1], s.place[n, BOX_1_END])
    )
    placed = hamacher(placed, boxes)
    lifted = s.obs[n, 3] > 0.0 and s.obs[n, 6] - 0.01 > s.start[n, OBJECT_START, 2]
    lifted = lifted and between(seen(s, n), tip(s, n)) < 0.08
    reward = hamacher(1.0 if lifted else caging(s, n, 0.0075, 0.03), placed)
    if lifted:
        reward += 1.0 + 5.0 * placed
    return (10.0 if way <= 0.07 else reward), way <= 0.07


@njit
def window(s, n, began_x, bell):
    """Both ways: from `began_x`; `bell` is the shape of the hand's share."""
    handle, goal = s.place[n, OBJECT], s.start[n, GOAL]
    way = abs(handle[0] - goal[0])
    placed = long_tail(way, 0.0, RADIUS, abs(abs(began_x - goal[0]) - RADIUS))
    gap, far = between(handle, tip(s, n)), abs(between(s.start[n, AIM], s.start[n, TCP_START]) - 0.02)
    near = gaussian(gap, 0.0, 0.02, far) if bell else long_tail(gap, 0.0, 0.02, far)
    return 10.0 * hamacher(near, placed), way <= RADIUS


@njit
def judge(s, n):
    """(reward, success) of a row whose observation is written."""
    task = s.task[n]
    if task == 0:
        return reach(s, n)
    if task == 1:
        return push(s, n)
    if task == 2:
        return pick_place(s, n)
    if task == 3:
        return door_open(s, n)
    if task == 4:
        return drawer_open(s, n)
    if task == 5:
        return drawer_close(s, n)
    if task == 6:
        return button_press_topdown(s, n)
    if task == 7:
        return peg_insert_side(s, n)
    if task == 8:
        return window(s, n, s.start[n, OBJECT_START, 0], False)
    return window(s, n, s.start[n, AIM, 0], True)


@njit
def quaternion(m, q):
    """Writes the (x, y, z, w) of a rotation matrix, its largest number positive (Markley 2008)."""
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
    """Writes the observation: 18 entries now, those of a step ago, the goal, all within the bounds."""
    now, size = s.obs[n, :18], s.size[n, TURN]
    now[:] = 0.0
    for axis in range(3):
        now[axis] = s.place[n, HAND, axis]
        now[4 + axis] = s.place[n, OBJECT, axis] + OFFSETS[s.task[n], axis]
        s.obs[n, 36 + axis] = s.start[n, GOAL, axis]
    now[3] = min(between(s.place[n, RIGHT_CLAW], s.place[n, LEFT_CLAW]) / 0.1, 1.0)
    if size == 9:
        quaternion(s.place[n, TURN : TURN + 3], now[7:11])
    for axis in range(size if size == 4 else 0):
        now[7 + axis] = s.place[n, TURN + axis // 3, axis % 3]
    for entry in range(18):
        s.obs[n, 18 + entry], s.last[n, entry] = s.last[n, entry], now[entry]
    for entry in range(39):
        value = s.obs[n, entry]
        s.obs[n, entry] = s.low[n, entry] if value < s.low[n, entry] else min(value, s.high[n, entry])


@njit(nogil=True, cache=True)
def score(s):
    """Writes observation, reward and success of all rows."""
    for n in range(s.task.shape[0]):
        observe(s, n)
        s.reward[n], s.success[n] = judge(s, n)
