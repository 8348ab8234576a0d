"""Observation rows: writes the observation of one snake, with numba functions for CPU threads and for CUDA.

Parameter names: `s`, a `BoardArrays`, contains all boards; `b` is the index of a board; `i` is a snake, 0..5; `row` is
the output, and `at` an index in it; `sets`, `lanes` and `numbers` are working memory, see `flood.Scratch`.
"""

from __future__ import annotations

import math

import numpy as np

from powerband.recipes.snakes.env.rules.features import clipped, wrapped, write_features
from powerband.recipes.snakes.env.rules.flood import alive, flood_from_heads, inlined
from powerband.recipes.snakes.env.rules.game import BEANS, CELLS, COLS, MAX_STEPS, ROWS, SNAKE, SNAKES, TEAM, neighbour

BASELINE, FORK, PLANES, FEATURES = 0, 1, 2, 3
"""Numbers that select the kind of observation in the kernels."""
NUM_PLANES = 8


@inlined
def put_position(cell, row, at):
    """Writes the board row and column of `cell` to row[at] and row[at + 1], or -1 to both if `cell` is negative."""
    row[at] = cell // COLS if cell >= 0 else -1
    row[at + 1] = cell % COLS if cell >= 0 else -1


@inlined
def relative_snake_index(other, team):
    """Renumbers snake `other` as `team` (0 or 1) sees it: 0..2 own team, 3..5 opponents.

    The function is its own inverse.
    """
    return other if team == 0 else (other + TEAM) % SNAKES


@inlined
def put_heads(s, b, i, row, at):
    """Writes the positions of the heads of the five snakes other than `i` on board `b` to row[at : at + 10].

    A position is the board row and column, or (-1, -1) for a snake that is not on the board. Team mates precede
    opponents. `s`: arrays of all boards.
    """
    team = i // TEAM
    for k in range(SNAKES):
        other = relative_snake_index(k, team)
        if other != i:
            put_position(np.int64(s.head[b, other]) if alive(s, b, other) else -1, row, at)
            at += 2


@inlined
def torus_euclidean_distance(start, end):
    """Computes the Euclidean distance of two cells on the torus, in cells."""
    down = wrapped(end // COLS - start // COLS, ROWS)
    right = wrapped(end % COLS - start % COLS, COLS)
    return math.sqrt(down * down + right * right)


@inlined
def write_common_features(s, b, i, row):
    """Writes the 16 numbers with which the observations baseline26 and fork35 begin, for snake `i` of board `b`.

    `s`: arrays of all boards; `row`: the output. The module `observations` lists the numbers.
    """
    head = np.int64(s.head[b, i])
    put_position(head, row, 0)
    for direction in range(4):
        code = np.int64(s.grid[b, neighbour(head, direction)])
        row[2 + direction] = code if code < SNAKE else SNAKE + relative_snake_index(code - SNAKE, i // TEAM)
    for j in range(BEANS):
        put_position(np.int64(s.beans[b, j]), row, 6 + 2 * j)


@inlined
def write_fork(s, b, i, row):
    """Writes the last 19 of the 35 numbers of the observation fork35 to `row`, for snake `i` of board `b`.

    `s`: arrays of all boards. The module `observations` lists the numbers.
    """
    head, length = np.int64(s.head[b, i]), np.int64(s.length[b, i])
    used = -1
    for k in range(2):
        nearest, distance = -1, 1e9
        for j in range(BEANS):
            bean = np.int64(s.beans[b, j])
            if bean >= 0 and j != used and torus_euclidean_distance(head, bean) < distance:
                nearest, distance = j, torus_euclidean_distance(head, bean)
        used = nearest
        bean = np.int64(s.beans[b, nearest]) if nearest >= 0 else head
        row[16 + 3 * k] = wrapped(bean % COLS - head % COLS, COLS)
        row[17 + 3 * k] = wrapped(bean // COLS - head // COLS, ROWS)
        row[18 + 3 * k] = distance if nearest >= 0 else 0.0
    row[22] = length * 0.05
    put_heads(s, b, i, row, 23)
    for k in range(2):
        other = relative_snake_index(TEAM + k, i // TEAM)
        if alive(s, b, other):
            distance = torus_euclidean_distance(head, np.int64(s.head[b, other]))
            row[33 + k] = np.int64(s.length[b, other]) / length / (distance + 1.0)


@inlined
def centred_cell(head, cell):
    """Returns `cell` after a shift of the torus that moves the cell `head` to the middle, row 5 and column 10."""
    row = (cell // COLS - head // COLS + ROWS + ROWS // 2) % ROWS
    return row * COLS + (cell % COLS - head % COLS + COLS + COLS // 2) % COLS


@inlined
def write_planes(s, b, i, row):
    """Writes the observation ``planes``, 8 images of 10 x 20 cells, of snake `i` of board `b` to `row`.

    `row` (1600,) must contain zeros. `s`: arrays of all boards. The module `observations` lists the planes.
    """
    head, lead = np.int64(s.head[b, i]), 0
    for j in range(BEANS):
        if s.beans[b, j] >= 0:
            row[centred_cell(head, np.int64(s.beans[b, j]))] = 1.0
    for other in range(SNAKES):
        mate = other // TEAM == i // TEAM
        lead += np.int64(s.score[b, other]) if mate else -np.int64(s.score[b, other])
        if alive(s, b, other):
            body = 1 if other == i else 2 if mate else 3
            cell = np.int64(s.tail[b, other])
            for k in range(np.int64(s.length[b, other])):
                row[CELLS * body + centred_cell(head, cell)] = min(k + 1, 32) * (1.0 / 32.0)
                cell = neighbour(cell, np.int64(s.link[b, cell]))
            if other != i:
                row[CELLS * (4 if mate else 5) + centred_cell(head, np.int64(s.head[b, other]))] = 1.0
    step, ahead = np.int64(s.step_count[b]) * (1.0 / MAX_STEPS), clipped(lead * 0.05)
    for cell in range(CELLS):
        row[6 * CELLS + cell] = step
        row[7 * CELLS + cell] = ahead


@inlined
def write_row(s, b, i, kind, sets, lanes, numbers, row):
    """Writes the observation of snake `i` of board `b` to `row`; a snake that is not on the board gets zeros.

    `s`: arrays of all boards; `kind`: the observation BASELINE, FORK, PLANES or FEATURES; `sets`, `lanes`, `numbers`:
    scratch arrays that `flood_from_heads` has filled for this board, used by FEATURES only.
    """
    if kind == FEATURES:
        write_features(s, b, i, sets, lanes, numbers, row)
        return
    for k in range(row.shape[0]):
        row[k] = 0.0
    if not alive(s, b, i):
        return
    if kind == PLANES:
        write_planes(s, b, i, row)
        return
    write_common_features(s, b, i, row)
    if kind == FORK:
        write_fork(s, b, i, row)
    else:
        put_heads(s, b, i, row, 16)


@inlined
def write_board(s, b, team, kind, sets, lanes, numbers, out):
    """Writes the observations of the three snakes of `team` on board `b` to `out` (3, D).

    `s`: arrays of all boards; `kind`: the observation BASELINE, FORK, PLANES or FEATURES, with D numbers per snake;
    `sets`, `lanes`, `numbers`: scratch arrays, in which FEATURES computes which cells snakes can reach.
    """
    if kind == FEATURES:
        flood_from_heads(s, b, sets, lanes, numbers)
    for slot in range(TEAM):
        write_row(s, b, TEAM * team + slot, kind, sets, lanes, numbers, out[slot])
