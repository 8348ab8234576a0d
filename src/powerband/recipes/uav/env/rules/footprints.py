"""Footprints: the cells of the map that the cameras see. Rows run along lattice x, as in the feature maps.

Parameter names as in `moves`.
"""

import numpy as np

from powerband.envs.numba.hashing import inlined


@inlined
def update_footprints(s, w, n):
    """Writes the footprints of all UAVs to `rect`."""
    for i in range(w.agents):
        x, y, z = s.position[n, i, 0], s.position[n, i, 1], s.position[n, i, 2]
        s.rect[n, i, 0] = w.low[z, x]
        s.rect[n, i, 1] = w.high[z, x]
        s.rect[n, i, 2] = w.low[z, y]
        s.rect[n, i, 3] = w.high[z, y]


@inlined
def low_y(s, n, i):
    """Returns the first row of the footprint of UAV `i`."""
    return np.int64(s.rect[n, i, 0])


@inlined
def high_y(s, n, i):
    """Returns the row after the last one of the footprint."""
    return np.int64(s.rect[n, i, 1])


@inlined
def low_x(s, n, i):
    """Returns the first column of the footprint."""
    return np.int64(s.rect[n, i, 2])


@inlined
def high_x(s, n, i):
    """Returns the column after the last one of the footprint."""
    return np.int64(s.rect[n, i, 3])
