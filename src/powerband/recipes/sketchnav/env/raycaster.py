"""Ray caster: renders one column of a camera image at a time, from near to far, over cells of different heights.

The ray of a column passes the cells of the plan below it. A near cell hides what lies behind and below it. Each cell
therefore adds pixel rows above the filled rows: first its top (or the floor), then the front face of the next cell,
until a wall closes the view. The rows that remain above show the ceiling.

In the functions, `s` are the arrays of all agents (`AgentArrays`), `w` the arrays of the world (`WorldArrays`), and `n`
is the index of an agent.
"""

import math

from powerband.envs.numba.hashing import inlined
from powerband.recipes.sketchnav.env.world import CAMERA_M
from powerband.recipes.sketchnav.plans.cell_codes import CEILING_M, NUM_CODES
from powerband.recipes.sketchnav.plans.episodes.episodes import CELL_UNITS

SHADOW = 0.8
"""Factor on the light of faces whose normal is along y."""
TILE, TILE_LIGHT = 5, 0.93
"""Cells along a tile of the floor, and the light of every other tile."""
PANEL, PANEL_LIGHT = 6, 0.95
"""Cells along a panel of a wall, and the light of every other panel."""


@inlined
def paint(rgb, depth, n, row, column, red, green, blue, z, scale, offset, top):
    """Writes the colour and the depth of one pixel of agent `n`.

    Args:
        rgb: Colours (N, 3, S, S) uint8 of N agents with images of S x S pixels.
        depth: Depth (N, 1, S, S), written as `scale` z + `offset`, limited to 0..`top`.
        n: Index of the agent.
        row, column: Position of the pixel.
        red, green, blue: Colour in 0..255.
        z: Depth in metres.
        scale, offset, top: Numbers that convert z to the written depth.
    """
    rgb[n, 0, row, column] = red
    rgb[n, 1, row, column] = green
    rgb[n, 2, row, column] = blue
    depth[n, 0, row, column] = min(max(scale * z + offset, 0.0), top)


@inlined
def render_column(s, w, n, column, rgb, depth, scale, offset, top):
    """Renders one column of the camera image of agent `n`.

    Args:
        s: State of all agents (`AgentArrays`).
        w: Plans, episodes and lookup tables (`WorldArrays`).
        n: Index of the agent.
        column: Column of the image.
        rgb: Colours (N, 3, S, S) uint8 of N agents with images of S x S pixels; written.
        depth: Depth (N, 1, S, S); written as `scale` z + `offset`, limited to 0..`top`, for a depth of z metres.
        scale, offset, top: Numbers that convert z to the written depth.
    """
    plan = w.plan[s.episode[n]]
    first, width = w.cells_at[plan], w.size[plan, 1]
    heading, size = s.heading[n], w.pixels
    dx, dy = w.ray[heading, column, 0], w.ray[heading, column, 1]
    px, py = s.at[n, 0] / CELL_UNITS, s.at[n, 1] / CELL_UNITS
    cx, cy = s.at[n, 0] // CELL_UNITS, s.at[n, 1] // CELL_UNITS
    step_x, step_y = 1 if dx > 0 else -1, 1 if dy > 0 else -1
    each_x, each_y = (1.0 / abs(dx) if dx != 0 else 1e9), (1.0 / abs(dy) if dy != 0 else 1e9)
    next_x = (cx + 1 - px if dx > 0 else px - cx) * each_x
    next_y = (cy + 1 - py if dy > 0 else py - cy) * each_y
    code = w.cells[first + cy * width + cx]
    height, edge, middle = w.height[code], size, size / 2 - 0.5
    while True:
        z = max(min(next_x, next_y), 1e-9)
        if height < CAMERA_M:  # the floor, or the top of a low cell, up to the end of this cell
            row = max(int(math.ceil((CAMERA_M - height) / z * w.focal + middle)), 0)
            if row < edge:
                light = TILE_LIGHT if (cx // TILE + cy // TILE) & 1 and height == 0.0 else 1.0
                red, green, blue = w.colour[code, 0] * light, w.colour[code, 1] * light, w.colour[code, 2] * light
                for r in range(row, edge):
                    if height == 0.0:
                        far, dim = w.row_z[r], w.row_light[r]
                    else:
                        far = (CAMERA_M - height) * w.row_z[r] / CAMERA_M
                        dim = 1.0 / (1.0 + w.shading * far)
                    paint(rgb, depth, n, r, column, red * dim, green * dim, blue * dim, far, scale, offset, top)
                edge = row
        along_y = next_x < next_y
        if along_y:
            cx += step_x
            next_x += each_x
        else:
            cy += step_y
            next_y += each_y
        code = w.cells[first + cy * width + cx]
        height = w.height[code]
        if height > 0.0:
            row = max(int(math.ceil((CAMERA_M - height) / z * w.focal + middle)), 0)
            if row < edge:
                light = (1.0 if along_y else SHADOW) / (1.0 + w.shading * z)
                if height >= CEILING_M and ((cy if along_y else cx) // PANEL) & 1:
                    light *= PANEL_LIGHT
                red, green, blue = w.colour[code, 0] * light, w.colour[code, 1] * light, w.colour[code, 2] * light
                for r in range(row, edge):
                    paint(rgb, depth, n, r, column, red, green, blue, z, scale, offset, top)
                edge = row
            if height >= CEILING_M or edge == 0:
                break
    for r in range(edge):
        dim = w.row_light[r]
        red, green, blue = w.colour[NUM_CODES, 0], w.colour[NUM_CODES, 1], w.colour[NUM_CODES, 2]
        paint(rgb, depth, n, r, column, red * dim, green * dim, blue * dim, w.row_z[r], scale, offset, top)
