"""Computes the shaped rewards (v2) and the success of Meta-World's ten tasks, in functions that numba compiles.

Each function takes the arrays `s` of all simulations (`RewardArrays`) and the index `n` of a simulation whose
observation is written. It returns (reward in 0 .. 10, success). The metaworld package returns the same up to rounding,
because it computes norms by BLAS, and some products with the action in float32.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from powerband.recipes.metaworld.env.threads.reward_terms import (
    AIM,
    BOX_1,
    BOX_1_END,
    BOX_2,
    BOX_2_END,
    GOAL,
    HAND_START,
    JOINT,
    OBJECT,
    OBJECT_START,
    PEG_HEAD,
    RADIUS,
    TCP_START,
    caging,
    closing,
    distance,
    gaussian,
    hamacher,
    long_tail,
    observed_object,
    picking,
    scaled_distance,
    through,
    tip,
)


@njit
def reach(s, n):
    """Computes the reward of reach in simulation `n` of `s` (`RewardArrays`).

    Returns (reward, success): the reward is in 0 .. 10, and success is True if the fingertips are at the goal.
    """
    goal = s.start[n, GOAL]
    gap = distance(tip(s, n), goal)
    return 10.0 * long_tail(gap, 0.0, RADIUS, distance(s.start[n, HAND_START], goal)), gap <= RADIUS


@njit
def push(s, n):
    """Computes the reward of push in simulation `n` of `s` (`RewardArrays`).

    Returns (reward, success): the reward is in 0 .. 10, and success is True if the object is at the goal.
    """
    goal = s.start[n, GOAL]
    gap = distance(observed_object(s, n), goal)
    placed = long_tail(gap, 0.0, RADIUS, distance(s.start[n, OBJECT_START], goal))
    reward = 2.0 * caging(s, n, 0.015, 0.05)
    if distance(observed_object(s, n), tip(s, n)) < 0.02 and s.obs[n, 3] > 0.0:
        reward += 1.0 + reward + 5.0 * placed
    return (10.0 if gap < RADIUS else reward), gap <= RADIUS


@njit
def pick_place(s, n):
    """Computes the reward of pick-place in simulation `n` of `s` (`RewardArrays`).

    Returns (reward, success): the reward is in 0 .. 10, and success is True if the object is within 0.07 m of the goal.
    """
    goal, start = s.start[n, GOAL], s.start[n, OBJECT_START]
    gap = distance(observed_object(s, n), goal)
    placed = long_tail(gap, 0.0, RADIUS, distance(start, goal))
    reward = hamacher(picking(s, n), placed)
    if distance(observed_object(s, n), tip(s, n)) < 0.02 and s.obs[n, 3] > 0.0 and s.obs[n, 6] - 0.01 > start[2]:
        reward += 1.0 + 5.0 * placed
    return (10.0 if gap < RADIUS else reward), gap <= 0.07


@njit
def door_open(s, n):
    """Computes the reward of door-open in simulation `n` of `s` (`RewardArrays`).

    Returns (reward, success): the reward is in 0 .. 10, and success is True if the door's handle is at the goal.
    """
    hand, handle, angle = s.obs[n, :3], observed_object(s, n), s.place[n, JOINT, 0]
    door = (handle[0] - 0.05, handle[1], handle[2])
    around = np.sqrt((hand[0] - door[0]) ** 2 + (hand[1] - door[1]) ** 2)
    floor = 0.0 if around <= 0.12 else 0.04 * np.log(around - 0.12) + 0.4
    above = 1.0 if hand[2] >= floor else long_tail(floor - hand[2], 0.0, 0.01, floor / 2.0)
    behind = (door[0] + 0.05, door[1] + 0.03, door[2] - 0.01)
    ready = hamacher(above, long_tail(distance(hand, behind), 0.0, 0.06, 0.5))
    moved = 0.2 if angle < -np.pi / 90.0 else 0.0
    opened = moved + 0.8 * long_tail(np.pi / 2 + np.pi / 6 + angle, 0.0, 0.5, np.pi / 3)
    effort = (min(max(np.float64(s.action[n, 3]), -1.0), 1.0) + 1.0) / 2.0
    done = abs(handle[0] - s.start[n, GOAL, 0]) <= 0.08
    return (10.0 if done else 2.0 * hamacher(ready, effort) + 8.0 * opened), done


@njit
def drawer_open(s, n):
    """Computes the reward of drawer-open in simulation `n` of `s` (`RewardArrays`).

    Returns (reward, success): the reward is in 0 .. 10, and success is True if the drawer's handle is at the goal.
    """
    goal, handle = s.start[n, GOAL], observed_object(s, n)
    gap = distance(handle, goal)
    start = (goal[0], goal[1] + 0.2, goal[2])
    margin = scaled_distance(start, s.start[n, TCP_START], 3.0, 3.0, 1.0)
    caged = long_tail(scaled_distance(handle, s.obs[n, :3], 3.0, 3.0, 1.0), 0.0, 0.01, margin)
    return 5.0 * (caged + long_tail(gap, 0.0, 0.02, 0.2)), gap <= 0.03


@njit
def drawer_close(s, n):
    """Computes the reward of drawer-close in simulation `n` of `s` (`RewardArrays`).

    Returns (reward, success): the reward is in 0 .. 10, and success is True if the drawer's handle is at the goal.
    """
    goal, start = s.start[n, GOAL], s.start[n, OBJECT_START]
    gap = distance(observed_object(s, n), goal)
    placed = long_tail(gap, 0.0, RADIUS, abs(distance(start, goal) - RADIUS))
    margin = abs(distance(start, s.start[n, TCP_START]) - 0.005)
    reached = hamacher(gaussian(distance(observed_object(s, n), tip(s, n)), 0.0, 0.005, margin), closing(s, n))
    done = gap <= RADIUS + 0.015
    return (10.0 if done else 10.0 * hamacher(reached, placed)), done


@njit
def button_press_topdown(s, n):
    """Computes the reward of button-press-topdown in simulation `n` of `s` (`RewardArrays`).

    Returns (reward, success): the reward is in 0 .. 10, and success is True if the button is pressed.
    """
    button, left = observed_object(s, n), abs(s.start[n, GOAL, 2] - s.obs[n, 6])
    gap = distance(button, tip(s, n))
    near = long_tail(gap, 0.0, 0.01, distance(button, s.start[n, TCP_START]))
    reward = 5.0 * hamacher(1.0 - s.obs[n, 3], near)
    if gap <= 0.03:
        reward += 5.0 * long_tail(left, 0.0, 0.005, s.start[n, AIM, 0])
    return reward, left <= 0.024


@njit
def peg_insert_side(s, n):
    """Computes the reward of peg-insert-side in simulation `n` of `s` (`RewardArrays`).

    Returns (reward, success): the reward is in 0 .. 10, and success is True if the peg's head is in the hole.
    """
    goal, head = s.start[n, GOAL], s.place[n, PEG_HEAD]
    gap = scaled_distance(head, goal, 1.0, 2.0, 2.0)
    placed = long_tail(gap, 0.0, 0.07, scaled_distance(s.start[n, AIM], goal, 1.0, 2.0, 2.0))
    boxes = hamacher(
        through(head, s.place[n, BOX_2], s.place[n, BOX_2_END]), through(head, s.place[n, BOX_1], s.place[n, BOX_1_END])
    )
    placed = hamacher(placed, boxes)
    lifted = s.obs[n, 3] > 0.0 and s.obs[n, 6] - 0.01 > s.start[n, OBJECT_START, 2]
    lifted = lifted and distance(observed_object(s, n), tip(s, n)) < 0.08
    reward = hamacher(1.0 if lifted else caging(s, n, 0.0075, 0.03), placed)
    if lifted:
        reward += 1.0 + 5.0 * placed
    return (10.0 if gap <= 0.07 else reward), gap <= 0.07


@njit
def window(s, n, start_x, use_gaussian):
    """Computes the reward of window-open and window-close in simulation `n` of `s` (`RewardArrays`).

    The handle started at the x coordinate `start_x`, in metres. The score of the distance from hand to handle has a
    Gaussian tail if `use_gaussian` is True, and a long tail otherwise.

    Returns (reward, success): the reward is in 0 .. 10, and success is True if the window's handle is at the goal.
    """
    handle, goal = s.place[n, OBJECT], s.start[n, GOAL]
    left = abs(handle[0] - goal[0])
    placed = long_tail(left, 0.0, RADIUS, abs(abs(start_x - goal[0]) - RADIUS))
    gap, margin = distance(handle, tip(s, n)), abs(distance(s.start[n, AIM], s.start[n, TCP_START]) - 0.02)
    near = gaussian(gap, 0.0, 0.02, margin) if use_gaussian else long_tail(gap, 0.0, 0.02, margin)
    return 10.0 * hamacher(near, placed), left <= RADIUS


@njit
def reward_and_success(s, n):
    """Computes reward (0 .. 10) and success of simulation `n` of `s` (`RewardArrays`), for any of the ten tasks."""
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
