"""Features: writes maps of 11 x 11 for each UAV and for the team, which are the inputs of the networks.

Parameter names: `s` is a `MissionArrays`, the state of all missions; `w` is a `WorldArrays`, the constants of the
world; `n` is the index of the mission in `s`; `i` and `j` are UAVs; `sources` is a set of UAVs,
bit j for UAV j; `out` is an output.

Maps of a UAV, from its own belief and the messages that it received:

0. remaining moves / budget
1. number of the UAV, (i + 1) / A
2. positions, with the UAV in the centre: (altitude index + 1) / (number of altitudes + 1) at a UAV, 1 at a free node, 0
   outside the lattice
3. W H, the entropy H of the belief, weighted with W, see `belief_tables`
4. W H inside the latest footprint of the UAV, 0 elsewhere
5. probability of the region of interest
6. footprints: 1 inside its own footprint, 0 inside the footprints that it received, one half elsewhere

Maps of the team, from all measurements:

0. positions: (altitude index + 1) / number of altitudes at a UAV, 0 elsewhere
1. W H
2. probability of the region of interest
3. footprints: 1 inside the latest footprints of all UAVs, one half elsewhere

All maps are area averages over blocks. If UAVs share a cell, the map shows the last one. With `World.centred_maps`,
maps 3 to 6 of a UAV also have the UAV in the centre, and are 0 outside the lattice.
"""

import numpy as np

from powerband.envs.numba.hashing import inlined
from powerband.recipes.uav.env.rules.footprints import high_x, high_y, low_x, low_y
from powerband.recipes.uav.env.world import FIXED_POINT_SCALE
from powerband.recipes.uav.settings import LATTICE

UAV_MAPS, TEAM_MAPS = 7, 4
"""Number of maps per UAV and per team."""
CENTRE = LATTICE // 2


@inlined
def overlap(low, high, begin, end):
    """Returns the length of the overlap of the intervals low..high and begin..end; 0 if they do not overlap."""
    return max(min(high, end) - max(low, begin), 0)


@inlined
def covered(s, w, n, sources, y0, y1, begin, end):
    """Returns the length of the part of columns begin..end that footprints cover in all rows from y0 to y1.

    A footprint is the rectangle of cells that a camera sees. `begin`, `end` and the result are in 11ths of a cell, `y0`
    and `y1` in cells. The caller ensures that no footprint begins or ends between rows y0 and y1. `s`: state of all
    missions; `w`: constants of the world; `n`: index of the mission; `sources`: the set of UAVs whose footprints count,
    bit j for UAV j.
    """
    at, total = begin, 0
    while at < end:
        # Find the footprint that reaches farthest from `at`. If none covers `at`, find where the next one begins.
        reach, following = at, end
        for j in range(w.agents):
            if sources >> j & 1 and low_y(s, n, j) <= y0 and y1 <= high_y(s, n, j):
                left, right = LATTICE * low_x(s, n, j), LATTICE * high_x(s, n, j)
                if left <= at:
                    reach = max(reach, right)
                elif left < following:
                    following = left
        if reach > at:
            reach = min(reach, end)
            total += reach - at
            at = reach
        else:
            at = following
    return total


@inlined
def next_edge(s, w, n, sources, y):
    """Returns the first row after `y` at which a footprint of `sources` begins or ends, at most the end of the map.

    A footprint is the rectangle of cells that a camera sees. `s`: state of all missions; `w`: constants of the world;
    `n`: index of the mission; `sources`: set of UAVs, bit j for UAV j.
    """
    edge = np.int64(w.cells)
    for j in range(w.agents):
        if sources >> j & 1:
            low, high = low_y(s, n, j), high_y(s, n, j)
            if low > y:
                edge = min(edge, low)
            if high > y:
                edge = min(edge, high)
    return edge


@inlined
def add_footprints(s, w, n, sources, value, out):
    """Adds to each entry of `out` (11, 11) `value` times the fraction of a block of cells that footprints cover.

    A block is 1/11 of the map along each side, and a footprint is the rectangle of cells that a camera sees. `s`: state
    of all missions; `w`: constants of the world; `n`: index of the mission; `sources`: the set of UAVs whose footprints
    count, bit j for UAV j.
    """
    if sources == 0:
        return
    block = np.int64(w.cells)
    area = float(block * block)
    y = np.int64(0)
    while y < w.cells:
        edge = next_edge(s, w, n, sources, y)
        for col in range(LATTICE):
            length = covered(s, w, n, sources, y, edge, block * col, block * (col + 1))
            if length:
                for row in range(LATTICE * y // block, min((LATTICE * edge - 1) // block + 1, LATTICE)):
                    height = overlap(LATTICE * y, LATTICE * edge, block * row, block * (row + 1))
                    out[row, col] += value * (length * height) / area
        y = edge


@inlined
def fill(out, value):
    """Sets all values of `out` (11, 11) to `value`."""
    for row in range(LATTICE):
        for col in range(LATTICE):
            out[row, col] = value


@inlined
def average(sums, w, out):
    """Converts fixed-point sums over the 11 x 11 blocks of a map to averages per cell.

    `sums`: (11, 11) int64, in the units of `Missions.sums`; `out`: (11, 11), receives the averages; `w`: constants of
    the world.
    """
    scale = float(w.cells) * float(w.cells) * FIXED_POINT_SCALE
    for row in range(LATTICE):
        for col in range(LATTICE):
            out[row, col] = float(sums[row, col]) / scale


@inlined
def write_positions(s, w, n, i, out):
    """Writes the map of UAV positions, with UAV `i` of mission `n` in the centre, to `out` (11, 11).

    A node with a UAV has the value (altitude index + 1) / (number of altitudes + 1), a free node 1, and the outside of
    the lattice 0. The map shows UAV i and the UAVs whose messages it received. `s`: state of all missions; `w`:
    constants of the world.
    """
    x, y, heights = s.position[n, i, 0], s.position[n, i, 1], w.height.shape[0]
    for row in range(LATTICE):
        for col in range(LATTICE):
            on_map = 0 <= x + row - CENTRE < LATTICE and 0 <= y + col - CENTRE < LATTICE
            out[row, col] = 1.0 if on_map else 0.0
    for j in range(w.agents):
        if s.heard[n, i] >> j & 1 and j != i:
            row, col = s.position[n, j, 0] - x + CENTRE, s.position[n, j, 1] - y + CENTRE
            if 0 <= row < LATTICE and 0 <= col < LATTICE:
                out[row, col] = (s.position[n, j, 2] + 1) / (heights + 1)
    out[CENTRE, CENTRE] = (s.position[n, i, 2] + 1) / (heights + 1)


@inlined
def write_uav(s, w, n, i, step, out):
    """Writes the seven maps that UAV `i` of mission `n` observes.

    They show the remaining moves, the number of the UAV, positions, weighted entropy, weighted entropy inside its
    footprint, the probability of the region of interest, and footprints. The module docstring defines them.

    Args:
        s: State of all missions.
        w: Constants of the world.
        n: Index of the mission.
        i: Index of the UAV.
        step: Moves so far in this mission.
        out: (7, 11, 11) float32, written: the maps.
    """
    fill(out[0], (w.budget - step) / w.budget)
    fill(out[1], (i + 1) / w.agents)
    write_positions(s, w, n, i, out[2])
    average(s.sums[n, i, 0], w, out[3])
    average(s.seen[n, i], w, out[4])
    average(s.sums[n, i, 1], w, out[5])
    own, heard = 1 << i, np.int64(s.heard[n, i])
    fill(out[6], 0.5)
    # All received footprints add -1/2 to the base of 1/2, and the UAV's own footprint adds 1 to that.
    add_footprints(s, w, n, heard, -0.5, out[6])
    add_footprints(s, w, n, own, 1.0, out[6])
    if w.centred:
        for k in range(3, UAV_MAPS):
            centre(s, n, i, out[k])


@inlined
def centre(s, n, i, out):
    """Shifts the map `out` (11, 11) so that UAV `i` of mission `n` is in the centre.

    Nodes outside the lattice become 0. The shift is in place: the loops run in the direction in which every value is
    read before it is overwritten. `s`: state of all missions.
    """
    down, right = s.position[n, i, 0] - CENTRE, s.position[n, i, 1] - CENTRE
    for a in range(LATTICE):
        row = a if down >= 0 else LATTICE - 1 - a
        for b in range(LATTICE):
            col = b if right >= 0 else LATTICE - 1 - b
            if 0 <= row + down < LATTICE and 0 <= col + right < LATTICE:
                out[row, col] = out[row + down, col + right]
            else:
                out[row, col] = 0.0


@inlined
def write_team(s, w, n, out):
    """Writes the four maps of the team of mission `n` to `out` (4, 11, 11), from all measurements.

    They show positions, weighted entropy, the probability of the region of interest, and footprints. The module
    docstring defines them. `s`: state of all missions; `w`: constants of the world.
    """
    heights = w.height.shape[0]
    fill(out[0], 0.0)
    for j in range(w.agents):
        out[0, s.position[n, j, 0], s.position[n, j, 1]] = (s.position[n, j, 2] + 1) / heights
    average(s.sums[n, w.agents, 0], w, out[1])
    average(s.sums[n, w.agents, 1], w, out[2])
    fill(out[3], 0.5)
    add_footprints(s, w, n, (1 << w.agents) - 1, 0.5, out[3])
