"""Mesh simplification: collapses edges, cheapest first, while the surface stays within a tolerance. No torch here.

Corners are only removed, never created or moved: each face of the result has three corners of the original, so
positions, normals and texture coordinates are the original ones. At a discontinuity of the texture or the shading (a
seam, a crease, a border), edges collapse along it only, and each side keeps its own coordinates.
Source: Garland and Heckbert, Surface Simplification Using Quadric Error Metrics, 1997, with half-edge collapses.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from powerband.recipes.libero.env.edge_collapse import collapse, vertex_quadrics

CREASE = math.cos(math.radians(40))
"""Cosine of the angle between two normals at one position, below which a crease separates them."""
TEXTURE = 1e-5
"""Distance of two texture coordinates at one position, above which a seam separates them."""
NORMAL_M = 0.001
"""Error in metres that equals the rotation of a normal by one radian."""
TEXTURE_M = 0.1
"""Error in metres that equals a shift of the texture by one metre on the surface."""
FINEST, SWEEPS = 32, 6
"""Collapses start at 1 / FINEST of the tolerance, which doubles; SWEEPS limits the passes over the mesh per value."""
CURVE_BITS = 10
"""Bits per axis of the space-filling curve that orders the faces."""
MAX_FAN = 64
"""Largest number of faces around a vertex that may be removed."""
MIN_FACE_COSINE = 0.2
"""Smallest cosine of the angle by which a collapse may rotate a face."""
LONGEST_M = 0.1
"""Longest new edge in metres: OpenGL computes light at corners, and the light on long edges is uneven."""


def simplify_mesh(
    positions: np.ndarray, normals: np.ndarray, texture: np.ndarray | None, tolerance: float
) -> np.ndarray:
    """Simplifies a mesh.

    Args:
        positions: Positions of each corner (faces, 3, 3) in metres.
        normals: Unit normals of each corner (faces, 3, 3).
        texture: Texture coordinates of each corner (faces, 3, 2); None if the mesh has no texture.
        tolerance: Largest root-mean-square distance in metres of the moved surface from the original planes.

    Returns:
        Corners of the remaining faces (remaining faces, 3) int32, as indices of the 3 * faces original corners.
    """
    count = len(positions)
    points, vertex = np.unique(positions.reshape(-1, 3), axis=0, return_inverse=True)
    vertex = vertex.reshape(-1).astype(np.int64)
    uv = np.zeros((count * 3, 2)) if texture is None else texture.reshape(-1, 2).astype(np.float64)
    points = points.astype(np.float64)
    order = np.argsort(vertex, kind="stable")
    wedge = _wedges(order, vertex, normals.reshape(-1, 3).astype(np.float64), uv, CREASE, TEXTURE)
    first = np.unique(wedge, return_index=True)[1]  # one corner of each wedge
    faces = vertex.reshape(-1, 3)
    live = (faces != np.roll(faces, 1, 1)).all(1)
    edges = np.sort(np.stack([wedge.reshape(-1, 3), np.roll(wedge.reshape(-1, 3), -1, 1)], -1), -1).reshape(-1, 2)
    shared, times = np.unique(edges, axis=0, return_inverse=True, return_counts=True)[1:]
    breaks = (times[shared.reshape(-1)] != 2).reshape(-1, 3)
    vertex_of = vertex[first]
    spread = np.concatenate([normals.reshape(-1, 3) * NORMAL_M, uv * _texture_scale(points[faces], uv)], 1)[first]
    quadrics = vertex_quadrics(points, vertex_of, wedge, live, breaks)
    looks = _appearance_quadrics(points, vertex_of, spread, wedge, live)
    limits = float(tolerance), FINEST, SWEEPS, MAX_FAN, MIN_FACE_COSINE, LONGEST_M
    collapse(points, vertex_of, spread, wedge, live, quadrics, looks, *limits)
    remaining = first[wedge.reshape(-1, 3)[live]].astype(np.int32)
    return remaining[_curve_order(positions.reshape(-1, 3)[remaining].mean(1))]


def _curve_order(points: np.ndarray) -> np.ndarray:
    """Returns the indices (n,) that sort points (n, 3) along Morton's curve.

    In this order, a renderer finds the corners of neighbours in its cache.
    """
    size = max(float(np.ptp(points, axis=0).max()), 1e-12) if len(points) else 1.0
    cells = ((points - points.min(0, initial=np.inf)) / size * (2**CURVE_BITS - 1)).astype(np.int64)
    code = np.zeros(len(points), np.int64)
    for bit in range(CURVE_BITS):
        for axis in range(3):
            code |= (cells[:, axis] >> bit & 1) << (3 * bit + axis)
    return np.argsort(code, kind="stable")


def _texture_scale(positions: np.ndarray, uv: np.ndarray) -> float:
    """Returns the error in metres that equals a unit of the texture coordinates; 0 if the mesh has no texture.

    positions: Corners of the faces (faces, 3, 3). uv: Texture coordinates of the corners (3 * faces, 2).
    """
    ab = np.diff(uv.reshape(-1, 3, 2), axis=1)
    mapped = np.abs(ab[:, 0, 0] * ab[:, 1, 1] - ab[:, 0, 1] * ab[:, 1, 0]).sum()
    area = np.linalg.norm(np.cross(*(np.diff(positions, axis=1).transpose(1, 0, 2))), axis=-1).sum()
    return TEXTURE_M * math.sqrt(area / mapped) if mapped > 1e-12 else 0.0


@njit(cache=True, nogil=True)
def _wedges(order, vertex, normals, uv, crease, near):
    """Returns the index of each corner's wedge.

    Corners of one vertex on the same side of all seams and creases share a wedge.

    Args:
        order: Corners sorted by vertex.
        vertex: Vertex of each corner.
        normals: Normal of each corner.
        uv: Texture coordinates of each corner.
        crease: Cosine between normals below which a crease separates two corners.
        near: Distance of texture coordinates above which a seam separates two corners.
    """
    wedge = np.empty(len(vertex), np.int64)
    heads = np.empty(len(vertex), np.int64)
    made, begin = 0, 0
    while begin < len(order):
        end, own = begin, made
        while end < len(order) and vertex[order[end]] == vertex[order[begin]]:
            corner, found = order[end], -1
            for other in range(own, made):
                head = heads[other]
                away = max(abs(uv[corner, 0] - uv[head, 0]), abs(uv[corner, 1] - uv[head, 1]))
                turn = 0.0
                for axis in range(3):
                    turn += normals[corner, axis] * normals[head, axis]
                if away <= near and turn >= crease:
                    found = other
                    break
            if found < 0:
                heads[made], found = corner, made
                made += 1
            wedge[corner] = found
            end += 1
        begin = end
    return wedge


@njit(cache=True, nogil=True)
def _appearance_quadrics(points, vertex_of, spread, wedge, live):
    """Computes the quadrics (wedges, 11 + 4 * kinds) of appearance: normal and texture over the faces at each wedge.

    On a face, each attribute is ``gradient * point + offset``. A quadric holds the ten entries of the sum of squares,
    the weight, and the sum of gradient and offset of each attribute. The docstring of edge_collapse.py explains the
    arrays.
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
        if inside < 1e-6 * xx * yy or inside < 1e-24:  # the gradient of a degenerate triangle is undefined
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
