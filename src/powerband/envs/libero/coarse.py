"""A mesh with fewer faces: edges are collapsed, cheapest first, while the surface stays where it was. No torch here.

Corners are only left out, never made or moved: each face of the result is three corners of the original, so places,
normals and texture coordinates are the original ones. Where the texture or the shading breaks off (a seam, a crease, a
border), edges collapse along the break only, in such a way that each side keeps its own coordinates.
Source: Garland and Heckbert, Surface Simplification Using Quadric Error Metrics, 1997, with half-edge collapses.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from powerband.envs.libero.collapse import collapse, looks_of, quadrics_of

CREASE = math.cos(math.radians(40))
"""Normals of one place that are further apart belong to different sides of a crease."""
TEXTURE = 1e-5
"""Texture coordinates of one place that are further apart belong to different sides of a seam."""
NORMAL_M = 0.001
"""Metres that a normal's turn by one radian counts as."""
TEXTURE_M = 0.1
"""Metres that a texture's shift by one metre of the surface counts as."""
FINEST, SWEEPS = 32, 6
"""Collapses begin at this part of the tolerance; passes over the mesh at each doubling of it, at most."""
CELLS = 10
"""Halvings of a mesh for the order of its faces."""
FAN = 64
"""Faces around a vertex at most; where there are more it stays."""
FLIP = 0.2
"""Cosine of the turn of a face at most."""
LONGEST_M = 0.1
"""An edge at most that a collapse makes: OpenGL computes light at corners, and a large table is lit unevenly."""


def coarse(places: np.ndarray, normals: np.ndarray, texture: np.ndarray | None, tolerance: float) -> np.ndarray:
    """Which corners of a mesh are left.

    Args:
        places: (faces, 3, 3) metres, of each corner.
        normals: (faces, 3, 3), unit.
        texture: (faces, 3, 2) coordinates; None has none.
        tolerance: Metres from the original's planes, root mean square, that a collapse may move the surface at most.

    Returns:
        (faces left, 3) int32: numbers of corners, of 3 * faces.
    """
    count = len(places)
    points, vertex = np.unique(places.reshape(-1, 3), axis=0, return_inverse=True)
    vertex = vertex.reshape(-1).astype(np.int64)
    uv = np.zeros((count * 3, 2)) if texture is None else texture.reshape(-1, 2).astype(np.float64)
    points = points.astype(np.float64)
    order = np.argsort(vertex, kind="stable")
    wedge = _wedges(order, vertex, normals.reshape(-1, 3).astype(np.float64), uv, CREASE, TEXTURE)
    first = np.unique(wedge, return_index=True)[1]  # the corner that stands for a wedge
    faces = vertex.reshape(-1, 3)
    live = (faces != np.roll(faces, 1, 1)).all(1)
    edges = np.sort(np.stack([wedge.reshape(-1, 3), np.roll(wedge.reshape(-1, 3), -1, 1)], -1), -1).reshape(-1, 2)
    shared, times = np.unique(edges, axis=0, return_inverse=True, return_counts=True)[1:]
    breaks = (times[shared.reshape(-1)] != 2).reshape(-1, 3)
    of = vertex[first]
    spread = np.concatenate([normals.reshape(-1, 3) * NORMAL_M, uv * _metres_of(points[faces], uv)], 1)[first]
    quadrics, looks = quadrics_of(points, of, wedge, live, breaks), looks_of(points, of, spread, wedge, live)
    limits = float(tolerance), FINEST, SWEEPS, FAN, FLIP, LONGEST_M
    collapse(points, of, spread, wedge, live, quadrics, looks, *limits)
    left = first[wedge.reshape(-1, 3)[live]].astype(np.int32)
    return left[_along_curve(places.reshape(-1, 3)[left].mean(1))]


def _along_curve(points: np.ndarray) -> np.ndarray:
    """Order of points (n, 3) along Morton's curve: neighbours follow each other, and a renderer has their corners."""
    size = max(float(np.ptp(points, axis=0).max()), 1e-12) if len(points) else 1.0
    cells = ((points - points.min(0, initial=np.inf)) / size * (2**CELLS - 1)).astype(np.int64)
    place = np.zeros(len(points), np.int64)
    for bit in range(CELLS):
        for axis in range(3):
            place |= (cells[:, axis] >> bit & 1) << (3 * bit + axis)
    return np.argsort(place, kind="stable")


def _metres_of(places: np.ndarray, uv: np.ndarray) -> float:
    """Metres that a unit of the texture counts as; 0 where there is no texture."""
    ab = np.diff(uv.reshape(-1, 3, 2), axis=1)
    mapped = np.abs(ab[:, 0, 0] * ab[:, 1, 1] - ab[:, 0, 1] * ab[:, 1, 0]).sum()
    area = np.linalg.norm(np.cross(*(np.diff(places, axis=1).transpose(1, 0, 2))), axis=-1).sum()
    return TEXTURE_M * math.sqrt(area / mapped) if mapped > 1e-12 else 0.0


@njit(cache=True, nogil=True)
def _wedges(order, vertex, normals, uv, crease, near):
    """Number of each corner's wedge: corners of one vertex that are on the same side of seams and creases share one."""
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
