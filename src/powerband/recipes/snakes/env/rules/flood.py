"""Floods over the board as operations on bits: who can be where, and when.

A set of cells is four uint64: bit ``20 * (row % 3) + col`` of word ``row // 3``, so three rows fill 60 bits of a word
and the last word holds row 9. One step of a flood is some seventy integer instructions for the whole board, and eight
floods run side by side in lanes: the compiler makes one vector instruction of eight lanes, provided that it does not
know their number (it would unroll the loop instead), hence ``range(lanes.shape[2])``.

A flood knows that snakes move: the k-th cell of a body from its tail (k = 0, 1, ...) is left k + 1 moves from now, so
it can be entered with move k + 1 and later. (A snake that eats keeps its tail a move longer; floods foresee no meals.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from powerband.recipes.snakes.env.rules.game import BEANS, SNAKE, SNAKES, TEAM, neighbour

# All in one loop, without reference counts of arrays. No disk cache here: a cached function keeps what it inlined from
# other files when those change; the loops that call these functions are cached, with a stamp of all files.
inlined = njit(forceinline=True, _nrt=False)

HORIZON = 16
"""Moves that a flood looks ahead; the farthest cell of the torus is 15 moves away."""

LANES = 8

U1, U19, U20, U40 = (np.uint64(n) for n in (1, 19, 20, 40))
EMPTY_SET = np.uint64(0)
THREE_ROWS = np.uint64(2**60 - 1)
ONE_ROW = np.uint64(2**20 - 1)
FIRST_COL = np.uint64(1 | 1 << 20 | 1 << 40)
LAST_COL = np.uint64((1 | 1 << 20 | 1 << 40) << 19)
NOT_FIRST = np.uint64(int(THREE_ROWS) & ~int(FIRST_COL))
NOT_LAST = np.uint64(int(THREE_ROWS) & ~int(LAST_COL))
U2, U4, U56 = np.uint64(2), np.uint64(4), np.uint64(56)
PAIRS, NIBBLES, BYTES, ONES = (np.uint64(n * 0x0101010101010101) for n in (0x55, 0x33, 0x0F, 0x01))


class Scratch(NamedTuple):
    """Working memory, with a worker axis before the shapes given here; the rows are named by the constants below.

    Attributes:
        sets: (34, 4) uint64.
        lanes: (34, 4, 8) uint64.
        numbers: (35, 8) int64.
    """

    sets: Any
    lanes: Any
    numbers: Any


MOVES = HORIZON + 1
OPENED, TAKEN = 0, MOVES
"""Rows of `sets`, for t = 0..16 each: OPENED + t, cells that can be entered with move t (t = 0: cells without a body);
TAKEN + t, cells where the snake in question comes too late with move t, see `mark_contested`."""

REACH, PATHS = 0, MOVES
"""Rows of `lanes`, for t = 0..16 each: REACH + t, lane i: cells where snake i can be after move t or sooner (t = 0: its
head); PATHS + t, lane m: cells that can be reached with move t if the first is the relative move m = 0, 1, 2, and lane
4 + m: the same before any other snake."""

HEAD, LENGTH, COURSE, WAYS, FOOD = 0, 1, 2, 3, 4
ARRIVAL, BEAN_MOVES = 5, 5 + BEANS
SURVIVAL, ORDER, KEY, SIZE = 15, 16, 17, 18
"""Rows of `numbers`, the first with a snake a lane: cell of its head, -1 where it is not on the board; its length; its
direction; number of cells it can move to. FOOD: a bean's cell a lane, -1 for none. ARRIVAL + j: moves of each snake to
bean j (17: farther, unreachable, or there is none); BEAN_MOVES + j: the same with lanes as in PATHS. SURVIVAL: moves
until a lane of PATHS has fewer cells than moves made (a trap), 16 for never. Two rows for sorting. SIZE + t: cells in
each lane of PATHS after move t."""


def allocate_scratch(workers: int, empty: Callable[[tuple[int, ...], type], Any] = np.empty) -> Scratch:
    """Working memory for `workers` boards at a time, made by ``empty(shape, dtype)``."""
    return Scratch(
        empty((workers, 2 * MOVES, 4), np.uint64),
        empty((workers, 2 * MOVES, 4, LANES), np.uint64),
        empty((workers, SIZE + MOVES, LANES), np.int64),
    )


# -- sets -------------------------------------------------------------------------------------------------------------


@inlined
def horizontal_neighbours(word):
    """The left and right neighbours of the cells in a word."""
    left = ((word & NOT_FIRST) >> U1) | ((word & FIRST_COL) << U19)
    return left | ((word & NOT_LAST) << U1) | ((word & LAST_COL) >> U19)


@inlined
def dilate(a, b, c, d):
    """The cells of the set (a, b, c, d) and their neighbours on the torus."""
    return (
        a | horizontal_neighbours(a) | (a >> U20) | ((b & ONE_ROW) << U40) | ((a << U20) & THREE_ROWS) | d,
        b | horizontal_neighbours(b) | (b >> U20) | ((c & ONE_ROW) << U40) | ((b << U20) & THREE_ROWS) | (a >> U40),
        c | horizontal_neighbours(c) | (c >> U20) | (d << U40) | ((c << U20) & THREE_ROWS) | (b >> U40),
        d | (horizontal_neighbours(d) & ONE_ROW) | (a & ONE_ROW) | (c >> U40),
    )


@inlined
def popcount(word):
    """Number of ones in a uint64, as int64. LLVM knows this idiom and makes it one instruction where it can."""
    word = word - ((word >> U1) & PAIRS)
    word = (word & NIBBLES) + ((word >> U2) & NIBBLES)
    word = (word + (word >> U4)) & BYTES
    return np.int64((word * ONES) >> U56)


@inlined
def lane_of(sets, t, lane):
    """The four words of the set sets[t, :, lane]."""
    return sets[t, 0, lane], sets[t, 1, lane], sets[t, 2, lane], sets[t, 3, lane]


@inlined
def bit(cell):
    """The set of one cell: its word (other words are zero)."""
    return U1 << np.uint64(cell % 60)


@inlined
def alive(s, b, i):
    """True where snake `i` is on the board; one that found no place is not, and its game has ended."""
    return s.grid[b, s.head[b, i]] == SNAKE + i


# -- floods -----------------------------------------------------------------------------------------------------------


@inlined
def bean_distances(lanes, flood, numbers, row):
    """Writes the first move that reaches bean j to numbers[row + j], for each lane of the flood at row `flood`."""
    for j in range(BEANS):
        cell = numbers[FOOD, j]
        word, shift = max(cell, 0) // 60, np.uint64(max(cell, 0) % 60)
        none = HORIZON + 1 if cell < 0 else 0
        for lane in range(lanes.shape[2]):
            moves = HORIZON + 1
            for t in range(1, MOVES):  # what is reached stays reached: count the moves after which it is
                moves -= np.int64((lanes[flood + t, word, lane] >> shift) & U1)
            numbers[row + j, lane] = max(moves, none)


@inlined
def flood_from_heads(s, b, sets, lanes, numbers):
    """Fills OPENED, REACH and the rows of `numbers` up to ARRIVAL for board `b`."""
    for t in range(MOVES):
        for k in range(4):
            sets[t, k] = EMPTY_SET
    for k in range(4):
        for lane in range(lanes.shape[2]):
            lanes[0, k, lane] = EMPTY_SET
    for j in range(BEANS):
        numbers[FOOD, j] = s.beans[b, j]
    for i in range(SNAKES):
        numbers[HEAD, i] = -1
        numbers[LENGTH, i] = s.length[b, i]
        numbers[COURSE, i] = s.direction[b, i]
        if alive(s, b, i):
            cell = np.int64(s.tail[b, i])
            for k in range(np.int64(s.length[b, i])):
                sets[0, cell // 60] |= bit(cell)
                if k < HORIZON:
                    sets[k + 1, cell // 60] |= bit(cell)
                cell = neighbour(cell, np.int64(s.link[b, cell]))
            head = np.int64(s.head[b, i])
            numbers[HEAD, i] = head
            lanes[0, head // 60, i] = bit(head)
    for k in range(4):
        sets[0, k] = ~sets[0, k] & (THREE_ROWS if k < 3 else ONE_ROW)
        for t in range(1, MOVES):
            sets[t, k] |= sets[t - 1, k]
    for t in range(1, MOVES):
        open_a, open_b, open_c, open_d = sets[t, 0], sets[t, 1], sets[t, 2], sets[t, 3]
        for lane in range(lanes.shape[2]):
            old_a, old_b, old_c, old_d = lane_of(lanes, t - 1, lane)
            new_a, new_b, new_c, new_d = dilate(old_a, old_b, old_c, old_d)
            lanes[t, 0, lane] = new_a & open_a
            lanes[t, 1, lane] = new_b & open_b
            lanes[t, 2, lane] = new_c & open_c
            lanes[t, 3, lane] = new_d & open_d
    for i in range(SNAKES):
        first = lane_of(lanes, 1, i)
        numbers[WAYS, i] = popcount(first[0]) + popcount(first[1]) + popcount(first[2]) + popcount(first[3])
    bean_distances(lanes, REACH, numbers, ARRIVAL)


@inlined
def mark_contested(i, sets, lanes):
    """Fills TAKEN for snake `i`: for each t the cells where it comes too late with move t.

    That is where an opponent can be with move t or sooner, a team mate of a lower number too, and a mate of a higher
    number one move sooner: of two mates who would arrive together one gives way.
    """
    first = i // TEAM * TEAM
    for t in range(1, MOVES):
        for k in range(4):
            cells = EMPTY_SET
            for other in range(SNAKES):
                if other != i:
                    late = 1 if i < other < first + TEAM else 0
                    cells |= lanes[t - late, k, other]
            sets[TAKEN + t, k] = cells


@inlined
def count_reachable(lanes, numbers):
    """Counts the cells of each lane of PATHS after each move into SIZE, and from that SURVIVAL."""
    for t in range(1, MOVES):
        for lane in range(lanes.shape[2]):
            a, b, c, d = lane_of(lanes, PATHS + t, lane)
            numbers[SIZE + t, lane] = popcount(a) + popcount(b) + popcount(c) + popcount(d)
    for lane in range(lanes.shape[2]):
        trapped, survival = 0, HORIZON
        for t in range(1, MOVES):
            trapped |= numbers[SIZE + t, lane] - t  # the sign bit, once set, stays
            survival += trapped >> 63
        numbers[SURVIVAL, lane] = survival


@inlined
def explore(forward, left, right, sets, lanes, numbers):
    """Floods the board from the three cells that a snake can move to, after `flood_from_heads` and `mark_contested`.

    Fills PATHS, BEAN_MOVES, SIZE and SURVIVAL. A move onto a closed cell leaves its lanes empty.
    """
    for lane in range(lanes.shape[2]):
        for k in range(4):
            lanes[PATHS + 1, k, lane] = EMPTY_SET
    for m in range(3):
        cell = forward if m == 0 else left if m == 1 else right
        k = cell // 60
        lanes[PATHS + 1, k, m] = bit(cell) & sets[OPENED + 1, k]
        lanes[PATHS + 1, k, 4 + m] = bit(cell) & sets[OPENED + 1, k] & ~sets[TAKEN + 1, k]
    for t in range(2, MOVES):
        open_a, open_b, open_c, open_d = sets[t, 0], sets[t, 1], sets[t, 2], sets[t, 3]
        free_a, free_b = open_a & ~sets[TAKEN + t, 0], open_b & ~sets[TAKEN + t, 1]
        free_c, free_d = open_c & ~sets[TAKEN + t, 2], open_d & ~sets[TAKEN + t, 3]
        for lane in range(lanes.shape[2]):
            old_a, old_b, old_c, old_d = lane_of(lanes, PATHS + t - 1, lane)
            new_a, new_b, new_c, new_d = dilate(old_a, old_b, old_c, old_d)
            lanes[PATHS + t, 0, lane] = old_a | (new_a & (open_a if lane < 4 else free_a))
            lanes[PATHS + t, 1, lane] = old_b | (new_b & (open_b if lane < 4 else free_b))
            lanes[PATHS + t, 2, lane] = old_c | (new_c & (open_c if lane < 4 else free_c))
            lanes[PATHS + t, 3, lane] = old_d | (new_d & (open_d if lane < 4 else free_d))
    count_reachable(lanes, numbers)
    bean_distances(lanes, PATHS, numbers, BEAN_MOVES)
