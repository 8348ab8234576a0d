"""Edges of a mesh collapse, cheapest first: scalar loops for numba, around quadrics of places and of looks.

A vertex has wedges, one for each side of the seams and creases that meet there; a corner of a face is a wedge. A vertex
is put where a neighbour is, and each of its wedges becomes the neighbour's wedge on the same side.
Source: Garland and Heckbert, Surface Simplification Using Quadric Error Metrics, 1997; for what varies over the
faces, Hoppe, New Quadric Metric for Simplifying Meshes with Appearance Attributes, 1999.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def _normal(a, b, c):
    """Of a triangle; its length is twice the area."""
    x, y = b - a, c - a
    return np.array([x[1] * y[2] - x[2] * y[1], x[2] * y[0] - x[0] * y[2], x[0] * y[1] - x[1] * y[0]])


@njit(cache=True, nogil=True)
def _add_plane(quadric, normal, point, weight):
    """Adds the squared distance from a plane: (ten entries of the symmetric matrix, weight)."""
    plane = np.array([normal[0], normal[1], normal[2], -(normal * point).sum()])
    slot = 0
    for row in range(4):
        for column in range(row, 4):
            quadric[slot] += weight * plane[row] * plane[column]
            slot += 1
    quadric[10] += weight


@njit(cache=True, nogil=True)
def _square(entries, point):
    """Of a symmetric matrix, by its ten entries, from both sides with (point, 1)."""
    x, y, z, e = point[0], point[1], point[2], entries
    across = e[1] * x * y + e[2] * x * z + e[3] * x + e[5] * y * z + e[6] * y + e[8] * z
    return e[0] * x * x + e[4] * y * y + e[7] * z * z + e[9] + 2 * across


@njit(cache=True, nogil=True)
def _error(one, other, point):
    """Mean squared distance of a point from the planes of two quadrics."""
    return abs(_square(one, point) + _square(other, point)) / max(one[10] + other[10], 1e-30)


@njit(cache=True, nogil=True)
def _fan(vertex, heads, following, live, fan):
    """Writes the corners of live faces at a vertex, and takes the others off its list; -1 where they are too many."""
    count, last, corner = 0, -1, heads[vertex]
    while corner >= 0:
        after = following[corner]
        if live[corner // 3]:
            if count == len(fan):
                return -1
            fan[count], last = corner, corner
            count += 1
        elif last < 0:
            heads[vertex] = after
        else:
            following[last] = after
        corner = after
    return count


@njit(cache=True, nogil=True)
def _near(own, fan, count, vertex_of, wedge, near, times):
    """Writes the neighbours of a vertex and how many faces each edge has; returns how many."""
    known = 0
    for place in range(count):
        base = fan[place] // 3 * 3
        for corner in range(base, base + 3):
            other = vertex_of[wedge[corner]]
            if other == own:
                continue
            slot = 0
            while slot < known and near[slot] != other:
                slot += 1
            if slot == known:
                near[slot], times[slot] = other, 0
                known += 1
            times[slot] += 1
    return known


@njit(cache=True, nogil=True)
def _may(gone, kept, fan, count, points, vertex_of, wedge, olds, news, flip, longest):
    """Whether a vertex may be put where its neighbour is; writes which wedge becomes which, and returns how many, or 0.

    Not where a wedge has no counterpart on its side of a seam, not where a face would turn over, and not where an edge
    would grow beyond `longest`.
    """
    known = 0
    for place in range(count):
        base, old, new = fan[place] // 3 * 3, wedge[fan[place]], -1
        for corner in range(base, base + 3):
            if vertex_of[wedge[corner]] == kept:
                new = wedge[corner]
        if new < 0:
            continue
        slot = 0
        while slot < known and olds[slot] != old:
            slot += 1
        if slot < known and news[slot] != new:
            return 0
        if slot == known:
            olds[slot], news[slot] = old, new
            known += 1
    for place in range(count):
        corner = fan[place]
        base, old = corner // 3 * 3, wedge[corner]
        one = vertex_of[wedge[base + (corner - base + 1) % 3]]
        two = vertex_of[wedge[base + (corner - base + 2) % 3]]
        if one == kept or two == kept:
            continue
        slot = 0
        while slot < known and olds[slot] != old:
            slot += 1
        if slot == known:
            return 0
        for end in (one, two):
            after_it, before_it = points[kept] - points[end], points[gone] - points[end]
            if (after_it * after_it).sum() > max(longest * longest, (before_it * before_it).sum()):
                return 0
        before = _normal(points[gone], points[one], points[two])
        after = _normal(points[kept], points[one], points[two])
        longs = math.sqrt((before * before).sum() * (after * after).sum())
        if longs < 1e-24 or (before * after).sum() < flip * longs:
            return 0
    return known


@njit(cache=True, nogil=True)
def quadrics_of(points, vertex_of, wedge, live, breaks):
    """(vertices, 11): planes of the faces at each vertex, by area, and walls that stand on the breaks beside it."""
    quadrics = np.zeros((len(points), 11))
    spots = np.empty(3, np.int64)
    for face in range(len(live)):
        if not live[face]:
            continue
        for turn in range(3):
            spots[turn] = vertex_of[wedge[3 * face + turn]]
        normal = _normal(points[spots[0]], points[spots[1]], points[spots[2]])
        area = math.sqrt((normal * normal).sum())
        if area < 1e-16:
            continue
        normal /= area
        for turn in range(3):
            _add_plane(quadrics[spots[turn]], normal, points[spots[turn]], area)
            if breaks[face, turn]:
                one, two = spots[turn], spots[(turn + 1) % 3]
                along = points[two] - points[one]
                wall = _normal(points[one], points[two], points[one] + normal)
                weight = (along * along).sum()
                wall /= max(math.sqrt(weight), 1e-12)
                _add_plane(quadrics[one], wall, points[one], weight)
                _add_plane(quadrics[two], wall, points[one], weight)
    return quadrics


@njit(cache=True, nogil=True)
def looks_of(points, vertex_of, spread, wedge, live):
    """(wedges, 11 + 4 * kinds): how normal and texture vary over the faces at each wedge.

    On a face each is ``gradient * point + offset``. Kept are the ten entries of the sum of the squares, the weight, and
    the sum of gradient and offset of each.
    """
    kinds = spread.shape[1]
    looks = np.zeros((len(spread), 11 + 4 * kinds))
    slope = np.empty(4)
    for face in range(len(live)):
        if not live[face]:
            continue
        zero, one, two = wedge[3 * face], wedge[3 * face + 1], wedge[3 * face + 2]
        begin = points[vertex_of[zero]]
        x, y = points[vertex_of[one]] - begin, points[vertex_of[two]] - begin
        xx, xy, yy = (x * x).sum(), (x * y).sum(), (y * y).sum()
        inside = xx * yy - xy * xy
        if inside < 1e-6 * xx * yy or inside < 1e-24:  # a sliver has no direction across
            continue
        area = math.sqrt(inside)
        for kind in range(kinds):
            first, second = spread[one, kind] - spread[zero, kind], spread[two, kind] - spread[zero, kind]
            slope[:3] = ((yy * first - xy * second) * x + (xx * second - xy * first) * y) / inside
            slope[3] = spread[zero, kind] - (slope[:3] * begin).sum()
            for own in (zero, one, two):
                slot = 0
                for row in range(4):
                    for column in range(row, 4):
                        looks[own, slot] += area * slope[row] * slope[column]
                        slot += 1
                for row in range(4):
                    looks[own, 11 + 4 * kind + row] += area * slope[row]
        for own in (zero, one, two):
            looks[own, 10] += area
    return looks


@njit(cache=True, nogil=True)
def _look_error(look, point, spread):
    """Squared distance of what a wedge would show at a point from what its faces showed there, by their area."""
    total = 0.0
    for kind in range(len(spread)):
        slot = 11 + 4 * kind
        there = look[slot] * point[0] + look[slot + 1] * point[1] + look[slot + 2] * point[2] + look[slot + 3]
        total += spread[kind] * (spread[kind] * look[10] - 2 * there)
    return total


@njit(cache=True, nogil=True)
def _change(looks, olds, news, pairs, point, spread):
    """Mean squared change of normal and texture, in metres as they count, where wedges become others."""
    total, weight = 0.0, 1e-30
    for pair in range(pairs):
        for own in (olds[pair], news[pair]):
            total += _square(looks[own], point) + _look_error(looks[own], point, spread[news[pair]])
            weight += looks[own, 10]
    return abs(total) / weight


@njit(cache=True, nogil=True)
def collapse(points, vertex_of, spread, wedge, live, quadrics, looks, tolerance, finest, sweeps, most, flip, longest):
    """Collapses edges in place: `wedge` of corners and `live` of faces."""
    heads, following = np.full(len(points), -1, np.int64), np.full(len(wedge), -1, np.int64)
    for corner in range(len(wedge)):
        if live[corner // 3]:
            spot = vertex_of[wedge[corner]]
            following[corner], heads[spot] = heads[spot], corner
    fan, near, times = np.empty(most, np.int64), np.empty(2 * most, np.int64), np.empty(2 * most, np.int64)
    fan_there, near_there = np.empty(most, np.int64), np.empty(2 * most, np.int64)
    times_there, olds, news = np.empty(2 * most, np.int64), np.empty(most, np.int64), np.empty(most, np.int64)
    touched, sweep = np.zeros(len(points), np.int64), 0
    limit = tolerance / finest
    while limit <= tolerance * 1.001:
        for _ in range(sweeps):
            sweep += 1
            collapsed = 0
            for gone in range(len(points)):
                if heads[gone] < 0 or touched[gone] == sweep:
                    continue
                count = _fan(gone, heads, following, live, fan)
                if count <= 0:
                    continue
                known = _near(gone, fan, count, vertex_of, wedge, near, times)
                border = False
                for slot in range(known):
                    border = border or times[slot] == 1
                cheapest, kept, pairs = limit * limit, -1, 0
                for slot in range(known):
                    other = near[slot]
                    if times[slot] != (1 if border else 2):
                        continue
                    cost = _error(quadrics[gone], quadrics[other], points[other])
                    if cost > cheapest:
                        continue
                    # neighbours that both have are those across the edge, else the mesh would be pinched
                    there = _fan(other, heads, following, live, fan_there)
                    if there <= 0 or there + count > most:
                        continue
                    others = _near(other, fan_there, there, vertex_of, wedge, near_there, times_there)
                    both = 0
                    for one in range(known):
                        for two in range(others):
                            both += near[one] == near_there[two]
                    if both != times[slot]:
                        continue
                    pairs = _may(gone, other, fan, count, points, vertex_of, wedge, olds, news, flip, longest)
                    if pairs == 0:
                        continue
                    cost += _change(looks, olds, news, pairs, points[other], spread)
                    if cost < cheapest:
                        cheapest, kept = cost, other
                if kept < 0:
                    continue
                pairs = _may(gone, kept, fan, count, points, vertex_of, wedge, olds, news, flip, longest)
                for place in range(count):
                    corner = fan[place]
                    base = corner // 3 * 3
                    with_it = False
                    for turn in range(3):
                        with_it = with_it or vertex_of[wedge[base + turn]] == kept
                    if with_it:
                        live[corner // 3] = False
                        continue
                    for slot in range(pairs):
                        if olds[slot] == wedge[corner]:
                            wedge[corner] = news[slot]
                            break
                    following[corner], heads[kept] = heads[kept], corner
                heads[gone] = -1
                for pair in range(pairs):
                    looks[news[pair]] += looks[olds[pair]]
                quadrics[kept] += quadrics[gone]
                touched[kept] = sweep
                for slot in range(known):
                    touched[near[slot]] = sweep
                collapsed += 1
            if collapsed * 100 < len(points):
                break
        limit *= 2
