"""Features: writes an observation of 122 numbers per snake, relative to its head and rotated to its direction.

Parameter names: `s`, a `BoardArrays`, contains all boards; `b` is the index of a board; `i` is a snake, 0..5; `sets`,
`lanes` and `numbers` are the working memory of one board, see `flood.Scratch`; `row` is the output, and `at` an index
in it. Actions are relative: forward, left, right. Every number is invariant under a cyclic shift of the board.

========= ==================================================================================================
index     content
========= ==================================================================================================
20 m + k  move m = 0 forward, 1 left, 2 right; a blocked move has body = 1 and zeros elsewhere
 0        bean: 1 for a bean on the cell
 1        tail: 1 for a tail that leaves with this move, 0.5 if its snake can reach a bean and the tail may stay
 2        body: 1 for any other body cell (the move is deadly)
 3        enemy_heads: heads of opponents that can move to the same cell / 2
 4        enemy_risk: sum of 1 / (open moves) over those heads
 5        enemy_trade: sum of (their length - own length) / 8 over those heads
 6        mate_heads, 7 mate_risk, 8 mate_trade: the same for team mates
 9        exits: open neighbours of the cell one move later / 3
10        near: cells reached with three further moves / 25
11        region: cells reached while the snake survives / 100
12        room: (cells reached while it survives - own length) / 24
13        survival: moves t, of 16 at most, until fewer than t cells are reached (a trap) / 16
14        territory: cells reached before any other snake, while it survives / 64
15        territory_room: (these cells - own length) / 24
16        bean_path: nearness of the first bean along open cells
17        bean_torus: 1 - distance after the move to the nearest bean, bodies ignored / 15
18        bean_claim: nearness of the first bean that no other snake reaches earlier
19        pull: half the sum of 1 / moves over the beans that no other snake reaches earlier
60 + 5 j  bean j = 0..4 by distance on the torus (ties: the older bean first)
 0, 1     forward, right: wrapped offset in the rotated frame / 10; exactly half the board is positive
 2        path: nearness along open cells
 3        margin_enemy: (moves of the nearest opponent - own moves) / 8, along open cells
 4        margin_mate: the same for the nearest team mate
85 + 6 j  head j: two mates by distance, then three opponents by distance (ties: the lower number first)
 0, 1     forward, right: as above
 2        length: (its length - own length) / 16
 3, 4     ahead, aside: its direction in the rotated frame, a unit vector (forward, right)
 5        moves: its open moves / 3
115       length: own length / 40
116       score: own score / 20
117       lead: (score of the own team - score of the other team) / 20
118       step: moves of the game / 200
119       slot: -1, 0, 1 for the first, second, third snake of the team
120       axis: 1 while heading left or right, -1 while heading up or down
121       fill: share of the board covered by bodies
========= ==================================================================================================

The nearness of a target t moves away is ``1 - (t - 1) / 16``, and 0 beyond 16 moves. All numbers are clipped to
[-1, 1]. Open cells, reached cells and arrivals are those of `flood`. The numbers of a missing bean or snake are zero.
All 122 are zero if the own snake found no place, which ended its game.
"""

from __future__ import annotations

import numpy as np

from powerband.recipes.snakes.env.rules.flood import (
    ARRIVAL,
    BEAN_MOVES,
    COURSE,
    EMPTY_SET,
    FOOD,
    HEAD,
    HORIZON,
    KEY,
    LENGTH,
    OPENED,
    ORDER,
    REACH,
    SIZE,
    SURVIVAL,
    WAYS,
    bit,
    explore,
    inlined,
    mark_contested,
)
from powerband.recipes.snakes.env.rules.game import (
    BEAN,
    BEANS,
    CELLS,
    COLS,
    FREE,
    LEFT,
    MAX_STEPS,
    ROWS,
    SNAKE,
    SNAKES,
    TEAM,
    absolute_action,
    neighbour,
)

MOVE_FEATURES = (
    "bean tail body enemy_heads enemy_risk enemy_trade mate_heads mate_risk mate_trade exits near region room survival "
    "territory territory_room bean_path bean_torus bean_claim pull"
).split()
BEAN_FEATURES = "forward right path margin_enemy margin_mate".split()
HEAD_FEATURES = "forward right length ahead aside moves".split()
FEATURES = [
    *(f"{move}/{name}" for move in ("forward", "left", "right") for name in MOVE_FEATURES),
    *(f"bean{j}/{name}" for j in range(BEANS) for name in BEAN_FEATURES),
    *(f"{who}/{name}" for who in ("mate0", "mate1", "enemy0", "enemy1", "enemy2") for name in HEAD_FEATURES),
    *(f"own/{name}" for name in ("length", "score", "lead", "step", "slot", "axis", "fill")),
]
"""Names of the 122 features, in order."""

NUM_FEATURES = len(FEATURES)
NUM_MOVE, NUM_BEAN, NUM_HEAD = len(MOVE_FEATURES), len(BEAN_FEATURES), len(HEAD_FEATURES)
BEANS_AT = 3 * NUM_MOVE
HEADS_AT = BEANS_AT + BEANS * NUM_BEAN
OWN_AT = HEADS_AT + (SNAKES - 1) * NUM_HEAD


@inlined
def wrapped(offset, size):
    """Returns the shortest offset equivalent to `offset` on a ring of `size` cells; half the ring is positive."""
    half = size // 2
    offset -= size if offset > half else 0
    offset += size if offset <= -half else 0
    return offset


@inlined
def torus_distance(start, end):
    """Counts the moves between two cells on an empty torus."""
    down = abs(start // COLS - end // COLS)
    right = abs(start % COLS - end % COLS)
    return min(down, ROWS - down) + min(right, COLS - right)


@inlined
def along(direction, down, right):
    """Returns the component of the vector (`down`, `right`) in `direction`: 0..3 = up, down, left, right."""
    part = right if direction & 2 else down
    return part if direction & 1 else -part


@inlined
def put_offset(start, end, course, aside, row, at):
    """Writes the shortest torus offset from cell `start` to cell `end`, in cells / 10, to row[at] and row[at + 1].

    row[at] is the component in `course`, the direction of the snake, and row[at + 1] the component in `aside`, the
    direction to its right. Directions are 0..3 = up, down, left, right.
    """
    down, right = end // COLS - start // COLS, end % COLS - start % COLS
    row[at] = wrapped(along(course, down, right), COLS if course & 2 else ROWS) * 0.1
    row[at + 1] = wrapped(along(aside, down, right), COLS if aside & 2 else ROWS) * 0.1


@inlined
def clipped(value):
    """Clips `value` to [-1, 1]."""
    return max(-1.0, min(1.0, value))


@inlined
def nearness(moves):
    """Converts a number of moves to a nearness: 1 for one move, 1/16 less for each further move, 0 beyond 16 moves."""
    return max(0.0, 1.0 - (moves - 1) * (1.0 / HORIZON))


@inlined
def insert(order, key, size, item, value):
    """Inserts `item` with the sort key `value` into the sorted array `order`, of which `size` entries are in use.

    `key` contains the sort keys of `order`. Items with the same key keep the order of their insertion.
    """
    k = size
    while k > 0 and key[k - 1] > value:
        order[k], key[k] = order[k - 1], key[k - 1]
        k -= 1
    order[k], key[k] = item, value


@inlined
def write_move(i, m, cell, code, sets, lanes, numbers, row, at):
    """Writes the 20 features of one move of snake `i` to row[at : at + 20], which must contain zeros.

    `m`: relative move, 0 forward, 1 left, 2 right; `cell`: cell that the move leads to; `code`: content of this cell in
    the grid, 0 free, 1 bean, 2 + j snake j; `sets`, `lanes` and `numbers`: the cells that can be reached after each
    move, as `flood.explore` computes them.
    """
    word, mask = cell // 60, bit(cell)
    if (sets[OPENED + 1, word] & mask) == EMPTY_SET:
        row[at + 2] = 1.0
        return
    length = numbers[LENGTH, i]
    if code == BEAN:
        row[at] = 1.0
    elif code != FREE:
        stays = False
        for j in range(BEANS):
            stays = stays or numbers[ARRIVAL + j, code - SNAKE] == 1
        row[at + 1] = 0.5 if stays and code != SNAKE + i else 1.0
    for team in range(2):
        heads, risk, trade = 0, 0.0, 0
        for other in range(team * TEAM, team * TEAM + TEAM):
            if other != i and (lanes[REACH + 1, word, other] & mask) != EMPTY_SET:
                heads += 1
                risk += 1.0 / numbers[WAYS, other]
                trade += numbers[LENGTH, other] - length
        k = at + (6 if team == i // TEAM else 3)
        row[k] = min(heads, 2) * 0.5
        row[k + 1] = min(risk, 1.0)
        row[k + 2] = clipped(trade * 0.125)
    exits = 0
    for direction in range(4):
        exit_cell = neighbour(cell, direction)
        exits += 1 if (sets[OPENED + 2, exit_cell // 60] & bit(exit_cell)) != EMPTY_SET else 0
    row[at + 9] = min(exits, 3) * (1.0 / 3.0)
    survival = numbers[SURVIVAL, m]
    size, territory = numbers[SIZE + survival, m], numbers[SIZE + survival, 4 + m]
    row[at + 10] = numbers[SIZE + min(survival, 4), m] * 0.04
    row[at + 11] = min(size, 100) * 0.01
    row[at + 12] = clipped((size - length) * (1.0 / 24.0))
    row[at + 13] = survival * (1.0 / HORIZON)
    row[at + 14] = min(territory, 64) * (1.0 / 64.0)
    row[at + 15] = clipped((territory - length) * (1.0 / 24.0))
    first, nearest, claim, pull = HORIZON + 1, 15, HORIZON + 1, 0.0
    for j in range(BEANS):
        bean = numbers[FOOD, j]
        if bean >= 0:
            nearest = min(nearest, torus_distance(cell, bean))
            moves, claimed = numbers[BEAN_MOVES + j, m], numbers[BEAN_MOVES + j, 4 + m]
            if moves <= survival:
                first = min(first, moves)
            if claimed <= survival:
                claim = min(claim, claimed)
                pull += 0.5 / claimed
    row[at + 16] = nearness(first)
    row[at + 17] = 1.0 - nearest * (1.0 / 15.0)
    row[at + 18] = nearness(claim)
    row[at + 19] = min(1.0, pull)


@inlined
def write_bean(i, j, course, aside, numbers, row, at):
    """Writes the 5 features of bean `j` (0..4), as snake `i` (0..5) sees it, to row[at : at + 5].

    The first three are its offset from the head, forward and to the right, and its nearness in moves. The others are
    the moves by which the nearest enemy and the nearest team mate arrive later.

    `course` and `aside`: directions forward and right of the snake; `numbers`: moves of each snake to each bean, as
    `flood` computes them.
    """
    own, enemy, mate = numbers[ARRIVAL + j, i], HORIZON + 1, HORIZON + 1
    for other in range(SNAKES):
        moves = numbers[ARRIVAL + j, other]
        if other // TEAM != i // TEAM:
            enemy = min(enemy, moves)
        elif other != i:
            mate = min(mate, moves)
    put_offset(numbers[HEAD, i], numbers[FOOD, j], course, aside, row, at)
    row[at + 2] = nearness(own)
    row[at + 3] = clipped((enemy - own) * 0.125)
    row[at + 4] = clipped((mate - own) * 0.125)


@inlined
def write_head(i, other, course, aside, numbers, row, at):
    """Writes the 6 features of the head of snake `other`, as snake `i` sees it, to row[at : at + 6].

    `course` and `aside`: directions forward and right of snake `i`; `numbers`: heads, lengths and directions of all
    snakes, as `flood` computes them.
    """
    theirs = numbers[COURSE, other]
    sign = 2 * (theirs & 1) - 1
    down, right = (0, sign) if theirs & 2 else (sign, 0)
    put_offset(numbers[HEAD, i], numbers[HEAD, other], course, aside, row, at)
    row[at + 2] = clipped((numbers[LENGTH, other] - numbers[LENGTH, i]) * 0.0625)
    row[at + 3] = along(course, down, right)
    row[at + 4] = along(aside, down, right)
    row[at + 5] = numbers[WAYS, other] * (1.0 / 3.0)


@inlined
def write_features(s, b, i, sets, lanes, numbers, row):
    """Writes the 122 features of snake `i` of board `b` to `row`; call `flood_from_heads` for the board before.

    `s`: arrays of all boards; `sets`, `lanes` and `numbers`: the scratch arrays that `flood_from_heads` filled.
    """
    for k in range(NUM_FEATURES):
        row[k] = 0.0
    head, course = numbers[HEAD, i], numbers[COURSE, i]
    if head < 0:
        return
    left = absolute_action(course, 1)
    aside = left ^ 1
    mark_contested(i, sets, lanes)
    explore(neighbour(head, course), neighbour(head, left), neighbour(head, aside), sets, lanes, numbers)
    for m in range(3):
        cell = neighbour(head, course if m == 0 else left if m == 1 else aside)
        write_move(i, m, cell, np.int64(s.grid[b, cell]), sets, lanes, numbers, row, NUM_MOVE * m)

    order, key = numbers[ORDER], numbers[KEY]
    for j in range(BEANS):
        bean = numbers[FOOD, j]
        insert(order, key, j, j, torus_distance(head, bean) if bean >= 0 else CELLS)
    for place in range(BEANS):
        if numbers[FOOD, order[place]] >= 0:
            write_bean(i, order[place], course, aside, numbers, row, BEANS_AT + NUM_BEAN * place)

    at = HEADS_AT
    for team in (i // TEAM, 1 - i // TEAM):
        found = 0
        for other in range(team * TEAM, team * TEAM + TEAM):
            if other != i and numbers[HEAD, other] >= 0:
                insert(order, key, found, other, torus_distance(head, numbers[HEAD, other]))
                found += 1
        for place in range(found):
            write_head(i, order[place], course, aside, numbers, row, at + NUM_HEAD * place)
        at += 2 * NUM_HEAD

    lead, covered = 0, 0
    for other in range(SNAKES):
        score = np.int64(s.score[b, other])
        lead += score if other // TEAM == i // TEAM else -score
        covered += numbers[LENGTH, other] if numbers[HEAD, other] >= 0 else 0
    row[OWN_AT] = min(numbers[LENGTH, i], 40) * 0.025
    row[OWN_AT + 1] = clipped(np.int64(s.score[b, i]) * 0.05)
    row[OWN_AT + 2] = clipped(lead * 0.05)
    row[OWN_AT + 3] = np.int64(s.step_count[b]) * (1.0 / MAX_STEPS)
    row[OWN_AT + 4] = i % TEAM - 1
    row[OWN_AT + 5] = 1.0 if course >= LEFT else -1.0
    row[OWN_AT + 6] = covered * (1.0 / CELLS)
