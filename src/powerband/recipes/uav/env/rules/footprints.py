"""Footprints: computes the rectangles of map cells that the cameras see.

Rows of the map run along lattice x. Parameter names: `s` is a `MissionArrays`, the state of all missions; `w` is a
`WorldArrays`, the constants of the world; `n` is the index of the mission in `s`; `i` is a UAV.
"""

import numpy as np

from powerband.envs.numba.hashing import inlined


@inlined
def update_footprints(s, w, n):
    """Writes the footprint of each UAV of mission `n`, the rectangle that its camera sees, to `s.rect`.

    `s`: state of all missions; `w`: constants of the world.
    """
    for i in range(w.agents):
        x, y, z = s.position[n, i, 0], s.position[n, i, 1], s.position[n, i, 2]
        s.rect[n, i, 0] = w.low[z, x]
        s.rect[n, i, 1] = w.high[z, x]
        s.rect[n, i, 2] = w.low[z, y]
        s.rect[n, i, 3] = w.high[z, y]


@inlined
def low_y(s, n, i):
    """Returns the first map row in the footprint of UAV `i` of mission `n`. `s`: state of all missions."""
    return np.int64(s.rect[n, i, 0])


@inlined
def high_y(s, n, i):
    """Returns the map row after the last one in the footprint of UAV `i` of mission `n`. `s`: state of all missions."""
    return np.int64(s.rect[n, i, 1])


@inlined
def low_x(s, n, i):
    """Returns the first map column in the footprint of UAV `i` of mission `n`. `s`: state of all missions."""
    return np.int64(s.rect[n, i, 2])


@inlined
def high_x(s, n, i):
    """Returns the map column after the last one in the footprint of UAV `i` of mission `n`.

    `s`: state of all missions.
    """
    return np.int64(s.rect[n, i, 3])
