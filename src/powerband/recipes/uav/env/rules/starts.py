"""Starts: draws the start positions, the communication range and the hidden map of a mission.

Parameter names: `s` is a `MissionArrays`, the state of all missions; `w` is a `WorldArrays`, the constants of the
world; `n` is the index of the mission in `s`.
"""

from powerband.envs.numba.hashing import inlined, random_bits, random_integer, stream_key
from powerband.recipes.uav.settings import LATTICE, RANGES_M

RANGE_SLOT, SIDE_SLOT, SHARE_SLOT = 2048, 2049, 2050
NO_RANGE, SHORT, MIDDLE, FAR = RANGES_M


@inlined
def start(s, w, n, seed):
    """Starts mission `n`: puts its UAVs on different random cells at the highest altitude.

    It also sets the communication range of the mission, which is drawn at random if `w.drawn_range` is True. `s`: state
    of all missions; `w`: constants of the world; `seed`: seed of the random draws.
    """
    s.episode[n] += 1
    s.tick[n] += 1
    key = stream_key(seed, s.mission[n])
    for i in range(w.agents):
        cell = random_integer(random_bits(key, s.tick[n], i), LATTICE * LATTICE - i)
        # `cell` counts the free cells only. Skip the occupied ones, lowest first.
        skipped = -1
        for _ in range(i):
            lowest = LATTICE * LATTICE
            for j in range(i):
                taken = s.position[n, j, 0] * LATTICE + s.position[n, j, 1]
                if skipped < taken < lowest:
                    lowest = taken
            skipped = lowest
            if lowest <= cell:
                cell += 1
        s.position[n, i, 0] = cell // LATTICE
        s.position[n, i, 1] = cell % LATTICE
        s.position[n, i, 2] = w.height.shape[0] - 1
    s.comm_range[n] = w.comm_range
    if w.drawn_range:
        which = random_integer(random_bits(key, s.tick[n], RANGE_SLOT), 4)
        s.comm_range[n] = NO_RANGE if which == 0 else (SHORT if which == 1 else (MIDDLE if which == 2 else FAR))


@inlined
def split_cell(w, side, border, y, x):
    """Returns True if cell (y, x) is in the half plane that is `border` cells deep from one side of the map.

    `side`: 0 lowest y, 1 highest y, 2 lowest x, 3 highest x; `w`: constants of the world.
    """
    depth = y if side == 0 else (w.cells - 1 - y if side == 1 else (x if side == 2 else w.cells - 1 - x))
    return depth < border


@inlined
def draw_split(s, w, n, seed):
    """Draws the hidden map of mission `n`, a half plane that covers 30 to 60 % of it, and writes it to `s.truth`.

    `s`: state of all missions; `w`: constants of the world. `seed`: seed of the random draws.
    """
    key = stream_key(seed, s.mission[n])
    side = random_integer(random_bits(key, s.tick[n], SIDE_SLOT), 4)
    permille = 300 + random_integer(random_bits(key, s.tick[n], SHARE_SLOT), 301)
    border = (permille * w.cells + 500) // 1000
    for y in range(w.cells):
        for x in range(w.cells):
            s.truth[n, y, x] = split_cell(w, side, border, y, x)
