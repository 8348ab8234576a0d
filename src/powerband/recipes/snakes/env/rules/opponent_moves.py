"""Opponent moves: chooses the moves of the scripted opponents, with numba functions for CPU threads and for CUDA.

Parameter names: `s`, a `BoardArrays`, contains all boards; `b` is the index of a board; `i` is a snake, 0..5.
"""

from __future__ import annotations

import numpy as np

from powerband.envs.numba.hashing import random_bits, random_integer, stream_key
from powerband.recipes.snakes.env.rules.features import wrapped
from powerband.recipes.snakes.env.rules.flood import alive, inlined
from powerband.recipes.snakes.env.rules.game import BEAN, BEANS, COLS, ROWS, TEAM, neighbour

RANDOM, GREEDY, GREEDY_TORUS = 0, 1, 2
SLOT = 3072  # first random slot of the opponents


@inlined
def squared(start, end, torus):
    """Computes the squared Euclidean distance of the cells `start` and `end`, in cells squared.

    If `torus` is True, distances may cross the edges of the board.
    """
    down, right = end // COLS - start // COLS, end % COLS - start % COLS
    if torus:
        down, right = wrapped(down, ROWS), wrapped(right, COLS)
    return down * down + right * right


@inlined
def greedy(s, b, i, used, torus):
    """Chooses the move of snake `i` of board `b` to the nearest bean that no earlier team mate moves to.

    Args:
        s: Arrays of all boards.
        b: Index of the board.
        i: Index of the snake.
        used: Beans of the earlier team mates, bit j for bean j.
        torus: True if distances may cross the edges of the board.

    Returns:
        The action 0..3 (up, down, left, right), and `used` with the bit of this snake's bean set.

    Ties go to the older bean and to the first direction. Without a bean the first free neighbour cell is chosen, and
    without a free cell action 0.
    """
    head, target, best = np.int64(s.head[b, i]), -1, 1 << 30
    chosen = 0
    for j in range(BEANS):
        bean = np.int64(s.beans[b, j])
        if bean >= 0 and not used >> j & 1 and squared(head, bean, torus) < best:
            target, best, chosen = bean, squared(head, bean, torus), 1 << j
    action, best = 0, 1 << 30
    for direction in range(4):
        cell = neighbour(head, direction)
        if s.grid[b, cell] <= BEAN:
            distance = squared(cell, target, torus) if target >= 0 else 0
            if distance < best:
                action, best = direction, distance
    return action, used | chosen


@inlined
def choose(s, b, team, kind, seed, actions):
    """Chooses the actions of `team` (0 = A, 1 = B) on board `b` by a fixed rule; writes them to `actions` (3,).

    The actions are 0..3 = up, down, left, right. `s`: arrays of all boards; `kind`: the rule RANDOM, GREEDY or
    GREEDY_TORUS; `seed`: seed of random moves as uint64.
    """
    used = 0
    for slot in range(TEAM):
        i = TEAM * team + slot
        if kind == RANDOM:
            actions[slot] = random_integer(random_bits(stream_key(seed, s.board_id[b]), s.tick[b], SLOT + i), 4)
        elif alive(s, b, i):
            actions[slot], used = greedy(s, b, i, used, kind == GREEDY_TORUS)
        else:
            actions[slot] = 0
