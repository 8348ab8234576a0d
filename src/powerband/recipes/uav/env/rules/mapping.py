"""Mapping: measures cells with a noisy sensor, and fuses the measurements into the beliefs of a mission.

To fuse a measurement means to add it to the log odds of a belief. Parameter names: `s` is a `MissionArrays`, the state
of all missions; `w` is a `WorldArrays`, the constants of the world; `n` is the index of the mission in `s`; `i` and `j`
are UAVs; `sources` is a set of UAVs, bit j for UAV j; `k` is a map: the belief of UAV k, or, if k is the number of
UAVs, the common map of all measurements.

Only cells inside footprints are visited. A row of a map is cut into segments at the borders of footprints and blocks.
A block is 1/11 of the map along each side. Within a segment the set of footprints and the block are constant, so the
change of the sums over blocks is added once per segment. The sums are integers and independent of the order. Threads
may therefore add at the same time, and the result equals a sum over the complete map.
"""

import numpy as np

from powerband.envs.numba.hashing import inlined, splitmix64, stream_key
from powerband.recipes.uav.env.rules.footprints import high_x, high_y, low_x, low_y, update_footprints
from powerband.recipes.uav.env.world import FIXED_POINT_SCALE, MAX_BELIEF, MAX_UNSURE_BELIEF
from powerband.recipes.uav.settings import LATTICE, MAX_AGENTS, MAX_CELLS

FLIPS = 0x5851F42D4C957F2D  # separates the stream of the sensor noise from the other draws
LANES = 4  # draws of 16 bits per hash


# -- measuring --------------------------------------------------------------------------------------------------------


@inlined
def measure_row(s, w, n, i, row, seed):
    """Measures row `row` of the footprint of UAV `i` of mission `n` with noise, and writes the result to `s.measured`.

    The footprint is the rectangle of cells that the camera sees. The result for a cell is the change of its log odds:
    positive for the reading 1, negative for 0. `s`: state of all missions; `w`: constants of the world; `seed`: seed of
    the noise.
    """
    y, x0, x1 = low_y(s, n, i) + row, low_x(s, n, i), high_x(s, n, i)
    if y >= high_y(s, n, i):
        return
    z = s.position[n, i, 2]
    step, threshold = np.int64(w.step[z]), np.uint64(w.threshold[z])
    key = splitmix64(stream_key(seed, s.mission[n]) ^ np.uint64(FLIPS))
    base = ((s.tick[n] * MAX_AGENTS + i) * MAX_CELLS + y) * (MAX_CELLS // LANES) + 1
    for group in range(x0 // LANES, (x1 + LANES - 1) // LANES):
        bits = splitmix64(key + np.uint64(base + group) * np.uint64(0x9E3779B97F4A7C15))
        for x in range(max(LANES * group, x0), min(LANES * group + LANES, x1)):
            wrong = np.int64((bits >> np.uint64(16 * (x & 3))) & np.uint64(0xFFFF) < threshold)
            s.measured[n, i, np.uint32(row), np.uint32(x - x0)] = (
                2 * (np.int64(s.truth[n, np.uint32(y), np.uint32(x)]) ^ wrong) - 1
            ) * step


# -- fusing -----------------------------------------------------------------------------------------------------------


@inlined
def clamp_belief(belief):
    """Clamps a belief, log odds in units of 1 / 2048, so that its probability is from 1e-4 to 1 - 1e-4."""
    return min(max(belief, -MAX_BELIEF), MAX_BELIEF)


@inlined
def lowest_bit(bits):
    """Returns the index of the lowest bit that is set in `bits`, which must not be 0."""
    index = 0
    while not bits >> index & 1:
        index += 1
    return index


@inlined
def twice_weight(belief):
    """Returns twice the weight W of a cell in sums of entropy, as an integer.

    The result is 2 if `belief` puts the cell inside the region of interest, 0 if outside, and 1 if undecided; see
    `belief_tables`. A belief is log odds in units of 1 / 2048.
    """
    return 1 + np.int64(belief > MAX_UNSURE_BELIEF) - np.int64(belief < -MAX_UNSURE_BELIEF)


@inlined
def fused(s, w, n, sources, y, x, belief):
    """Adds the measurements of cell (y, x) by the UAVs in `sources` to `belief`, and returns the new belief.

    A belief is the log odds of the cell in units of 1 / 2048. The footprints of all these UAVs contain the cell. `s`:
    state of all missions; `w`: constants of the world; `n`: index of the mission; `sources`: set of UAVs, bit j for UAV
    j.
    """
    for j in range(w.agents):
        if sources >> j & 1:
            row, col = y - low_y(s, n, j), x - low_x(s, n, j)
            belief = clamp_belief(belief + np.int64(s.measured[n, j, np.uint32(row), np.uint32(col)]))
    return belief


@inlined
def fuse_cells(s, w, n, k, sources, y, x0, x1):
    """Adds measurements to the beliefs in cells x0..x1-1 of row `y` of map `k` of mission `n`.

    Args:
        s: State of all missions.
        w: Constants of the world.
        n: Index of the mission.
        k: Map: the belief of UAV k, or, if k is the number of UAVs, the common map.
        sources: UAVs whose measurements are added, bit j for UAV j; their footprints contain all these cells.
        y: Row of the map.
        x0, x1: First column, and the column after the last one.

    Returns:
        Three integers. The first packs the changes of two sums over the cells: that of W H in the upper 32 bits, that
        of p in the lower 32 bits. The second packs both sums after the change. The third is the sum of 2 W H with W
        after and H before the change; it is valid for the common map only. `WorldArrays.terms` explains W, H, p and
        their scale.
    """
    change, total, weighed = np.int64(0), np.int64(0), np.int64(0)
    common, first, rest = k == w.agents, lowest_bit(sources), sources & (sources - 1)
    row, left = s.belief[n, k, y], low_x(s, n, first)
    seen = s.measured[n, first, y - low_y(s, n, first)]
    if not rest and not common:  # three times as fast as the loop below, and applies to most cells
        for x in range(x0, x1):
            before = np.int64(row[np.uint32(x)])
            after = clamp_belief(before + np.int64(seen[np.uint32(x - left)]))
            row[np.uint32(x)] = after
            new = w.terms[np.uint32(after + MAX_BELIEF)]
            change += new - w.terms[np.uint32(before + MAX_BELIEF)]
            total += new
        return change, total, weighed
    for x in range(x0, x1):
        before = np.int64(row[np.uint32(x)])
        after = clamp_belief(before + np.int64(seen[np.uint32(x - left)]))
        if rest:
            after = fused(s, w, n, rest, y, x, after)
        row[np.uint32(x)] = after
        new = w.terms[np.uint32(after + MAX_BELIEF)]
        change += new - w.terms[np.uint32(before + MAX_BELIEF)]
        total += new
        weighed += twice_weight(after) * np.int64(w.entropy[np.uint32(before + MAX_BELIEF)])
    return change, total, weighed


@inlined
def sources_of(s, w, n, k):
    """Returns the UAVs whose measurements are added to map `k` of mission `n`, as an integer with bit j for UAV j.

    They are the UAVs whose messages UAV k received; for the common map, k = number of UAVs, they are all UAVs. `s`:
    state of all missions; `w`: constants of the world.
    """
    return np.int64(s.heard[n, k]) if k < w.agents else (1 << w.agents) - 1


@inlined
def in_row(s, w, n, sources, y):
    """Returns the UAVs of `sources` (bit j for UAV j) in mission `n` whose footprint contains map row `y`.

    `s`: state of all missions; `w`: constants of the world.
    """
    members = 0
    for j in range(w.agents):
        if sources >> j & 1 and low_y(s, n, j) <= y < high_y(s, n, j):
            members |= 1 << j
    return members


@inlined
def at_column(s, w, n, sources, x):
    """Returns the UAVs of `sources` whose footprint contains column `x`, and the column at which this set changes.

    The set is an integer with bit j for UAV j. The column is the first one after `x` at which a footprint begins or
    ends, at most the end of the map. `s`: state of all missions; `w`: constants of the world. `n`: index of the
    mission.
    """
    members, until = 0, np.int64(w.cells)
    for j in range(w.agents):
        if sources >> j & 1:
            left, right = low_x(s, n, j), high_x(s, n, j)
            if x < left:
                until = min(until, left)
            elif x < right:
                until = min(until, right)
                members |= 1 << j
    return members, until


@inlined
def first_share(w, cell):
    """Returns how many 11ths of a row or column of cells lie in the block in which it begins: 1 to 11.

    A block is 1/11 of the map along each side, so a row may lie in two blocks; the other 11ths lie in the next block.
    `cell`: index of the row or column; `w`: constants of the world.
    """
    return min(LATTICE, w.cells * (LATTICE * cell // w.cells + 1) - LATTICE * cell)


@inlined
def lower(packed):
    """Returns the signed lower 32 bits of the int64 `packed`, which are a sum of probabilities in fixed point."""
    return ((packed & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000


@inlined
def upper(packed):
    """Returns the signed upper 32 bits of the int64 `packed`, which are a sum of weighted entropy in fixed point."""
    return (packed - lower(packed)) >> 32


@inlined
def begin_sums(s, w, n, k):
    """Sets the sums of entropy and probability over blocks of map `k` of mission `n` to those of an unknown map.

    In an unknown map, the probability of each cell is one half. A block is 1/11 of the map along each side; the sums
    are in `s.sums`. The caller sets the beliefs of the cells to 0. `s`: state of all missions; `w`: constants of the
    world.
    """
    half = np.int64(w.cells) * w.cells * (FIXED_POINT_SCALE // 2)
    for row in range(LATTICE):
        for col in range(LATTICE):
            s.sums[n, k, 0, row, col] = half
            s.sums[n, k, 1, row, col] = half


@inlined
def begin_step(s, w, n):
    """Prepares mission `n` for the measurements after a move or a start.

    It writes the footprints, the rectangles that the cameras see, to `s.rect`. It sets the sums `s.seen` to 0, and
    stores the entropy before the measurements in `s.gain`. `s`: state of all missions; `w`: constants of the world.
    """
    update_footprints(s, w, n)
    weighted = np.int64(0)
    for row in range(LATTICE):
        for col in range(LATTICE):
            weighted += s.sums[n, w.agents, 0, row, col]
            for i in range(w.agents):
                s.seen[n, i, row, col] = 0
    s.gain[n, 0] = 0
    s.gain[n, 1] = 2 * (weighted // (LATTICE * LATTICE))


def row_fuser(compile, add):
    """Builds the function that adds the measurements of a step to the beliefs in one row of one map.

    Args:
        compile: Decorator that compiles a function for the CPU or for CUDA.
        add: Function ``add(array, index, value)`` for the sums; it is atomic if several threads process one mission.

    Returns:
        The function ``fuse_row(s, w, n, k, y)``, which updates row y of map k of mission n. `s` is the state of all
        missions, a `MissionArrays`, and `w` the constants of the world, a `WorldArrays`.
    """

    @compile
    def add_block(s, n, k, row, col, share, change, total):
        add(s.sums, (n, k, 0, row, col), share * upper(change))
        add(s.sums, (n, k, 1, row, col), share * lower(change))
        if total:
            add(s.seen, (n, k, row, col), share * upper(total))

    @compile
    def add_rows(s, w, n, k, y, col, change, total):
        row, here = LATTICE * y // w.cells, first_share(w, y)
        add_block(s, n, k, row, col, here, change, total)
        if here < LATTICE:
            add_block(s, n, k, row + 1, col, LATTICE - here, change, total)

    @compile
    def fuse_row(s, w, n, k, y):
        """Adds the latest measurements to the beliefs in row `y` of map `k` of mission `n`.

        `s`: state of all missions; `w`: constants of the world. The row is cut at each column at which the set of
        footprints changes or a block ends. Two blocks share the cell at the end of a block; the share of the next block
        is carried over.
        """
        sources = in_row(s, w, n, sources_of(s, w, n, k), y)
        x, common, own = np.int64(0), k == w.agents, np.int64(0)
        gained, weighed = np.int64(0), np.int64(0)
        while sources and x < w.cells:
            here, until = at_column(s, w, n, sources, x)
            if not here:
                x = until
                continue
            own = np.int64(not common and here >> k & 1)
            col = LATTICE * x // w.cells
            carried, carried_total = np.int64(0), np.int64(0)
            while x < until:
                border = w.cells * (col + 1)  # in 11ths of a cell
                whole = min(until, border // LATTICE)
                change, total, both = fuse_cells(s, w, n, k, here, y, x, whole)
                carried += LATTICE * change
                carried_total += LATTICE * total
                share = border - LATTICE * whole
                if whole < until and 0 < share < LATTICE:
                    change_shared, total_shared, both_shared = fuse_cells(s, w, n, k, here, y, whole, whole + 1)
                    carried += share * change_shared
                    carried_total += share * total_shared
                    add_rows(s, w, n, k, y, col, carried, own * carried_total)
                    carried = (LATTICE - share) * change_shared
                    carried_total = (LATTICE - share) * total_shared
                    change += change_shared
                    total += total_shared
                    both += both_shared
                    whole += 1
                else:
                    add_rows(s, w, n, k, y, col, carried, own * carried_total)
                    carried, carried_total = np.int64(0), np.int64(0)
                if common:
                    after = 2 * upper(total)
                    gained += both - after
                    weighed += both - after + 2 * upper(change)
                x = whole
                col += 1
            if carried or carried_total:
                add_rows(s, w, n, k, y, col, carried, own * carried_total)
        if common:
            add(s.gain, (n, 0), gained)
            add(s.gain, (n, 1), weighed)

    return fuse_row
