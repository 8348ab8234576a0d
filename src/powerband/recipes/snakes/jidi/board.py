"""Observations of 3v3 snakes from the dictionary of the Jidi platform, in plain Python.

A cell is a number ``20 * row + column`` and a set of cells an integer with one bit per cell. Directions are 0 up, 1
down, 2 left, 3 right. Snakes 0 to 2 are a team, and 3 to 5 the other one.
"""

import math

ROWS, COLS, HORIZON = 10, 20, 16
ALL = (1 << ROWS * COLS) - 1
FIRST_COLUMN = sum(1 << COLS * row for row in range(ROWS))
LAST_COLUMN = FIRST_COLUMN << (COLS - 1)
OFFSETS = ((-1, 0), (1, 0), (0, -1), (0, 1))
LEFT_OF = (2, 3, 1, 0)


def neighbour(cell, direction):
    """Returns the next cell in `direction` on the torus."""
    rows, columns = OFFSETS[direction]
    return (cell // COLS + rows) % ROWS * COLS + (cell % COLS + columns) % COLS


def spread(cells):
    """Returns a set of cells with all their neighbours."""
    right = (cells & ~LAST_COLUMN) << 1 | (cells & LAST_COLUMN) >> (COLS - 1)
    left = (cells & ~FIRST_COLUMN) >> 1 | (cells & FIRST_COLUMN) << (COLS - 1)
    down = (cells << COLS | cells >> COLS * (ROWS - 1)) & ALL
    up = (cells >> COLS | cells << COLS * (ROWS - 1)) & ALL
    return cells | right | left | down | up


def count(cells):
    return bin(cells).count("1")


def ring(offset, size):
    """Returns the shortest offset on a ring of `size` cells; half the ring is positive."""
    offset %= size
    return offset - size if offset > size // 2 else offset


def moves_apart(here, target):
    """Counts the moves between two cells on an empty torus."""
    return abs(ring(target // COLS - here // COLS, ROWS)) + abs(ring(target % COLS - here % COLS, COLS))


def length_apart(here, target):
    """Computes the Euclidean distance of two cells on the torus."""
    return math.sqrt(ring(target // COLS - here // COLS, ROWS) ** 2 + ring(target % COLS - here % COLS, COLS) ** 2)


def clip(value):
    return max(-1.0, min(1.0, value))


def near(moves):
    return max(0.0, 1 - (moves - 1) / HORIZON)


class Game:
    """What the observations of one game show over time: the moves so far, and the direction of each snake.

    ``last_direction`` of the platform is the direction before the latest move, so the bodies determine the direction.
    """

    def __init__(self):
        self.moves, self.heads = 0, [None] * 6

    def position(self, observation):
        """Returns the `Position` that the next observation of the game shows."""
        bodies = [[int(row) * COLS + int(col) for row, col in observation.get(i + 2) or []] for i in range(6)]
        beans = [int(row) * COLS + int(col) for row, col in observation[1]]
        directions = []
        for i, body in enumerate(bodies):
            moved = len(body) > 1 and (self.heads[i] is None or body[1] == self.heads[i])
            directions.append(self.direction(body, moved))
        self.heads = [body[0] if body else None for body in bodies]
        self.moves += 1
        return Position(bodies, beans, directions, self.moves - 1)

    @staticmethod
    def direction(body, moved):
        """Returns the direction of a snake that has `moved`, or that the rules have placed again.

        In the second case the rules compare rows and columns without the edges of the board.
        """
        if len(body) < 2:
            return 0
        if moved:
            return next((k for k in range(4) if neighbour(body[1], k) == body[0]), 0)
        if body[0] // COLS == body[1] // COLS:
            return 3 if body[0] % COLS > body[1] % COLS else 2
        return 1 if body[0] // COLS > body[1] // COLS else 0


class Position:
    """One position of a game, with the cells that each snake can reach in up to 16 moves.

    Attributes:
        bodies: Six lists of cells, head first; empty for a snake that is not on the board.
        beans: Up to five cells, the oldest first.
        directions: Direction of each snake.
        step: Moves of the game.
    """

    def __init__(self, bodies, beans, directions, step):
        self.bodies, self.beans, self.directions, self.step = bodies, beans, directions, step
        self.scores = [len(body) - 3 if body else 0 for body in bodies]  # a death gives 3 - length
        self.owner = {cell: i for i, body in enumerate(bodies) for cell in body}
        closed = [0] * (HORIZON + 1)  # cells that cannot be entered with move t; a tail leaves with move 1
        for body in bodies:
            for k, cell in enumerate(reversed(body)):
                for t in range(min(k + 1, HORIZON + 1)):
                    closed[t] |= 1 << cell
        self.open = [ALL & ~cells for cells in closed]
        self.reach = [self.flood(1 << body[0] if body else 0, 1) for body in bodies]
        self.arrival = [[self.first(reach, bean) for bean in beans] for reach in self.reach]

    def flood(self, cells, start, taken=None):
        """Returns the cells reached after each number of moves, from `cells` reached with move `start` - 1."""
        reached = [0] * (start - 1) + [cells]
        for t in range(start, HORIZON + 1):
            added = spread(cells) & self.open[t]
            cells = added if taken is None else cells | (added & ~taken[t])
            reached.append(cells)
        return reached

    def first(self, reach, cell, limit=HORIZON):
        """Returns the number of moves until `cell` is reached; 17 for more than `limit`."""
        return next((t for t in range(1, limit + 1) if reach[t] >> cell & 1), HORIZON + 1)

    def team(self, i):
        """Returns the six snakes as snake `i` sees them: its own team, then the other one."""
        return [0, 1, 2, 3, 4, 5] if i < 3 else [3, 4, 5, 0, 1, 2]

    def lead(self, i):
        order = self.team(i)
        return sum(self.scores[k] for k in order[:3]) - sum(self.scores[k] for k in order[3:])


def common_numbers(position, i):
    head, order = position.bodies[i][0], position.team(i)
    row = [head // COLS, head % COLS]
    for direction in range(4):
        cell = neighbour(head, direction)
        snake = position.owner.get(cell)
        row.append(int(cell in position.beans) if snake is None else 2 + order.index(snake))
    for bean in position.beans + [None] * (5 - len(position.beans)):
        row += [-1, -1] if bean is None else [bean // COLS, bean % COLS]
    return row


def other_heads(position, i):
    heads = [position.bodies[k][0] if position.bodies[k] else None for k in position.team(i) if k != i]
    return [x for head in heads for x in ((-1, -1) if head is None else (head // COLS, head % COLS))]


def baseline26(position, i):
    return common_numbers(position, i) + other_heads(position, i) if position.bodies[i] else [0.0] * 26


def fork35(position, i):
    body = position.bodies[i]
    if not body:
        return [0.0] * 35
    row, head = common_numbers(position, i), body[0]
    for bean in (sorted(position.beans, key=lambda bean: length_apart(head, bean)) + [None, None])[:2]:
        if bean is None:
            row += [0.0, 0.0, 0.0]
        else:
            row += [ring(bean % COLS - head % COLS, COLS), ring(bean // COLS - head // COLS, ROWS)]
            row.append(length_apart(head, bean))
    row += [len(body) / 20] + other_heads(position, i)
    for k in position.team(i)[3:5]:
        other = position.bodies[k]
        row.append(len(other) / len(body) / (length_apart(head, other[0]) + 1) if other else 0.0)
    return row


def planes(position, i):
    row, body = [0.0] * 1600, position.bodies[i]
    if not body:
        return row

    def put(plane, cell, value):
        rows, columns = cell // COLS - body[0] // COLS + 5, cell % COLS - body[0] % COLS + 10
        row[200 * plane + rows % ROWS * COLS + columns % COLS] = value

    for bean in position.beans:
        put(0, bean, 1.0)
    for k, other in enumerate(position.bodies):
        mate = k // 3 == i // 3
        for moves, cell in enumerate(reversed(other)):
            put(1 if k == i else 2 if mate else 3, cell, min(moves + 1, 32) / 32)
        if other and k != i:
            put(4 if mate else 5, other[0], 1.0)
    row[1200:1400], row[1400:] = [position.step / 200] * 200, [clip(position.lead(i) / 20)] * 200
    return row


def move_features(position, i, cell, taken):
    """Returns the 20 numbers of a move of snake `i` to `cell`; `taken`: cells that others reach before, per move."""
    if not position.open[1] >> cell & 1:
        return [0.0, 0.0, 1.0] + [0.0] * 17
    length, beans, owner = len(position.bodies[i]), position.beans, position.owner.get(cell)
    row = [float(cell in beans), 0.0, 0.0]
    if owner is not None:
        row[1] = 0.5 if owner != i and 1 in position.arrival[owner] else 1.0
    for mates in (False, True):
        team = [k for k in range(6) if k != i and (k // 3 == i // 3) == mates]
        rivals = [k for k in team if position.reach[k][1] >> cell & 1]
        row.append(min(1.0, len(rivals) / 2))
        row.append(min(1.0, sum(1 / count(position.reach[k][1]) for k in rivals)))
        row.append(clip(sum(len(position.bodies[k]) - length for k in rivals) / 8))
    row.append(min(3, sum(position.open[2] >> neighbour(cell, k) & 1 for k in range(4))) / 3)
    free = position.flood(1 << cell, 2)
    mine = position.flood(1 << cell & ~taken[1], 2, taken)
    survival = next((t - 1 for t in range(1, HORIZON + 1) if count(free[t]) < t), HORIZON)
    size, own = count(free[survival]), count(mine[survival])
    row += [count(free[min(4, survival)]) / 25, min(1.0, size / 100), clip((size - length) / 24), survival / HORIZON]
    row += [min(1.0, own / 64), clip((own - length) / 24)]
    claims = [position.first(mine, bean, survival) for bean in beans]
    row.append(near(min([position.first(free, bean, survival) for bean in beans] + [HORIZON + 1])))
    row.append(1 - min([moves_apart(cell, bean) for bean in beans] + [15]) / 15)
    row.append(near(min(claims + [HORIZON + 1])))
    row.append(min(1.0, sum(0.5 / t for t in claims if t <= HORIZON)))
    return row


def features(position, i):
    bodies, beans = position.bodies, position.beans
    if not bodies[i]:
        return [0.0] * 122
    head, course, length = bodies[i][0], position.directions[i], len(bodies[i])
    aside = LEFT_OF[course] ^ 1
    taken = [0] * (HORIZON + 1)
    for t in range(1, HORIZON + 1):
        for k in range(6):
            if k != i:
                taken[t] |= position.reach[k][t - 1 if k // 3 == i // 3 and k > i else t]

    def turned(cell):
        row = []
        for direction in (course, aside):
            (rows, columns), size = OFFSETS[direction], ROWS if direction < 2 else COLS
            offset = (cell // COLS - head // COLS) * rows + (cell % COLS - head % COLS) * columns
            row.append(ring(offset, size) / 10)
        return row

    row = []
    for direction in (course, LEFT_OF[course], aside):
        row += move_features(position, i, neighbour(head, direction), taken)
    order = position.team(i)
    for j in sorted(range(len(beans)), key=lambda j: moves_apart(head, beans[j])):
        own = position.arrival[i][j]
        enemy = min(position.arrival[k][j] for k in order[3:])
        mate = min(position.arrival[k][j] for k in order[:3] if k != i)
        row += turned(beans[j]) + [near(own), clip((enemy - own) / 8), clip((mate - own) / 8)]
    row += [0.0] * 5 * (5 - len(beans))
    for team, places in ((order[:3], 2), (order[3:], 3)):
        heads = [k for k in team if k != i and bodies[k]]
        for k in sorted(heads, key=lambda k: moves_apart(head, bodies[k][0])):
            theirs = OFFSETS[position.directions[k]]
            row += turned(bodies[k][0]) + [clip((len(bodies[k]) - length) / 16)]
            row += [theirs[0] * OFFSETS[way][0] + theirs[1] * OFFSETS[way][1] for way in (course, aside)]
            row.append(count(position.reach[k][1]) / 3)
        row += [0.0] * 6 * (places - len(heads))
    row += [min(1.0, length / 40), clip(position.scores[i] / 20), clip(position.lead(i) / 20), position.step / 200]
    return row + [i % 3 - 1, 1.0 if course >= 2 else -1.0, sum(len(body) for body in bodies) / 200]


OBSERVATIONS = {"baseline26": baseline26, "fork35": fork35, "planes": planes, "features": features}
"""Name of an observation -> function (position, snake) -> list of numbers."""
