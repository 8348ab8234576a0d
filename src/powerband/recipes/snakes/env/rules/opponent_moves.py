"""Opponent moves: the numba functions of the scripted opponents, for CPU threads and for CUDA."""

from __future__ import annotations

import numpy as np

from powerband.envs.numba.hashing import random_bits, random_integer, stream_key
from powerband.recipes.snakes.env.rules.features import wrapped
from powerband.recipes.snakes.env.rules.flood import alive, inlined
from powerband.recipes.snakes.env.rules.game import BEAN, BEANS, COLS, ROWS, TEAM, neighbour

RANDOM, GREEDY, GREEDY_TORUS = 0, 1, 2
SLOT = 3072  # the first of the random slots left to opponents


@inlined
def squared(here, there, torus):
    """Squared Euclidean distance of two cells, over the edges where `torus`."""
    down, right = there // COLS - here // COLS, there % COLS - here % COLS
    if torus:
        down, right = wrapped(down, ROWS), wrapped(right, COLS)
    return down * down + right * right


@inlined
def greedy(s, b, i, used, torus):
    """(action, beans used): the move of snake `i` towards its nearest bean among those not in the bits of `used`.

    Ties go to the older bean and to the first direction. Without a bean it takes the first free neighbour cell, without
    a free one action 0.
    """
    head, target, best = np.int64(s.head[b, i]), -1, 1 << 30
    taken = 0
    for j in range(BEANS):
        bean = np.int64(s.beans[b, j])
        if bean >= 0 and not used >> j & 1 and squared(head, bean, torus) < best:
            target, best, taken = bean, squared(head, bean, torus), 1 << j
    action, best = 0, 1 << 30
    for direction in range(4):
        cell = neighbour(head, direction)
        if s.grid[b, cell] <= BEAN:
            distance = squared(cell, target, torus) if target >= 0 else 0
            if distance < best:
                action, best = direction, distance
    return action, used | taken


@inlined
def choose(s, b, team, kind, seed, actions):
    """Writes the three actions of `team` on board `b` to `actions` (3,)."""
    used = 0
    for slot in range(TEAM):
        i = TEAM * team + slot
        if kind == RANDOM:
            actions[slot] = random_integer(random_bits(stream_key(seed, s.board_id[b]), s.tick[b], SLOT + i), 4)
        elif alive(s, b, i):
            actions[slot], used = greedy(s, b, i, used, kind == GREEDY_TORUS)
        else:
            actions[slot] = 0
