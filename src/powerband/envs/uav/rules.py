"""The rules of one mission, in scalar functions that numba compiles for CPU threads and for CUDA alike.

`s` is always a `MissionArrays`, `w` a `WorldArrays`, `n` the index of the mission in `s`, `i` and `j` are UAVs.

Randomness is a function of (seed, mission number over all ranks, tick, purpose) and nothing else. Purposes are slots:
0.. the starts of the UAVs, 1024.. messages that are lost, 2048.. the mission's range and hidden field; which cells are
measured wrongly comes from a stream of its own.

Source: Westheider, Rueckin and Popovic 2023 (arXiv 2303.01150), sections III and IV.
"""

import numpy as np

from powerband.envs.hashing import below, draw, inlined, stream_key

from .world import (
    BACK_X,
    BACK_Y,
    DOWN,
    LATTICE,
    MAX_AGENTS,
    NUM_ACTIONS,
    ON_X,
    ON_Y,
    RANGES_M,
    SPACING_M,
    UP,
)

LOST_SLOT, RANGE_SLOT, SIDE_SLOT, SHARE_SLOT = 1024, 2048, 2049, 2050
NO_RANGE, SHORT, MIDDLE, FAR = RANGES_M


# -- moves ------------------------------------------------------------------------------------------------------------


@inlined
def step_x(action):
    """Lattice steps along x."""
    return np.int64(action == ON_X) - np.int64(action == BACK_X)


@inlined
def step_y(action):
    """Lattice steps along y."""
    return np.int64(action == ON_Y) - np.int64(action == BACK_Y)


@inlined
def step_z(action):
    """Steps of altitude."""
    return np.int64(action == UP) - np.int64(action == DOWN)


@inlined
def inside(value, limit):
    """`value` brought into 0..limit - 1."""
    return min(max(value, 0), limit - 1)


@inlined
def next_cell(s, n, i, action):
    """Number of the x-y cell (11 x + y) that UAV `i` is in after `action`; at the border it stays."""
    x = inside(s.position[n, i, 0] + step_x(action), LATTICE)
    return x * LATTICE + inside(s.position[n, i, 1] + step_y(action), LATTICE)


@inlined
def move(s, w, n, i, action):
    """Moves UAV `i`; where the action leads out of the lattice it stays."""
    s.position[n, i, 0] = inside(s.position[n, i, 0] + step_x(action), LATTICE)
    s.position[n, i, 1] = inside(s.position[n, i, 1] + step_y(action), LATTICE)
    s.position[n, i, 2] = inside(s.position[n, i, 2] + step_z(action), w.height.shape[0])


@inlined
def move_team(s, w, n, action):
    """Moves all UAVs by `action` (N, A); what is drawn from here on is drawn anew."""
    for i in range(w.agents):
        move(s, w, n, i, action[n, i])
    s.tick[n] += 1


@inlined
def allowed_moves(s, w, n, i):
    """The moves that stay in the lattice and within the altitudes, as bits."""
    x, y, z = s.position[n, i, 0], s.position[n, i, 1], s.position[n, i, 2]
    allowed = 0
    allowed |= np.int64(z + 1 < w.height.shape[0]) << UP
    allowed |= np.int64(z > 0) << DOWN
    allowed |= np.int64(x > 0) << BACK_X
    allowed |= np.int64(x + 1 < LATTICE) << ON_X
    allowed |= np.int64(y > 0) << BACK_Y
    allowed |= np.int64(y + 1 < LATTICE) << ON_Y
    return allowed


@inlined
def keep_apart(s, n, i, allowed, chosen):
    """Takes out of `allowed` what leads to a cell that an earlier UAV has `chosen`, but never the last move left.

    Args:
        chosen: (N, A): actions of the UAVs before `i` in this step.
    """
    for j in range(i):
        taken = next_cell(s, n, j, chosen[n, j])
        for action in range(NUM_ACTIONS):
            bit = 1 << action
            if allowed & bit and allowed != bit and next_cell(s, n, i, action) == taken:
                allowed ^= bit
    return allowed


@inlined
def pick(s, w, n, i, probability, noise, explore, chosen, mask):
    """Chooses for UAV `i`, after those before it, and writes `chosen[n, i]` and `mask[n, i]`.

    Args:
        probability: (N, A, 6), of all moves, not masked.
        noise: (N, A) in [0, 1).
        explore: Draws by `probability` among what is allowed, or takes the likeliest.
    """
    allowed = keep_apart(s, n, i, allowed_moves(s, w, n, i), chosen)
    total = 0.0
    for action in range(NUM_ACTIONS):
        mask[n, i, action] = allowed >> action & 1
        if allowed >> action & 1:
            total += probability[n, i, action]
    rest, best, action_taken = noise[n, i] * total, -1.0, -1
    for action in range(NUM_ACTIONS):
        if allowed >> action & 1:
            p = probability[n, i, action]
            if explore:
                if rest >= 0.0:
                    action_taken = action
                rest -= p
            elif p > best:
                best, action_taken = p, action
    chosen[n, i] = action_taken


# -- messages ---------------------------------------------------------------------------------------------------------


@inlined
def hears(s, w, n, i, j, key):
    """Whether UAV `i` gets the message of UAV `j` at this tick."""
    dx = SPACING_M * (s.position[n, i, 0] - s.position[n, j, 0])
    dy = SPACING_M * (s.position[n, i, 1] - s.position[n, j, 1])
    dz = w.height[s.position[n, i, 2]] - w.height[s.position[n, j, 2]]
    if dx * dx + dy * dy + dz * dz > s.comm_range[n] * s.comm_range[n]:
        return False
    lost = draw(key, s.tick[n], LOST_SLOT + i * MAX_AGENTS + j) >> np.uint64(32)
    return np.int64(lost) >= w.failure


@inlined
def exchange(s, w, n, seed):
    """Writes `heard`: whose position and measurement each UAV gets, its own always."""
    key = stream_key(seed, s.mission[n])
    for i in range(w.agents):
        heard = 0
        for j in range(w.agents):
            if i == j or hears(s, w, n, i, j, key):
                heard |= 1 << j
        s.heard[n, i] = heard


# -- starts -----------------------------------------------------------------------------------------------------------


@inlined
def start(s, w, n, seed):
    """A new mission: the UAVs on random cells, each its own, at the highest altitude, and the mission's range."""
    s.episode[n] += 1
    s.tick[n] += 1
    key = stream_key(seed, s.mission[n])
    for i in range(w.agents):
        cell = below(draw(key, s.tick[n], i), LATTICE * LATTICE - i)
        # The number of a cell among those that are free: count past the taken ones, lowest first.
        passed = -1
        for _ in range(i):
            lowest = LATTICE * LATTICE
            for j in range(i):
                taken = s.position[n, j, 0] * LATTICE + s.position[n, j, 1]
                if passed < taken < lowest:
                    lowest = taken
            passed = lowest
            if lowest <= cell:
                cell += 1
        s.position[n, i, 0] = cell // LATTICE
        s.position[n, i, 1] = cell % LATTICE
        s.position[n, i, 2] = w.height.shape[0] - 1
    s.comm_range[n] = w.comm_range
    if w.drawn_range:
        which = below(draw(key, s.tick[n], RANGE_SLOT), 4)
        s.comm_range[n] = NO_RANGE if which == 0 else (SHORT if which == 1 else (MIDDLE if which == 2 else FAR))


@inlined
def split_cell(w, side, border, y, x):
    """Whether cell (y, x) belongs to a half plane `border` cells deep that lies on `side` 0..3 of the map."""
    depth = y if side == 0 else (w.cells - 1 - y if side == 1 else (x if side == 2 else w.cells - 1 - x))
    return depth < border


@inlined
def draw_split(s, w, n, seed):
    """Writes a half plane from one of four sides, 30 to 60 % of the map, into `truth`."""
    key = stream_key(seed, s.mission[n])
    side = below(draw(key, s.tick[n], SIDE_SLOT), 4)
    permille = 300 + below(draw(key, s.tick[n], SHARE_SLOT), 301)
    border = (permille * w.cells + 500) // 1000
    for y in range(w.cells):
        for x in range(w.cells):
            s.truth[n, y, x] = split_cell(w, side, border, y, x)
