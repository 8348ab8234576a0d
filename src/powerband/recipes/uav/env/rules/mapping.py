"""Mapping: measures cells with a noisy sensor and fuses the measurements into beliefs. Parameter names as in `moves`.

Only cells inside footprints are visited. A row of a map is cut into segments at the borders of footprints and blocks.
Within a segment the set of footprints and the block are constant, so the change of the block sums is added once per
segment. The sums are integers and independent of the order. Threads may therefore add at the same time, and the result
equals a sum over the complete map.
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
    """Measures row `row` of the footprint of UAV `i`; writes +step to `measured` if the reading is 1, else -step."""
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
    """Clamps a belief to probabilities within [1e-4, 1 - 1e-4]."""
    return min(max(belief, -MAX_BELIEF), MAX_BELIEF)


@inlined
def lowest_bit(bits):
    """Returns the index of the lowest bit that is set."""
    index = 0
    while not bits >> index & 1:
        index += 1
    return index


@inlined
def twice_weight(belief):
    """Returns twice the weight W of a belief: 2 for the region of interest, 0 for outside, 1 if it is undecided."""
    return 1 + np.int64(belief > MAX_UNSURE_BELIEF) - np.int64(belief < -MAX_UNSURE_BELIEF)


@inlined
def fused(s, w, n, sources, y, x, belief):
    """Returns `belief` of cell (y, x) after the measurements of `sources`, whose footprints all contain the cell."""
    for j in range(w.agents):
        if sources >> j & 1:
            row, col = y - low_y(s, n, j), x - low_x(s, n, j)
            belief = clamp_belief(belief + np.int64(s.measured[n, j, np.uint32(row), np.uint32(col)]))
    return belief


@inlined
def fuse_cells(s, w, n, k, sources, y, x0, x1):
    """Fuses the measurements of `sources` into cells x0..x1-1 of row `y` of map `k`.

    The footprints of all `sources` contain these cells.

    Returns:
        The change of the sums of W H and p; these sums after the fusion, both packed as in `terms`; and, for the common
        map only, the sum of 2 W H with W after and H before the fusion.
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
    """Returns the UAVs whose measurements are fused into map `k`, as bits."""
    return np.int64(s.heard[n, k]) if k < w.agents else (1 << w.agents) - 1


@inlined
def in_row(s, w, n, sources, y):
    """Returns those of `sources` whose footprint contains row `y`."""
    members = 0
    for j in range(w.agents):
        if sources >> j & 1 and low_y(s, n, j) <= y < high_y(s, n, j):
            members |= 1 << j
    return members


@inlined
def at_column(s, w, n, sources, x):
    """Returns those of `sources` whose footprint contains column `x`, and the column at which this set changes."""
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
    """Returns how many of the 11 parts of `cell`, 1 to 11, lie in its first block; the rest lies in the next block."""
    return min(LATTICE, w.cells * (LATTICE * cell // w.cells + 1) - LATTICE * cell)


@inlined
def lower(packed):
    """Returns the signed lower half of a packed pair."""
    return ((packed & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000


@inlined
def upper(packed):
    """Returns the upper half of a packed pair."""
    return (packed - lower(packed)) >> 32


@inlined
def begin_sums(s, w, n, k):
    """Sets the block sums of map `k` to a belief of one half everywhere; the caller clears the cells."""
    half = np.int64(w.cells) * w.cells * (FIXED_POINT_SCALE // 2)
    for row in range(LATTICE):
        for col in range(LATTICE):
            s.sums[n, k, 0, row, col] = half
            s.sums[n, k, 1, row, col] = half


@inlined
def begin_step(s, w, n):
    """Prepares the fusion after a move: writes the footprints, and resets the sums of this move."""
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
    """Builds the function that fuses the measurements of a step into one row of one map.

    Args:
        compile: Decorator that compiles a function for the CPU or for CUDA.
        add: Function ``add(array, index, value)`` for the sums; it is atomic if several threads process one mission.

    Returns:
        The function ``fuse_row(s, w, n, k, y)``.
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
        """Fuses row `y` of map `k`.

        The row is cut wherever the set of footprints changes or a block ends. Two blocks share the cell at a block's
        end; the share of the next block is carried over.
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
