"""Measuring and fusing: what a camera sees of the map, and how beliefs take it in. Names as in `rules`.

Only cells inside footprints are visited. A row of a map is cut where a footprint or a block begins or ends; inside
such a stretch nothing changes but the cells, and what they change in the block sums is added once. Sums are of whole
numbers: their order is free, so threads may add at the same time and the result is that of summing the whole map anew.
"""

import numpy as np

from powerband.envs.hashing import inlined, mix, stream_key

from .world import LATTICE, LIMIT, MAX_AGENTS, MAX_CELLS, SCALE, UNSURE

FLIPS = 0x5851F42D4C957F2D  # tells the stream of sensor noise from that of the other draws
LANES = 4  # draws of 16 bits in one hash


# -- footprints: rows run along x of the lattice, as in the feature maps -----------------------------------------------


@inlined
def place(s, w, n):
    """Writes `rect` of all UAVs: first row, row behind the last, first column, column behind the last they see."""
    for i in range(w.agents):
        x, y, z = s.position[n, i, 0], s.position[n, i, 1], s.position[n, i, 2]
        s.rect[n, i, 0] = w.low[z, x]
        s.rect[n, i, 1] = w.high[z, x]
        s.rect[n, i, 2] = w.low[z, y]
        s.rect[n, i, 3] = w.high[z, y]


@inlined
def low_y(s, n, i):
    """First row of the footprint of UAV `i`."""
    return np.int64(s.rect[n, i, 0])


@inlined
def high_y(s, n, i):
    """Row behind the last of its footprint."""
    return np.int64(s.rect[n, i, 1])


@inlined
def low_x(s, n, i):
    """First column of its footprint."""
    return np.int64(s.rect[n, i, 2])


@inlined
def high_x(s, n, i):
    """Column behind the last."""
    return np.int64(s.rect[n, i, 3])


# -- measuring --------------------------------------------------------------------------------------------------------


@inlined
def measure_row(s, w, n, i, row, seed):
    """Measures row `row` of the footprint of UAV `i` into `measured`: +step where 1 is read, -step where 0 is."""
    y, x0, x1 = low_y(s, n, i) + row, low_x(s, n, i), high_x(s, n, i)
    if y >= high_y(s, n, i):
        return
    z = s.position[n, i, 2]
    step, threshold = np.int64(w.step[z]), np.uint64(w.threshold[z])
    key = mix(stream_key(seed, s.mission[n]) ^ np.uint64(FLIPS))
    base = ((s.tick[n] * MAX_AGENTS + i) * MAX_CELLS + y) * (MAX_CELLS // LANES) + 1
    for group in range(x0 // LANES, (x1 + LANES - 1) // LANES):
        bits = mix(key + np.uint64(base + group) * np.uint64(0x9E3779B97F4A7C15))
        for x in range(max(LANES * group, x0), min(LANES * group + LANES, x1)):
            wrong = np.int64((bits >> np.uint64(16 * (x & 3))) & np.uint64(0xFFFF) < threshold)
            s.measured[n, i, np.uint32(row), np.uint32(x - x0)] = (
                2 * (np.int64(s.truth[n, np.uint32(y), np.uint32(x)]) ^ wrong) - 1
            ) * step


# -- fusing -----------------------------------------------------------------------------------------------------------


@inlined
def clamped(belief):
    """Beliefs stay within [1e-4, 1 - 1e-4]."""
    return min(max(belief, -LIMIT), LIMIT)


@inlined
def lowest_bit(bits):
    """Index of the lowest bit that is set."""
    index = 0
    while not bits >> index & 1:
        index += 1
    return index


@inlined
def twice_weight(belief):
    """2 in the region of interest, 0 outside, 1 where neither is believed."""
    return 1 + np.int64(belief > UNSURE) - np.int64(belief < -UNSURE)


@inlined
def fused(s, w, n, sources, y, x, belief):
    """`belief` of cell (y, x) after the measurements of `sources`, which all see it."""
    for j in range(w.agents):
        if sources >> j & 1:
            row, col = y - low_y(s, n, j), x - low_x(s, n, j)
            belief = clamped(belief + np.int64(s.measured[n, j, np.uint32(row), np.uint32(col)]))
    return belief


@inlined
def fuse_cells(s, w, n, k, sources, y, x0, x1):
    """Takes the measurements of `sources`, which all see cells x0..x1-1 of row `y`, into these cells of map `k`.

    Returns:
        (change, after, weighed): the change of W H and p, and W H and p afterwards, packed as in `terms`; of the common
        map also the sum of 2 W H with W after and H before.
    """
    change, kept, weighed = np.int64(0), np.int64(0), np.int64(0)
    common, first, rest = k == w.agents, lowest_bit(sources), sources & (sources - 1)
    row, left = s.belief[n, k, y], low_x(s, n, first)
    seen = s.measured[n, first, y - low_y(s, n, first)]
    if not rest and not common:  # three times as fast as the loop below, and most of all cells
        for x in range(x0, x1):
            before = np.int64(row[np.uint32(x)])
            after = clamped(before + np.int64(seen[np.uint32(x - left)]))
            row[np.uint32(x)] = after
            new = w.terms[np.uint32(after + LIMIT)]
            change += new - w.terms[np.uint32(before + LIMIT)]
            kept += new
        return change, kept, weighed
    for x in range(x0, x1):
        before = np.int64(row[np.uint32(x)])
        after = clamped(before + np.int64(seen[np.uint32(x - left)]))
        if rest:
            after = fused(s, w, n, rest, y, x, after)
        row[np.uint32(x)] = after
        new = w.terms[np.uint32(after + LIMIT)]
        change += new - w.terms[np.uint32(before + LIMIT)]
        kept += new
        weighed += twice_weight(after) * np.int64(w.entropy[np.uint32(before + LIMIT)])
    return change, kept, weighed


@inlined
def sources_of(s, w, n, k):
    """The UAVs whose measurements map `k` takes in, as bits."""
    return np.int64(s.heard[n, k]) if k < w.agents else (1 << w.agents) - 1


@inlined
def in_row(s, w, n, sources, y):
    """Those of `sources` whose footprint has row `y`."""
    found = 0
    for j in range(w.agents):
        if sources >> j & 1 and low_y(s, n, j) <= y < high_y(s, n, j):
            found |= 1 << j
    return found


@inlined
def at_column(s, w, n, sources, x):
    """(those of `sources` whose footprint has column `x`, the column where that next changes)."""
    found, until = 0, np.int64(w.cells)
    for j in range(w.agents):
        if sources >> j & 1:
            left, right = low_x(s, n, j), high_x(s, n, j)
            if x < left:
                until = min(until, left)
            elif x < right:
                until = min(until, right)
                found |= 1 << j
    return found, until


@inlined
def first_share(w, cell):
    """How much of `cell`, 1 to 11 of its 11 parts, lies in the block it begins in; the rest is in the next one."""
    return min(LATTICE, w.cells * (LATTICE * cell // w.cells + 1) - LATTICE * cell)


@inlined
def lower(packed):
    """The signed lower half of a packed pair."""
    return ((packed & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000


@inlined
def upper(packed):
    """The upper half of a packed pair."""
    return (packed - lower(packed)) >> 32


@inlined
def begin_sums(s, w, n, k):
    """Sets map `k` to a belief of one half everywhere, in its block sums; its cells are cleared by themselves."""
    half = np.int64(w.cells) * w.cells * (SCALE // 2)
    for row in range(LATTICE):
        for col in range(LATTICE):
            s.sums[n, k, 0, row, col] = half
            s.sums[n, k, 1, row, col] = half


@inlined
def begin_step(s, w, n):
    """Before a move's measurements are taken in: the footprints, and what is summed of this move alone."""
    place(s, w, n)
    weighted = np.int64(0)
    for row in range(LATTICE):
        for col in range(LATTICE):
            weighted += s.sums[n, w.agents, 0, row, col]
            for i in range(w.agents):
                s.seen[n, i, row, col] = 0
    s.gain[n, 0] = 0
    s.gain[n, 1] = 2 * (weighted // (LATTICE * LATTICE))


def row_fuser(compile, add):
    """The function that takes the measurements of a step into one row of one map.

    Args:
        compile: Makes it a function of the CPU or of CUDA.
        add: ``add(array, index, value)``, so that threads do not lose each other's sums.

    Returns:
        ``fuse_row(s, w, n, k, y)``.
    """

    @compile
    def add_block(s, n, k, row, col, share, change, kept):
        add(s.sums, (n, k, 0, row, col), share * upper(change))
        add(s.sums, (n, k, 1, row, col), share * lower(change))
        if kept:
            add(s.seen, (n, k, row, col), share * upper(kept))

    @compile
    def add_rows(s, w, n, k, y, col, change, kept):
        row, here = LATTICE * y // w.cells, first_share(w, y)
        add_block(s, n, k, row, col, here, change, kept)
        if here < LATTICE:
            add_block(s, n, k, row + 1, col, LATTICE - here, change, kept)

    @compile
    def fuse_row(s, w, n, k, y):
        """A row is cut where the set of footprints changes, and again where a block ends.

        What the cell at a block's end adds is shared by two blocks; the part of the next one is carried over.
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
            carried, carried_kept = np.int64(0), np.int64(0)
            while x < until:
                border = w.cells * (col + 1)  # in 11ths of a cell
                whole = min(until, border // LATTICE)
                change, kept, both = fuse_cells(s, w, n, k, here, y, x, whole)
                carried += LATTICE * change
                carried_kept += LATTICE * kept
                share = border - LATTICE * whole
                if whole < until and 0 < share < LATTICE:
                    change_there, kept_there, both_there = fuse_cells(s, w, n, k, here, y, whole, whole + 1)
                    add_rows(
                        s, w, n, k, y, col, carried + share * change_there, own * (carried_kept + share * kept_there)
                    )
                    carried = (LATTICE - share) * change_there
                    carried_kept = (LATTICE - share) * kept_there
                    change += change_there
                    kept += kept_there
                    both += both_there
                    whole += 1
                else:
                    add_rows(s, w, n, k, y, col, carried, own * carried_kept)
                    carried, carried_kept = np.int64(0), np.int64(0)
                if common:
                    after = 2 * upper(kept)
                    gained += both - after
                    weighed += both - after + 2 * upper(change)
                x = whole
                col += 1
            if carried or carried_kept:
                add_rows(s, w, n, k, y, col, carried, own * carried_kept)
        if common:
            add(s.gain, (n, 0), gained)
            add(s.gain, (n, 1), weighed)

    return fuse_row
