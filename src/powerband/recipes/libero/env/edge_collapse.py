"""Collapses edges of a mesh, cheapest first: scalar loops for numba, with quadrics of position and of appearance.

A vertex has one wedge for each side of the seams and creases that meet at it; every corner of a face belongs to a
wedge. A collapse moves a vertex to a neighbour, and each of its wedges becomes the neighbour's wedge on the same side.

Arrays of a mesh, which the functions share; corner c belongs to face c // 3:
    points: Positions of the vertices (vertices, 3).
    vertex_of: Vertex of each wedge.
    wedge: Wedge of each corner.
    live: Mask of the faces that remain.
    heads, following: First corner of each vertex, and the corner that follows each corner in the vertex's list; -1 ends
        a list.
    quadrics: Quadrics of position (vertices, 11): ten entries of a symmetric 4 x 4 matrix, and a weight.
    looks: Quadrics of appearance (wedges, 11 + 4 * kinds); `_appearance_quadrics` in mesh_simplification.py computes
        them.
    spread: Attributes of each wedge (wedges, kinds): scaled normal and texture coordinates.
Buffers for one collapse, which moves vertex `gone` to vertex `kept`:
    fan: Corners of a vertex's live faces; `count` of them are valid.
    near, times: Neighbours of a vertex, and the number of faces at the edge to each.
    olds, news: Pairs of wedges; wedge olds[i] becomes wedge news[i].

Source: Garland and Heckbert, Surface Simplification Using Quadric Error Metrics, 1997; for attributes that vary over
the faces, Hoppe, New Quadric Metric for Simplifying Meshes with Appearance Attributes, 1999.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def _normal(a, b, c):
    """Returns the normal of the triangle of points a, b and c; its length is twice the area."""
    x, y = b - a, c - a
    return np.array([x[1] * y[2] - x[2] * y[1], x[2] * y[0] - x[0] * y[2], x[0] * y[1] - x[1] * y[0]])


@njit(cache=True, nogil=True)
def _add_plane(quadric, normal, point, weight):
    """Adds to a quadric, in place, the squared distance from a plane, times `weight`.

    The plane has the unit vector `normal` and goes through `point`.
    """
    plane = np.array([normal[0], normal[1], normal[2], -(normal * point).sum()])
    slot = 0
    for row in range(4):
        for column in range(row, 4):
            quadric[slot] += weight * plane[row] * plane[column]
            slot += 1
    quadric[10] += weight


@njit(cache=True, nogil=True)
def _square(entries, point):
    """Returns the quadratic form of a symmetric 4 x 4 matrix, given by its ten upper entries, at (point, 1)."""
    x, y, z, e = point[0], point[1], point[2], entries
    across = e[1] * x * y + e[2] * x * z + e[3] * x + e[5] * y * z + e[6] * y + e[8] * z
    return e[0] * x * x + e[4] * y * y + e[7] * z * z + e[9] + 2 * across


@njit(cache=True, nogil=True)
def _error(one, other, point):
    """Returns the mean squared distance of a point from the planes of the quadrics `one` and `other`."""
    return abs(_square(one, point) + _square(other, point)) / max(one[10] + other[10], 1e-30)


@njit(cache=True, nogil=True)
def _fan(vertex, heads, following, live, fan):
    """Writes the corners of a vertex's live faces to `fan`, and drops all other corners from the vertex's list.

    Returns the number of corners, or -1 if `fan` is too short. The module docstring explains the arrays.
    """
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
def _neighbours(own, fan, count, vertex_of, wedge, near, times):
    """Writes the neighbours of vertex `own` to `near`, and the number of faces at the edge to each to `times`.

    Returns the number of neighbours. The module docstring explains the arrays.
    """
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
def _wedge_pairs(gone, kept, fan, count, points, vertex_of, wedge, olds, news, flip, longest):
    """Checks whether vertex `gone` may move to its neighbour `kept`, and writes pairs of wedges to `olds` and `news`.

    Returns the number of pairs. Returns 0, which forbids the move, if a wedge has no counterpart on its side of a seam,
    if the cosine of a face's rotation would be below `flip`, or if an edge would become longer than `longest`. The
    module docstring explains the arrays.
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
def vertex_quadrics(points, vertex_of, wedge, live, breaks):
    """Computes a quadric for each vertex, which gives the squared distance of a point from the planes of its faces.

    Planes of faces are weighted by area. Along discontinuities, planes that are perpendicular to the faces are added.

    Args:
        points: Positions of the vertices (vertices, 3) in metres.
        vertex_of: Vertex of each wedge, (wedges,) int64. A wedge is a group of corners of one vertex without a
            discontinuity between them.
        wedge: Wedge of each corner, (3 * faces,) int64.
        live: Mask (faces,) bool of the faces that count.
        breaks: Mask (faces, 3) bool of the edges at discontinuities; edge i goes from corner i to the next.

    Returns:
        Quadrics (vertices, 11): ten entries of a symmetric 4 x 4 matrix, and the sum of the weights.
    """
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
def _look_error(look, point, spread):
    """Returns the part of a wedge's squared change of attributes at `point` that depends on its new attributes.

    look: Quadric of appearance of the wedge. spread: New attributes (kinds,). `_change` adds the remaining part, which
    is the quadratic form of `look`.
    """
    total = 0.0
    for kind in range(len(spread)):
        slot = 11 + 4 * kind
        projection = look[slot] * point[0] + look[slot + 1] * point[1] + look[slot + 2] * point[2] + look[slot + 3]
        total += spread[kind] * (spread[kind] * look[10] - 2 * projection)
    return total


@njit(cache=True, nogil=True)
def _change(looks, olds, news, pairs, point, spread):
    """Returns the mean squared change of normal and texture, in equivalent metres, if wedges `olds` become `news`.

    pairs: Number of pairs of wedges. point: New position. The module docstring explains the arrays.
    """
    total, weight = 0.0, 1e-30
    for pair in range(pairs):
        for own in (olds[pair], news[pair]):
            total += _square(looks[own], point) + _look_error(looks[own], point, spread[news[pair]])
            weight += looks[own, 10]
    return abs(total) / weight


@njit(cache=True, nogil=True)
def collapse(points, vertex_of, spread, wedge, live, quadrics, looks, tolerance, finest, sweeps, most, flip, longest):
    """Collapses the edges of a mesh, cheapest first, as long as the error stays within a tolerance.

    It changes `wedge`, `live`, `quadrics` and `looks` in place, and returns nothing.

    Args:
        points: Positions of the vertices (vertices, 3) in metres.
        vertex_of: Vertex of each wedge, (wedges,) int64. A wedge is a group of corners of one vertex without a
            discontinuity between them.
        spread: Scaled normal and texture coordinates of each wedge, (wedges, attributes).
        wedge: Wedge of each corner, (3 * faces,) int64.
        live: Mask (faces,) bool of the faces that remain.
        quadrics: Quadrics of position (vertices, 11), from `vertex_quadrics`.
        looks: Quadrics of appearance (wedges, 11 + 4 * attributes), from `_appearance_quadrics`.
        tolerance: Largest error of a collapse in metres.
        finest: The error limit starts at tolerance / finest and doubles until it reaches the tolerance.
        sweeps: Largest number of passes over the vertices at each limit.
        most: Largest number of faces around the two vertices of an edge that collapses.
        flip: Smallest cosine of the angle by which a face may rotate.
        longest: Longest new edge in metres.
    """
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
                known = _neighbours(gone, fan, count, vertex_of, wedge, near, times)
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
                    # The common neighbours must be those opposite the edge, else the mesh would become non-manifold.
                    other_count = _fan(other, heads, following, live, fan_there)
                    if other_count <= 0 or other_count + count > most:
                        continue
                    others = _neighbours(other, fan_there, other_count, vertex_of, wedge, near_there, times_there)
                    both = 0
                    for one in range(known):
                        for two in range(others):
                            both += near[one] == near_there[two]
                    if both != times[slot]:
                        continue
                    pairs = _wedge_pairs(gone, other, fan, count, points, vertex_of, wedge, olds, news, flip, longest)
                    if pairs == 0:
                        continue
                    cost += _change(looks, olds, news, pairs, points[other], spread)
                    if cost < cheapest:
                        cheapest, kept = cost, other
                if kept < 0:
                    continue
                pairs = _wedge_pairs(gone, kept, fan, count, points, vertex_of, wedge, olds, news, flip, longest)
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
