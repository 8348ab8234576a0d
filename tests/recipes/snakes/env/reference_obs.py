"""Reference observations and greedy opponent in plain Python, from lists of cells, and random boards for comparisons.

A position is the result of `dump_board`: bodies (head first, empty for a missing snake), beans, directions, step_count,
scores. This file does not depend on the storage format of the environment.
"""

from __future__ import annotations

import math
import random

from powerband.recipes.snakes.env.board import SnakesState, dump_board, load_board
from recipes.snakes.env.reference import COLS, OFFSETS, ROWS, Cell, neighbour

LEFT_OF = {0: 2, 1: 3, 2: 1, 3: 0}
RIGHT_OF = {0: 3, 1: 2, 2: 0, 3: 1}
LIMIT = 16
NEIGHBOURS = {
    (row, col): frozenset(neighbour((row, col), d) for d in range(4)) for row in range(ROWS) for col in range(COLS)
}


# -- random boards ----------------------------------------------------------------------------------------------------


def random_body(rng: random.Random, taken: set[Cell], length: int) -> list[Cell]:
    """A walk over free cells, of `length` cells or as many as it finds (three at least).

    Some are newborn with the head between the other two cells, as the rules make them.
    """
    while True:
        if rng.random() < 0.1:
            cell, direction = (rng.randrange(ROWS), rng.randrange(COLS)), rng.randrange(4)
            body = [cell, neighbour(cell, direction), neighbour(cell, direction ^ 1)]
            if not taken & set(body):
                return body
        body = [(rng.randrange(ROWS), rng.randrange(COLS))]
        while len(body) < length:
            nexts = [neighbour(body[-1], d) for d in range(4)]
            nexts = [cell for cell in nexts if cell not in taken and cell not in body]
            if not nexts:
                break
            body.append(rng.choice(nexts))
        if body[0] not in taken and len(body) >= 3:
            return body


def random_position(rng: random.Random) -> dict:
    """Six snakes, from all short to a crowded board, up to five beans; some directions do not fit the body."""
    longest = rng.choice([3, 6, 12, 20, 30])
    bodies: list[list[Cell]] = []
    taken: set[Cell] = set()
    directions = []
    for _ in range(6):
        body = random_body(rng, taken, rng.randint(3, longest))
        taken |= set(body)
        bodies.append(body)
        direction = next(d for d in range(4) if neighbour(body[1], d) == body[0])
        directions.append(direction if rng.random() < 0.9 else rng.randrange(4))
    free = [(r, c) for r in range(ROWS) for c in range(COLS) if (r, c) not in taken]
    beans = rng.sample(free, rng.choice([5, 5, 5, 5, 3, 0]))
    scores = [rng.randint(-10, 20) for _ in range(6)]
    return {
        "bodies": bodies,
        "beans": beans,
        "directions": directions,
        "step_count": rng.randrange(200),
        "scores": scores,
    }


def load(positions: list[dict]) -> SnakesState:
    """Boards in the given positions."""
    state = SnakesState.empty(len(positions))
    for b, position in enumerate(positions):
        load_board(state, b, **position)
    return state


def random_boards(count: int, seed: int = 0, missing: float = 0.1) -> tuple[SnakesState, list[dict]]:
    """`count` random boards with their positions; on a share `missing` of them one snake has found no place."""
    rng = random.Random(seed)
    state = load([random_position(rng) for _ in range(count)])
    for b in range(count):
        if rng.random() < missing:
            i = rng.randrange(6)
            state.grid[b][state.grid[b] == 2 + i] = 0
    return state, [dump_board(state, b) for b in range(count)]


# -- geometry ---------------------------------------------------------------------------------------------------------


def ring(offset: int, size: int) -> int:
    """`offset` on a ring as the number nearest zero, half way round positive."""
    return next(k for k in range(-size // 2 + 1, size // 2 + 1) if (k - offset) % size == 0)


def moves_apart(here: Cell, there: Cell) -> int:
    """Moves from cell to cell on an empty torus."""
    return abs(ring(there[0] - here[0], ROWS)) + abs(ring(there[1] - here[1], COLS))


def length_apart(here: Cell, there: Cell) -> float:
    """Euclidean distance over the edges."""
    return math.hypot(ring(there[0] - here[0], ROWS), ring(there[1] - here[1], COLS))


def own_team_first(i: int) -> list[int]:
    """Returns all six snakes: the team of snake `i`, then the other team."""
    return [0, 1, 2, 3, 4, 5] if i < 3 else [3, 4, 5, 0, 1, 2]


def occupied(position: dict) -> dict[Cell, int]:
    """Cell -> snake."""
    return {cell: i for i, body in enumerate(position["bodies"]) for cell in body}


# -- baseline26, fork35, planes ---------------------------------------------------------------------------------------


def sixteen(position: dict, i: int) -> list[float]:
    """Returns the numbers that baseline26 and fork35 share."""
    head = position["bodies"][i][0]
    row: list[float] = [*head]
    for direction in range(4):
        cell = neighbour(head, direction)
        snake = occupied(position).get(cell)
        row.append(1 if cell in position["beans"] else 0 if snake is None else 2 + own_team_first(i).index(snake))
    beans = position["beans"] + [(-1, -1)] * (5 - len(position["beans"]))
    return row + [x for bean in beans for x in bean]


def other_heads(position: dict, i: int) -> list[float]:
    """Row and column of the five other heads."""
    heads = [position["bodies"][k][:1] or [(-1, -1)] for k in own_team_first(i) if k != i]
    return [x for head in heads for x in head[0]]


def baseline26(position: dict, i: int) -> list[float]:
    """The observation of that name."""
    if not position["bodies"][i]:
        return [0.0] * 26
    return sixteen(position, i) + other_heads(position, i)


def fork35(position: dict, i: int) -> list[float]:
    """The observation of that name."""
    body = position["bodies"][i]
    if not body:
        return [0.0] * 35
    row = sixteen(position, i)
    beans = sorted(position["beans"], key=lambda bean: length_apart(body[0], bean))[:2]
    for bean in beans:
        row += [ring(bean[1] - body[0][1], COLS), ring(bean[0] - body[0][0], ROWS), length_apart(body[0], bean)]
    row += [0.0] * (6 - 3 * len(beans))
    row += [len(body) / 20]
    row += other_heads(position, i)
    for other in own_team_first(i)[3:5]:
        theirs = position["bodies"][other]
        row.append(len(theirs) / len(body) / (length_apart(body[0], theirs[0]) + 1) if theirs else 0.0)
    return row


def planes(position: dict, i: int) -> list[float]:
    """Returns the observation planes, flat."""
    view = [[[0.0] * COLS for _ in range(ROWS)] for _ in range(8)]
    if position["bodies"][i]:
        head = position["bodies"][i][0]

        def put(plane: int, cell: Cell, value: float) -> None:
            view[plane][(cell[0] - head[0] + 5) % ROWS][(cell[1] - head[1] + 10) % COLS] = value

        for bean in position["beans"]:
            put(0, bean, 1.0)
        for k, body in enumerate(position["bodies"]):
            for steps, cell in enumerate(reversed(body), start=1):
                put(1 if k == i else 2 if k // 3 == i // 3 else 3, cell, min(1.0, steps / 32))
            if body and k != i:
                put(4 if k // 3 == i // 3 else 5, body[0], 1.0)
        view[6] = [[position["step_count"] / 200] * COLS for _ in range(ROWS)]
        view[7] = [[clip(lead(position, i) / 20)] * COLS for _ in range(ROWS)]
    return [value for plane in view for line in plane for value in line]


def lead(position: dict, i: int) -> int:
    """Return of the team of snake `i` minus that of the other team."""
    own = sum(position["scores"][k] for k in own_team_first(i)[:3])
    return own - sum(position["scores"][k] for k in own_team_first(i)[3:])


def clip(value: float) -> float:
    """Within [-1, 1]."""
    return max(-1.0, min(1.0, value))


# -- features ---------------------------------------------------------------------------------------------------------


def near(moves: float) -> float:
    """1 for one move, 0 beyond 16."""
    return max(0.0, 1 - (moves - 1) / LIMIT)


class View:
    """Properties of a position that do not depend on the observing snake."""

    def __init__(self, position: dict):
        self.position = position
        self.bodies = position["bodies"]
        self.leaves = {cell: k + 1 for body in self.bodies for k, cell in enumerate(reversed(body))}
        self.reach = [self.flood({body[0]} if body else set(), 1) for body in self.bodies]
        self.arrival = [
            [next((t for t in range(1, LIMIT + 1) if bean in flood[t]), LIMIT + 1) for bean in position["beans"]]
            for flood in self.reach
        ]

    def open(self, cell: Cell, t: int) -> bool:
        """Can be entered with move t."""
        return self.leaves.get(cell, 0) <= t

    def flood(self, cells: set[Cell], first: int, taken: dict[int, set[Cell]] | None = None) -> dict[int, set[Cell]]:
        """t -> cells reached with move t, from `cells` reached with move first - 1, without those `taken` by then."""
        sets = {first - 1: cells}
        for t in range(first, LIMIT + 1):
            spread = cells.union(*(NEIGHBOURS[cell] for cell in cells))
            late = taken[t] if taken else set()
            cells = {cell for cell in spread - late if self.leaves.get(cell, 0) <= t} | (cells if taken else set())
            sets[t] = cells
        return sets

    def taken_from(self, i: int) -> dict[int, set[Cell]]:
        """Returns for each t the cells that another snake reaches before snake i with move t."""
        taken = {}
        for t in range(1, LIMIT + 1):
            taken[t] = set()
            for k in range(6):
                if k != i:
                    gives_way = k // 3 == i // 3 and k > i
                    taken[t] |= self.reach[k][t - 1 if gives_way else t]
        return taken

    def ways(self, k: int) -> int:
        """Cells that snake k can move to."""
        return len(self.reach[k][1])

    def move(self, i: int, cell: Cell, taken: dict[int, set[Cell]]) -> list[float]:
        """The twenty numbers of the move of snake i onto `cell`."""
        length, beans = len(self.bodies[i]), self.position["beans"]
        if not self.open(cell, 1):
            return [0.0, 0.0, 1.0] + [0.0] * 17
        row = [1.0 if cell in beans else 0.0, 0.0, 0.0]
        owner = occupied(self.position).get(cell)
        if owner is not None:
            row[1] = 0.5 if owner != i and 1 in self.arrival[owner] else 1.0
        for mates in (False, True):
            rivals = [k for k in range(6) if k != i and (k // 3 == i // 3) == mates and cell in self.reach[k][1]]
            row.append(min(1.0, len(rivals) / 2))
            row.append(min(1.0, sum(1 / self.ways(k) for k in rivals)))
            row.append(clip(sum(len(self.bodies[k]) - length for k in rivals) / 8))
        row.append(min(3, sum(self.open(neighbour(cell, d), 2) for d in range(4))) / 3)
        free = self.flood({cell}, 2)
        mine = self.flood({cell} - taken[1], 2, taken)
        survival = next((t - 1 for t in range(1, LIMIT + 1) if len(free[t]) < t), LIMIT)
        row.append(len(free[min(4, survival)]) / 25)
        row.append(min(1.0, len(free[survival]) / 100))
        row.append(clip((len(free[survival]) - length) / 24))
        row.append(survival / LIMIT)
        row.append(min(1.0, len(mine[survival]) / 64))
        row.append(clip((len(mine[survival]) - length) / 24))
        to_beans = [[t for t in range(1, survival + 1) if bean in free[t]][:1] for bean in beans]
        claims = [[t for t in range(1, survival + 1) if bean in mine[t]][:1] for bean in beans]
        row.append(near(min((t for ts in to_beans for t in ts), default=LIMIT + 1)))
        row.append(1 - min((moves_apart(cell, bean) for bean in beans), default=15) / 15)
        row.append(near(min((t for ts in claims for t in ts), default=LIMIT + 1)))
        row.append(min(1.0, sum(0.5 / t for ts in claims for t in ts)))
        return row

    def turned(self, i: int, cell: Cell) -> list[float]:
        """Offset of `cell` from the head of snake i, forward and right, in cells."""
        head = self.bodies[i][0]
        offset = (cell[0] - head[0], cell[1] - head[1])
        result = []
        for direction in (self.position["directions"][i], RIGHT_OF[self.position["directions"][i]]):
            towards = OFFSETS[direction]
            size = ROWS if towards[0] else COLS
            result.append(ring(offset[0] * towards[0] + offset[1] * towards[1], size))
        return result

    def row(self, i: int) -> list[float]:
        """The observation `features` of snake i."""
        body, position = self.bodies[i], self.position
        if not body:
            return [0.0] * 122
        taken, course = self.taken_from(i), position["directions"][i]
        row: list[float] = []
        for direction in (course, LEFT_OF[course], RIGHT_OF[course]):
            row += self.move(i, neighbour(body[0], direction), taken)
        beans = sorted(range(len(position["beans"])), key=lambda j: moves_apart(body[0], position["beans"][j]))
        for j in beans:
            own = self.arrival[i][j]
            enemy = min(self.arrival[k][j] for k in own_team_first(i)[3:])
            mate = min(self.arrival[k][j] for k in own_team_first(i)[:3] if k != i)
            row += [x / 10 for x in self.turned(i, position["beans"][j])]
            row += [near(own), clip((enemy - own) / 8), clip((mate - own) / 8)]
        row += [0.0] * 5 * (5 - len(beans))
        for team, places in ((own_team_first(i)[:3], 2), (own_team_first(i)[3:], 3)):
            heads = [k for k in team if k != i and self.bodies[k]]
            for k in sorted(heads, key=lambda k: moves_apart(body[0], self.bodies[k][0])):
                theirs = OFFSETS[position["directions"][k]]
                row += [x / 10 for x in self.turned(i, self.bodies[k][0])]
                row.append(clip((len(self.bodies[k]) - len(body)) / 16))
                for direction in (course, RIGHT_OF[course]):
                    row.append(sum(a * b for a, b in zip(OFFSETS[direction], theirs, strict=True)))
                row.append(self.ways(k) / 3)
            row += [0.0] * 6 * (places - len(heads))
        row += [min(1.0, len(body) / 40), clip(position["scores"][i] / 20), clip(lead(position, i) / 20)]
        row += [position["step_count"] / 200, i % 3 - 1, 1.0 if course in (2, 3) else -1.0]
        return row + [sum(len(b) for b in self.bodies) / 200]


# -- greedy -----------------------------------------------------------------------------------------------------------


def greedy_actions(position: dict, team: int, torus: bool) -> list[int]:
    """Absolute actions of the three snakes of `team`."""
    beans, actions = list(position["beans"]), []

    def distance(here: Cell, there: Cell) -> float:
        return length_apart(here, there) if torus else math.dist(here, there)

    for i in range(3 * team, 3 * team + 3):
        if not position["bodies"][i]:
            actions.append(0)
            continue
        head = position["bodies"][i][0]
        target = min(beans, key=lambda bean: distance(head, bean)) if beans else None
        if target:
            beans.remove(target)
        free = [d for d in range(4) if neighbour(head, d) not in occupied(position)]
        order = sorted(free, key=lambda d: distance(neighbour(head, d), target) if target else 0)
        actions.append(order[0] if order else 0)
    return actions
