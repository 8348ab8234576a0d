"""Cell codes: defines the numbers for the contents of a cell of a floor plan, and the height and colour of each."""

from __future__ import annotations

import numpy as np

CELL_M = 0.1
"""Side of a cell in metres."""
CEILING_M = 2.5
FLOORS = tuple(range(0, 6))
WALLS = tuple(range(8, 14))
FRAMES = (16, 17)
"""Codes of the ends of a wall at a door."""
FURNITURE = tuple(range(24, 32))
NUM_CODES = 32
CEILING_COLOUR = (236, 234, 228)

_COLOURS = {
    **dict(
        zip(
            FLOORS,
            [(164, 128, 92), (122, 92, 66), (150, 150, 146), (96, 112, 120), (178, 160, 128), (110, 80, 84)],
            strict=True,
        )
    ),
    **dict(
        zip(
            WALLS,
            [(222, 216, 200), (190, 206, 214), (214, 196, 170), (196, 214, 186), (226, 202, 202), (206, 200, 222)],
            strict=True,
        )
    ),
    **dict(zip(FRAMES, [(92, 52, 24), (40, 60, 92)], strict=True)),
    **dict(
        zip(
            FURNITURE,
            [
                (176, 44, 44),
                (40, 96, 168),
                (56, 132, 60),
                (214, 150, 36),
                (120, 56, 140),
                (30, 140, 140),
                (78, 78, 84),
                (226, 110, 60),
            ],
            strict=True,
        )
    ),
}
_FURNITURE_HEIGHTS_M = (0.42, 0.5, 0.45, 0.75, 0.72, 1.1, 1.4, 1.9)


def heights() -> np.ndarray:
    """Returns heights (32,) float32 in metres above the floor, indexed by the code of a cell.

    The code says what the cell contains. A cell of height 0 is free.
    """
    metres = np.zeros(NUM_CODES, np.float32)
    metres[list(WALLS + FRAMES)] = CEILING_M
    metres[list(FURNITURE)] = _FURNITURE_HEIGHTS_M
    return metres


def colours() -> np.ndarray:
    """Returns RGB colours (33, 3) float32 in 0..255, indexed by the code of a cell.

    The code says what the cell contains. The last row is the colour of the ceiling.
    """
    rgb = np.zeros((NUM_CODES + 1, 3), np.float32)
    for code, colour in _COLOURS.items():
        rgb[code] = colour
    rgb[NUM_CODES] = CEILING_COLOUR
    return rgb
