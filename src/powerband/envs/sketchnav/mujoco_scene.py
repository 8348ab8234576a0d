"""A floor plan as a MuJoCo scene: real GL pictures of the same walls, to compare with and to train on."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..drawing import drawn_by
from .surfaces import CEILING_COLOUR, CEILING_M, CELL_M, colours, heights
from .world import CAMERA_M, FIELD_OF_VIEW

FLOOR_M = 0.05
"""Floors and ceiling are boxes so thick, so that each room has a colour of its own."""


def boxes(cells: np.ndarray) -> list[tuple[int, int, int, int, int]]:
    """(code, x0, y0, x1, y1) of rectangles of one code that cover `cells` (H, W) uint8 without overlap."""
    left, found = np.ones(cells.shape, bool), []
    for y in range(cells.shape[0]):
        for x in range(cells.shape[1]):
            if not left[y, x]:
                continue
            code, x1, y1 = cells[y, x], x + 1, y + 1
            while x1 < cells.shape[1] and left[y, x1] and cells[y, x1] == code:
                x1 += 1
            while y1 < cells.shape[0] and left[y1, x:x1].all() and (cells[y1, x:x1] == code).all():
                y1 += 1
            left[y:y1, x:x1] = False
            found.append((int(code), x, y, x1, y1))
    return found


def scene_xml(cells: np.ndarray) -> str:
    """MJCF of a plan, with the camera ``eye``: x to the right and y up, so that the y of plans is negated."""
    tall, colour = heights(), colours()
    height, width = (side * CELL_M for side in cells.shape)

    def box(x: float, y: float, z: float, half: tuple[float, float, float], shade: Any) -> str:
        rgba = " ".join(f"{value / 255:.3f}" for value in shade)
        at, size = f"{x:.4f} {-y:.4f} {z:.4f}", " ".join(f"{value:.4f}" for value in half)
        return f'<geom type="box" pos="{at}" size="{size}" rgba="{rgba} 1" contype="0" conaffinity="0"/>'

    geoms = []
    for code, x0, y0, x1, y1 in boxes(cells):
        half = ((x1 - x0) * CELL_M / 2, (y1 - y0) * CELL_M / 2)
        x, y = (x0 + x1) * CELL_M / 2, (y0 + y1) * CELL_M / 2
        up = float(tall[code]) or -FLOOR_M
        geoms.append(box(x, y, up / 2, (*half, abs(up) / 2), colour[code]))
    slab = (width / 2, height / 2, FLOOR_M / 2)
    geoms.append(box(width / 2, height / 2, CEILING_M + FLOOR_M / 2, slab, CEILING_COLOUR))
    # Furniture stands on the floor: a slab below everything closes the holes under it.
    geoms.append(box(width / 2, height / 2, -1.5 * FLOOR_M, slab, (128, 128, 128)))
    return (
        f'<mujoco><statistic extent="1" center="0 0 0"/>'
        f'<visual><map znear="0.01" zfar="60"/><quality shadowsize="0" offsamples="0"/>'
        f'<headlight ambient="0.55 0.55 0.55" diffuse="0.45 0.45 0.45" specular="0 0 0"/></visual>'
        f'<worldbody><camera name="eye" fovy="{math.degrees(FIELD_OF_VIEW):.6f}"/>{"".join(geoms)}</worldbody></mujoco>'
    )


class MujocoView:
    """Pictures of one plan, as MuJoCo renders them.

    Args:
        cells: (H, W) uint8 codes.
        pixels: Side of the pictures.
    """

    def __init__(self, cells: np.ndarray, pixels: int):
        import mujoco

        self.model = mujoco.MjModel.from_xml_string(scene_xml(cells))
        self.data = mujoco.MjData(self.model)
        self.renderer = mujoco.Renderer(self.model, pixels, pixels)
        self.device = drawn_by()
        self._move, self._eye = mujoco.mj_forward, self.model.camera("eye").id

    def see(self, x: float, y: float, heading: float) -> tuple[np.ndarray, np.ndarray]:
        """What an agent sees.

        Args:
            x, y: Metres on the plan.
            heading: Radians, clockwise on the plan from the x axis.

        Returns:
            Colours (S, S, 3) uint8 and depth (S, S) float32 in metres along the camera's axis.
        """
        half = -(heading + math.pi / 2) / 2  # the camera looks along -z with y up: first tilt it, then turn it
        turn, tilt = (math.cos(half), math.sin(half)), (math.cos(math.pi / 4), math.sin(math.pi / 4))
        quaternion = (turn[0] * tilt[0], turn[0] * tilt[1], turn[1] * tilt[1], turn[1] * tilt[0])
        self.model.cam_pos[self._eye] = (x, -y, CAMERA_M)
        self.model.cam_quat[self._eye] = quaternion
        self._move(self.model, self.data)
        self.renderer.disable_depth_rendering()
        self.renderer.update_scene(self.data, "eye")
        rgb = self.renderer.render().copy()
        self.renderer.enable_depth_rendering()
        self.renderer.update_scene(self.data, "eye")
        return rgb, self.renderer.render().copy()

    def close(self) -> None:
        """Frees the GL context."""
        self.renderer.close()
