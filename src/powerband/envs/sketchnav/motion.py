"""Rules: moves of a disc among cells, lengths of ways, reward, and the follower of the shortest way.

Scalar functions for CPU threads and CUDA alike. `s` are the agents' arrays, `w` the world's, `n` a row. Positions are
whole numbers, so that moves, collisions and what follows from them are the same bits everywhere.
"""

import math

from powerband.envs.hashing import below, draw, inlined, stream_key

from .distance import LENGTH_M
from .episodes import CELL_UNITS, HEADINGS, UNIT_M
from .world import FORWARD, LEFT, RADIUS, RIGHT, STOP

HALF = CELL_UNITS // 2
TIME_COST, PROGRESS, SUCCESS = 0.01, 3.0, 10.0
ALONG, OFF = 0.8, 0.2
"""Weights of what remains of the way and of the distance to it."""
LOOK_AHEAD = 20
"""Substeps (half a metre) by which the follower compares headings."""
STOP_SHARE = 0.5
"""Share of the success radius at which it stops."""
TURN_COST_M = 1e-3
FAR_AWAY = 1e9


@inlined
def stands(w, first, width, high, cx, cy):
    """Whether something stands in cell (cx, cy) of the plan whose cells begin at `first`."""
    if cx < 0 or cy < 0 or cx >= width or cy >= high:
        return True
    return w.height[w.cells[first + cy * width + cx]] > 0.0


@inlined
def touches(w, first, width, high, x, y):
    """Whether a disc at (x, y) touches what stands."""
    cx, cy = x // CELL_UNITS, y // CELL_UNITS
    for gy in range(cy - 2, cy + 3):
        for gx in range(cx - 2, cx + 3):
            dx, dy = 0, 0
            if gx > cx:
                dx = gx * CELL_UNITS - x
            elif gx < cx:
                dx = x - (gx + 1) * CELL_UNITS
            if gy > cy:
                dy = gy * CELL_UNITS - y
            elif gy < cy:
                dy = y - (gy + 1) * CELL_UNITS
            if dx * dx + dy * dy < RADIUS * RADIUS and stands(w, first, width, high, gx, gy):
                return True
    return False


@inlined
def walk(w, first, width, high, x, y, heading, substeps):
    """(x, y, substeps made) of a move straight ahead that ends where the disc would touch something."""
    made = 0
    for _ in range(substeps):
        nx, ny = x + w.step[heading, 0], y + w.step[heading, 1]
        if touches(w, first, width, high, nx, ny):
            break
        x, y, made = nx, ny, made + 1
    return x, y, made


@inlined
def way_length(w, field, width, high, x, y):
    """Metres of the shortest way from (x, y) to the goal whose distances begin at `field`.

    An agent may stand where no cell's middle can be stood on, in a gap of 0.4 m, for one. There more cells are looked
    at, ring by ring.
    """
    cx, cy = x // CELL_UNITS, y // CELL_UNITS
    best, around = FAR_AWAY, 2
    while best == FAR_AWAY and around <= 2 * max(width, high):
        for gy in range(max(0, cy - around), min(high, cy + around + 1)):
            for gx in range(max(0, cx - around), min(width, cx + around + 1)):
                found = w.field[field + gy * width + gx]
                if found >= 0:
                    dx, dy = x - gx * CELL_UNITS - HALF, y - gy * CELL_UNITS - HALF
                    best = min(best, found * LENGTH_M + math.sqrt(float(dx * dx + dy * dy)) * UNIT_M)
        around += 1
    return best


@inlined
def potential_of(w, e, x, y):
    """D: 0.8 of what remains of the way behind the nearest point of it, 0.2 of the distance to that point, metres."""
    best, remains = FAR_AWAY * FAR_AWAY, 0.0
    for k in range(w.way_at[e], w.way_at[e + 1] - 1):
        ax, ay = int(w.way[k, 0]), int(w.way[k, 1])
        ux, uy = int(w.way[k + 1, 0]) - ax, int(w.way[k + 1, 1]) - ay
        share = float((x - ax) * ux + (y - ay) * uy) / float(ux * ux + uy * uy)
        share = min(max(share, 0.0), 1.0)
        dx, dy = (x - ax) - share * ux, (y - ay) - share * uy
        away = dx * dx + dy * dy
        if away < best:
            best = away
            remains = w.left[k] - share * (w.left[k] - w.left[k + 1])
    return ALONG * remains + OFF * math.sqrt(best) * UNIT_M


@inlined
def follow(s, w, n):
    """What brings the agent on its way most: STOP near the goal, else towards the heading that gains most."""
    if s.distance[n] <= STOP_SHARE * w.radius_m:
        return STOP
    e = s.episode[n]
    plan = w.plan[e]
    first, field, high, width = w.cells_at[plan], w.field_at[w.goal[e]], w.size[plan, 0], w.size[plan, 1]
    best, chosen = -FAR_AWAY, 0
    for turn in range(-HEADINGS // 2, HEADINGS // 2):
        heading = (s.heading[n] + turn) % HEADINGS
        x, y, _ = walk(w, first, width, high, s.at[n, 0], s.at[n, 1], heading, max(LOOK_AHEAD, w.substeps))
        gain = -way_length(w, field, width, high, x, y) - TURN_COST_M * abs(turn)
        if gain > best:
            best, chosen = gain, turn
    if chosen == 0:
        return FORWARD
    return LEFT if chosen < 0 else RIGHT


@inlined
def begin_row(s, w, n, seed, stride):
    """The next episode of row `n`; `stride` rows take them in turns."""
    count = w.order.shape[0]
    if w.in_turns:
        e = w.order[(s.row[n] + s.tick[n] * stride) % count]
    else:
        e = w.order[below(draw(stream_key(seed, s.row[n]), s.tick[n], 0), count)]
    s.tick[n] += 1
    s.episode[n] = e
    s.at[n, 0], s.at[n, 1], s.heading[n] = w.start[e, 0], w.start[e, 1], w.start[e, 2]
    s.made[n], s.moved[n], s.hit[n] = 0, 0, 0
    s.potential[n] = potential_of(w, e, s.at[n, 0], s.at[n, 1])
    plan = w.plan[e]
    s.distance[n] = way_length(w, w.field_at[w.goal[e]], w.size[plan, 1], w.size[plan, 0], s.at[n, 0], s.at[n, 1])
    if w.bonus > 0.0:
        s.expert[n] = follow(s, w, n)


@inlined
def step_row(s, w, n, action):
    """One action: the move, what it is worth, and whether the episode is over."""
    e = s.episode[n]
    plan = w.plan[e]
    first, high, width = w.cells_at[plan], w.size[plan, 0], w.size[plan, 1]
    s.made[n] += 1
    s.hit[n] = 0
    if action == FORWARD:
        x, y, made = walk(w, first, width, high, s.at[n, 0], s.at[n, 1], s.heading[n], w.substeps)
        s.at[n, 0], s.at[n, 1] = x, y
        s.moved[n] += made
        s.hit[n] = made < w.substeps
    elif action == LEFT:
        s.heading[n] = (s.heading[n] + HEADINGS - 1) % HEADINGS
    elif action == RIGHT:
        s.heading[n] = (s.heading[n] + 1) % HEADINGS
    before = s.potential[n]
    s.potential[n] = potential_of(w, e, s.at[n, 0], s.at[n, 1])
    s.distance[n] = way_length(w, w.field_at[w.goal[e]], width, high, s.at[n, 0], s.at[n, 1])
    reward = PROGRESS * (before - s.potential[n]) - TIME_COST
    if w.bonus > 0.0 and action == s.expert[n]:
        reward += w.bonus
    s.success[n] = action == STOP and s.distance[n] <= w.radius_m
    if s.success[n]:
        reward += SUCCESS
    s.reward[n] = reward
    s.ended[n] = 1 if action == STOP else (2 if s.made[n] >= w.max_steps else 0)
    if w.bonus > 0.0 and s.ended[n] == 0:
        s.expert[n] = follow(s, w, n)
