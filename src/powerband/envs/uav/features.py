"""What the networks see: feature maps of 11 x 11 for each UAV, and for the whole team. Names as in `rules`.

Maps of a UAV (its own belief, who it has heard):
0 remaining moves / budget; 1 its number, (i + 1) / A; 2 positions with itself in the centre: (altitude + 1) / (number
of altitudes + 1) where a UAV is, 1 where none is, 0 off the map; 3 W H; 4 W H inside its last footprint, 0 elsewhere;
5 probability of the region of interest; 6 footprints: 1 its own, 0 those it heard of, one half elsewhere.

Maps of the team (all measurements): 0 positions, (altitude + 1) / number of altitudes, 0 where none is; 1 W H;
2 probability; 3 footprints: 1 what was measured last, one half elsewhere.

All are area averages over blocks. Where UAVs share a cell, the last of them is shown. In a world with `centred_maps`
maps 3 to 6 of a UAV have itself in the middle too, and 0 off the map.
"""

import numpy as np

from powerband.envs.hashing import inlined

from .mapping import high_x, high_y, low_x, low_y
from .world import LATTICE, SCALE

UAV_MAPS, TEAM_MAPS = 7, 4
CENTRE = LATTICE // 2


@inlined
def overlap(low, high, begin, end):
    """Length that low..high and begin..end share."""
    return max(min(high, end) - max(low, begin), 0)


@inlined
def covered(s, w, n, sources, y0, y1, begin, end):
    """Length of begin..end (in 11ths of a cell) that footprints of `sources` cover in rows y0..y1 (in cells).

    Between y0 and y1 no footprint begins or ends.
    """
    at, total = begin, 0
    while at < end:
        # The footprint that reaches farthest from here; if none covers this place, the next that begins.
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
    """The first row behind `y` where a footprint of `sources` begins or ends."""
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
    """Adds `value` times the share of each block that footprints of `sources` cover, to `out` (11, 11)."""
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
    """Sets all of `out` (11, 11)."""
    for row in range(LATTICE):
        for col in range(LATTICE):
            out[row, col] = value


@inlined
def average(sums, w, out):
    """Block sums (11, 11) as averages."""
    scale = float(w.cells) * float(w.cells) * SCALE
    for row in range(LATTICE):
        for col in range(LATTICE):
            out[row, col] = float(sums[row, col]) / scale


@inlined
def write_positions(s, w, n, i, out):
    """Map 2 of UAV `i`."""
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
    """Writes the maps of UAV `i`.

    Args:
        step: Moves made in this mission.
        out: (7, 11, 11).
    """
    fill(out[0], (w.budget - step) / w.budget)
    fill(out[1], (i + 1) / w.agents)
    write_positions(s, w, n, i, out[2])
    average(s.sums[n, i, 0], w, out[3])
    average(s.seen[n, i], w, out[4])
    average(s.sums[n, i, 1], w, out[5])
    own, heard = 1 << i, np.int64(s.heard[n, i])
    fill(out[6], 0.5)
    # 1 on the own footprint, 0 on what the others saw besides: all that was seen counts -1/2, the own footprint +1.
    add_footprints(s, w, n, heard, -0.5, out[6])
    add_footprints(s, w, n, own, 1.0, out[6])
    if w.centred:
        for k in range(3, UAV_MAPS):
            centre(s, n, i, out[k])


@inlined
def centre(s, n, i, out):
    """Moves `out` (11, 11) so that UAV `i` is in the middle; 0 where that is off the map.

    Each row and each value within a row is read before it is overwritten.
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
    """Writes the maps of the team to `out` (4, 11, 11)."""
    heights = w.height.shape[0]
    fill(out[0], 0.0)
    for j in range(w.agents):
        out[0, s.position[n, j, 0], s.position[n, j, 1]] = (s.position[n, j, 2] + 1) / heights
    average(s.sums[n, w.agents, 0], w, out[1])
    average(s.sums[n, w.agents, 1], w, out[2])
    fill(out[3], 0.5)
    add_footprints(s, w, n, (1 << w.agents) - 1, 0.5, out[3])
