"""Floods: computes with bit operations which cells each snake can reach, and in how many moves.

Parameter names: `s`, a `BoardArrays`, contains all boards; `b` is the index of a board; `i` is a snake, 0..5; `sets`,
`lanes` and `numbers` are the working memory of one board, see `Scratch`; `t` is a number of moves.

A set of cells is four uint64: bit ``20 * (row % 3) + col`` of word ``row // 3``, so three rows fill 60 bits of a word
and the last word contains row 9. One step of a flood takes some seventy integer instructions per board. Eight floods
run in parallel lanes. The compiler vectorises the loop over lanes only if their number is not a constant,
hence ``range(lanes.shape[2])``.

Floods take the motion of snakes into account: a snake leaves the k-th cell of its body from the tail (k = 0, 1, ...) in
k + 1 moves, so the cell can be entered with move k + 1 and later. The growth of snakes that eat is ignored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from powerband.envs.numba.hashing import UNCOUNTED
from powerband.recipes.snakes.env.rules.game import BEANS, SNAKE, SNAKES, TEAM, neighbour

# Inlined functions without reference counts of arrays. They have no disk cache, because a cached function would keep
# outdated inlined code of other files. The loops that call them are cached, with a checksum of all files.
inlined = njit(forceinline=True, **UNCOUNTED)

HORIZON = 16
"""Number of moves that a flood computes; the farthest cell of the torus is 15 moves away."""

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
    """Scratch arrays for one board, in which the cells are computed that each snake can reach within 16 moves.

    Eight such computations (floods) run at the same time, one per lane: from the heads of the six snakes, or from the
    cells after each possible move of one snake. The constants below this class name the rows of each array.
    `allocate_scratch` adds a first axis, with one entry per board that is processed at the same time.

    Attributes:
        sets: (34, 4) uint64: 34 sets of cells; a set is four uint64 with one bit per cell.
        lanes: (34, 4, 8) uint64: 34 sets of cells for each of the eight lanes.
        numbers: (35, 8) int64: 35 rows of integers, with one entry per snake, bean or lane.
    """

    sets: Any
    lanes: Any
    numbers: Any


MOVES = HORIZON + 1
OPENED, TAKEN = 0, MOVES
"""Rows of `sets`, for t = 0..16 each: OPENED + t, cells that can be entered with move t (t = 0: cells without a body);
TAKEN + t, cells that other snakes reach before the current snake with move t, see `mark_contested`."""

REACH, PATHS = 0, MOVES
"""Rows of `lanes`, for t = 0..16 each: REACH + t, lane i: cells that snake i can reach with at most t moves (t = 0: its
head); PATHS + t, lane m: cells that can be reached with move t after the relative first move m = 0, 1, 2; lane 4 + m:
the same before any other snake."""

HEAD, LENGTH, COURSE, WAYS, FOOD = 0, 1, 2, 3, 4
ARRIVAL, BEAN_MOVES = 5, 5 + BEANS
SURVIVAL, ORDER, KEY, SIZE = 15, 16, 17, 18
"""Rows of `numbers`. The first have one lane per snake: cell of its head, -1 if it is not on the board; its length; its
direction; number of cells it can move to. FOOD: the cell of one bean per lane, -1 for none. ARRIVAL + j: moves of each
snake to bean j (17: farther, unreachable, or missing); BEAN_MOVES + j: the same with lanes as in PATHS. SURVIVAL: moves
until a lane of PATHS has fewer cells than moves (a trap), 16 for never. Two rows for sorting. SIZE + t: cells in each
lane of PATHS after move t."""


def allocate_scratch(workers: int, empty: Callable[[tuple[int, ...], type], Any] = np.empty) -> Scratch:
    """Allocates scratch arrays for `workers` boards that are processed at the same time.

    `empty` is the function ``(shape, dtype) -> array`` that allocates each array: `numpy.empty`, or its counterpart for
    a GPU.
    """
    return Scratch(
        empty((workers, 2 * MOVES, 4), np.uint64),
        empty((workers, 2 * MOVES, 4, LANES), np.uint64),
        empty((workers, SIZE + MOVES, LANES), np.int64),
    )


# -- sets -------------------------------------------------------------------------------------------------------------


@inlined
def horizontal_neighbours(word):
    """Returns, as bits, the left and right neighbours of the cells in `word`, a uint64 of three board rows."""
    left = ((word & NOT_FIRST) >> U1) | ((word & FIRST_COL) << U19)
    return left | ((word & NOT_LAST) << U1) | ((word & LAST_COL) >> U19)


@inlined
def dilate(a, b, c, d):
    """Returns the cells of a set and all their neighbours on the torus, as four uint64.

    The set is given as four uint64, `a` to `d`, with one bit per cell: `a` is board rows 0 to 2, `b` 3 to 5, `c` 6 to
    8, `d` row 9.
    """
    return (
        a | horizontal_neighbours(a) | (a >> U20) | ((b & ONE_ROW) << U40) | ((a << U20) & THREE_ROWS) | d,
        b | horizontal_neighbours(b) | (b >> U20) | ((c & ONE_ROW) << U40) | ((b << U20) & THREE_ROWS) | (a >> U40),
        c | horizontal_neighbours(c) | (c >> U20) | (d << U40) | ((c << U20) & THREE_ROWS) | (b >> U40),
        d | (horizontal_neighbours(d) & ONE_ROW) | (a & ONE_ROW) | (c >> U40),
    )


@inlined
def popcount(word):
    """Counts the 1 bits of a uint64, as int64. LLVM compiles this idiom to one instruction if the CPU has it."""
    word = word - ((word >> U1) & PAIRS)
    word = (word & NIBBLES) + ((word >> U2) & NIBBLES)
    word = (word + (word >> U4)) & BYTES
    return np.int64((word * ONES) >> U56)


@inlined
def lane_of(sets, t, lane):
    """Returns the set of cells sets[t, :, lane] as four uint64, with one bit per cell.

    `sets`: the scratch array `Scratch.lanes`; `t`: its row, such as a number of moves; `lane`: one of eight floods.
    """
    return sets[t, 0, lane], sets[t, 1, lane], sets[t, 2, lane], sets[t, 3, lane]


@inlined
def bit(cell):
    """Returns a uint64 in which only the bit of `cell` (0..199) is set.

    A set of cells is four uint64; the bit belongs to the one with the index ``cell // 60``.
    """
    return U1 << np.uint64(cell % 60)


@inlined
def alive(s, b, i):
    """Returns True if snake `i` is on board `b`; `s`: arrays of all boards.

    A dead snake for which no free cells were found is not on the board; this ends the game.
    """
    return s.grid[b, s.head[b, i]] == SNAKE + i


# -- floods -----------------------------------------------------------------------------------------------------------


@inlined
def bean_distances(lanes, flood, numbers, row):
    """Computes after how many moves each of eight floods (lanes) reaches each of the five beans.

    Args:
        lanes: Sets of cells that the floods reached, one row for each number of moves.
        flood: First of these rows, the constant REACH or PATHS.
        numbers: Row FOOD contains the cells of the beans. The result for bean j is written to numbers[row + j, lane];
            17 means not within 16 moves, or no such bean.
        row: Row of `numbers` for the first bean.
    """
    for j in range(BEANS):
        cell = numbers[FOOD, j]
        word, shift = max(cell, 0) // 60, np.uint64(max(cell, 0) % 60)
        none = HORIZON + 1 if cell < 0 else 0
        for lane in range(lanes.shape[2]):
            moves = HORIZON + 1
            for t in range(1, MOVES):  # reached cells stay reached, so count the moves after which the bean is reached
                moves -= np.int64((lanes[flood + t, word, lane] >> shift) & U1)
            numbers[row + j, lane] = max(moves, none)


@inlined
def flood_from_heads(s, b, sets, lanes, numbers):
    """Computes which cells each snake on board `b` can reach with 0 to 16 moves.

    It fills the scratch arrays, see `Scratch`. `sets`: cells that are free at each move; `lanes`: cells that each snake
    can reach; `numbers`: head, length, direction and distances to beans of each snake. `s`: arrays of all boards.
    """
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
    """Computes, for each number t of moves, the cells that other snakes reach before snake `i`.

    An opponent, or a mate with a lower number, is first if it reaches the cell with at most t moves; a mate with a
    higher number needs at most t - 1. So only one of two mates that would arrive together can claim a cell.

    `lanes`: the cells that each snake can reach, from `flood_from_heads`; `sets`: its rows TAKEN + t receive the
    result.
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
    """Counts the cells that each of eight floods (lanes) has reached after t = 1 to 16 moves.

    It reads the cells from row PATHS + t of `lanes` and writes the counts to row SIZE + t of `numbers`. A count below t
    means that the snake is trapped. The row SURVIVAL receives the largest t before that; 16 if it never is.
    """
    for t in range(1, MOVES):
        for lane in range(lanes.shape[2]):
            a, b, c, d = lane_of(lanes, PATHS + t, lane)
            numbers[SIZE + t, lane] = popcount(a) + popcount(b) + popcount(c) + popcount(d)
    for lane in range(lanes.shape[2]):
        trapped, survival = 0, HORIZON
        for t in range(1, MOVES):
            trapped |= numbers[SIZE + t, lane] - t  # a set sign bit stays set
            survival += trapped >> 63
        numbers[SURVIVAL, lane] = survival


@inlined
def explore(forward, left, right, sets, lanes, numbers):
    """Computes which cells a snake can reach after each of its three next moves; call `mark_contested` before.

    The reached cells are written to `lanes`, twice: all of them, and those that no other snake reaches before.
    `numbers` receives, for both, the number of cells, the moves until the snake is trapped, and the moves to each bean.

    `forward`, `left`, `right`: cells after the three moves; `sets`: cells that are free or contested at each move.
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
