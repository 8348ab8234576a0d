"""Motion: moves agents (discs) among cells, and computes path lengths, rewards and the shortest-path follower.

The scalar functions serve CPU threads and CUDA. `s` are the arrays of all agents (`AgentArrays`), `w` the arrays of the
world (`WorldArrays`), `n` is the index of an agent and `e` the number of an episode. `first` is the index of the first
cell of a plan in `w.cells`; the plan has `width` x `high` cells. x and y are positions in units of 1/64 mm.
Positions are integers, so that moves and collisions are the same bits on every device.
"""

import math

from powerband.envs.numba.hashing import inlined, random_bits, random_integer, stream_key
from powerband.recipes.sketchnav.env.world import FORWARD, LEFT, RADIUS, RIGHT, STOP
from powerband.recipes.sketchnav.plans.distance import DISTANCE_UNIT_M
from powerband.recipes.sketchnav.plans.episodes.episodes import CELL_UNITS, COORDINATE_UNIT_M, HEADINGS

HALF = CELL_UNITS // 2
TIME_COST, PROGRESS, SUCCESS = 0.01, 3.0, 10.0
"""Coefficients of the reward."""
ALONG, OFF = 0.8, 0.2
"""Weights, in the potential, of the remaining path and of the distance to the path."""
LOOK_AHEAD = 20
"""Substeps (half a metre) over which the follower compares headings."""
STOP_SHARE = 0.5
"""Share of the success radius within which the follower stops."""
TURN_COST_M = 1e-3
"""Cost of a turn of 10 degrees in metres; it decides between headings of equal gain."""
KEEP_HEADING_M = 0.01
"""The follower keeps its heading unless a turn gains more than this many metres of path over half a metre. A smaller
threshold lets the errors of path lengths (up to 2.7 %) turn it left and right on open ground: on 300 episodes it then
takes 6.8 % more actions, 46 instead of 42 % of them turns."""
FAR_AWAY = 1e9


@inlined
def is_occupied(w, first, width, high, cx, cy):
    """Returns True if a cell is occupied or outside of the plan.

    Args:
        w: Plans, episodes and lookup tables (`WorldArrays`).
        first: Index in ``w.cells`` of the first cell of the plan.
        width, high: Cells of the plan along x and y.
        cx, cy: Column and row of the cell.
    """
    if cx < 0 or cy < 0 or cx >= width or cy >= high:
        return True
    return w.height[w.cells[first + cy * width + cx]] > 0.0


@inlined
def collides(w, first, width, high, x, y):
    """Returns True if an agent (a disc of radius 0.18 m) at (x, y) touches an occupied cell or the outside of the plan.

    Args:
        w: Plans, episodes and lookup tables (`WorldArrays`).
        first: Index in ``w.cells`` of the first cell of the plan.
        width, high: Cells of the plan along x and y.
        x, y: Position in 1/64 mm.
    """
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
            if dx * dx + dy * dy < RADIUS * RADIUS and is_occupied(w, first, width, high, gx, gy):
                return True
    return False


@inlined
def move_forward(w, first, width, high, x, y, heading, substeps):
    """Moves an agent straight ahead in substeps of 25 mm, and stops before the first substep that would collide.

    Args:
        w: Plans, episodes and lookup tables (`WorldArrays`).
        first: Index in ``w.cells`` of the first cell of the plan.
        width, high: Cells of the plan along x and y.
        x, y: Position in 1/64 mm.
        heading: Heading in tens of degrees.
        substeps: Largest number of substeps.

    Returns:
        (x, y, completed substeps), with x and y in 1/64 mm.
    """
    made = 0
    for _ in range(substeps):
        nx, ny = x + w.step[heading, 0], y + w.step[heading, 1]
        if collides(w, first, width, high, nx, ny):
            break
        x, y, made = nx, ny, made + 1
    return x, y, made


@inlined
def path_length(w, field, width, high, x, y):
    """Returns the length in metres (float) of the shortest path from (x, y) to a goal.

    The path goes straight to the centre of a nearby navigable cell, then from cell to cell. If no cell nearby is
    navigable, for example in a gap of 0.4 m, the search for the first cell extends ring by ring.

    Args:
        w: Plans, episodes and lookup tables (`WorldArrays`).
        field: Index in ``w.field`` of the first cell of the goal's distance field, the path lengths of all cells.
        width, high: Cells of the plan along x and y.
        x, y: Position in 1/64 mm.
    """
    cx, cy = x // CELL_UNITS, y // CELL_UNITS
    best, around = FAR_AWAY, 2
    while best == FAR_AWAY and around <= 2 * max(width, high):
        for gy in range(max(0, cy - around), min(high, cy + around + 1)):
            for gx in range(max(0, cx - around), min(width, cx + around + 1)):
                distance = w.field[field + gy * width + gx]
                if distance >= 0:
                    dx, dy = x - gx * CELL_UNITS - HALF, y - gy * CELL_UNITS - HALF
                    best = min(
                        best, distance * DISTANCE_UNIT_M + math.sqrt(float(dx * dx + dy * dy)) * COORDINATE_UNIT_M
                    )
        around += 1
    return best


@inlined
def potential_m(w, e, x, y):
    """Returns the potential at (x, y) in metres; the reward of an action contains a multiple of its decrease.

    The potential is 0.8 of the path that remains after the nearest point of the shortest path, plus 0.2 of the distance
    to this point.

    Args:
        w: Plans, episodes and lookup tables (`WorldArrays`).
        e: Number of the episode.
        x, y: Position in 1/64 mm.
    """
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
    return ALONG * remains + OFF * math.sqrt(best) * COORDINATE_UNIT_M


@inlined
def shortest_path_action(s, w, n):
    """Returns the action with which agent `n` follows the shortest path to its goal: STOP, FORWARD, LEFT or RIGHT.

    The agent turns towards the heading that shortens the path most, moves ahead if no turn gains more than
    `KEEP_HEADING_M`, and stops near the goal.

    Args:
        s: State of all agents (`AgentArrays`).
        w: Plans, episodes and lookup tables (`WorldArrays`).
        n: Index of the agent.
    """
    if s.distance[n] <= STOP_SHARE * w.radius_m:
        return STOP
    e = s.episode[n]
    plan = w.plan[e]
    first, field, high, width = w.cells_at[plan], w.field_at[w.goal[e]], w.size[plan, 0], w.size[plan, 1]
    best, chosen, ahead = -FAR_AWAY, 0, -FAR_AWAY
    for turn in range(-HEADINGS // 2, HEADINGS // 2):
        heading = (s.heading[n] + turn) % HEADINGS
        x, y, _ = move_forward(w, first, width, high, s.at[n, 0], s.at[n, 1], heading, max(LOOK_AHEAD, w.substeps))
        gain = -path_length(w, field, width, high, x, y) - TURN_COST_M * abs(turn)
        if turn == 0:
            ahead = gain
        if gain > best:
            best, chosen = gain, turn
    if best - ahead <= KEEP_HEADING_M:
        return FORWARD
    return LEFT if chosen < 0 else RIGHT


@inlined
def begin_row(s, w, n, seed, stride):
    """Begins the next episode of agent `n`.

    Args:
        s: State of all agents (`AgentArrays`).
        w: Plans, episodes and lookup tables (`WorldArrays`).
        n: Index of the agent.
        seed: Seed of the random choice of episodes; not used if agents play the episodes in order.
        stride: Number of episodes by which an agent advances, if agents play the episodes in order.
    """
    count = w.order.shape[0]
    if w.sequential:
        e = w.order[(s.row[n] + s.tick[n] * stride) % count]
    else:
        e = w.order[random_integer(random_bits(stream_key(seed, s.row[n]), s.tick[n], 0), count)]
    s.tick[n] += 1
    s.episode[n] = e
    s.at[n, 0], s.at[n, 1], s.heading[n] = w.start[e, 0], w.start[e, 1], w.start[e, 2]
    s.made[n], s.moved[n], s.hit[n] = 0, 0, 0
    s.potential[n] = potential_m(w, e, s.at[n, 0], s.at[n, 1])
    plan = w.plan[e]
    s.distance[n] = path_length(w, w.field_at[w.goal[e]], w.size[plan, 1], w.size[plan, 0], s.at[n, 0], s.at[n, 1])
    if w.bonus > 0.0:
        s.expert[n] = shortest_path_action(s, w, n)


@inlined
def step_row(s, w, n, action):
    """Executes one action of agent `n`: the move, the reward and the end of the episode.

    Args:
        s: State of all agents (`AgentArrays`).
        w: Plans, episodes and lookup tables (`WorldArrays`).
        n: Index of the agent.
        action: 0 STOP, 1 FORWARD, 2 LEFT, 3 RIGHT.
    """
    e = s.episode[n]
    plan = w.plan[e]
    first, high, width = w.cells_at[plan], w.size[plan, 0], w.size[plan, 1]
    s.made[n] += 1
    s.hit[n] = 0
    if action == FORWARD:
        x, y, made = move_forward(w, first, width, high, s.at[n, 0], s.at[n, 1], s.heading[n], w.substeps)
        s.at[n, 0], s.at[n, 1] = x, y
        s.moved[n] += made
        s.hit[n] = made < w.substeps
    elif action == LEFT:
        s.heading[n] = (s.heading[n] + HEADINGS - 1) % HEADINGS
    elif action == RIGHT:
        s.heading[n] = (s.heading[n] + 1) % HEADINGS
    before = s.potential[n]
    s.potential[n] = potential_m(w, e, s.at[n, 0], s.at[n, 1])
    s.distance[n] = path_length(w, w.field_at[w.goal[e]], width, high, s.at[n, 0], s.at[n, 1])
    reward = PROGRESS * (before - s.potential[n]) - TIME_COST
    if w.bonus > 0.0 and action == s.expert[n]:
        reward += w.bonus
    s.success[n] = action == STOP and s.distance[n] <= w.radius_m
    if s.success[n]:
        reward += SUCCESS
    s.reward[n] = reward
    s.ended[n] = 1 if action == STOP else (2 if s.made[n] >= w.max_steps else 0)
    if w.bonus > 0.0 and s.ended[n] == 0:
        s.expert[n] = shortest_path_action(s, w, n)
