"""MuJoCo scenes: builds floor plans as MJCF and renders them by OpenGL, for training and to test the ray caster."""

from __future__ import annotations

import atexit
import math
from typing import Any

import numpy as np

from powerband.core.machine.gl_device import opengl_renderer
from powerband.recipes.sketchnav.env.world import CAMERA_M, FIELD_OF_VIEW
from powerband.recipes.sketchnav.plans.cell_codes import CEILING_COLOUR, CEILING_M, CELL_M, colours, heights

NEAR_CLIP_M, FAR_CLIP_M = 0.01, 60.0
"""Range of the depth buffer in metres."""
FLOOR_M = 0.05
"""Thickness of the boxes of floors and ceiling; a floor consists of boxes, because each room has its colour."""


def merge_into_boxes(cells: np.ndarray) -> list[tuple[int, int, int, int, int]]:
    """Covers a plan with rectangles that do not overlap, so that a scene has fewer boxes.

    Args:
        cells: Codes of the plan's cells (H rows, W columns) uint8: numbers for floor, wall, door frame or furniture.
            All cells of a rectangle have the same code.

    Returns:
        (code, x0, y0, x1, y1) of each rectangle, in cells; x1 and y1 are exclusive.
    """
    uncovered, boxes = np.ones(cells.shape, bool), []
    for y in range(cells.shape[0]):
        for x in range(cells.shape[1]):
            if not uncovered[y, x]:
                continue
            code, x1, y1 = cells[y, x], x + 1, y + 1
            while x1 < cells.shape[1] and uncovered[y, x1] and cells[y, x1] == code:
                x1 += 1
            while y1 < cells.shape[0] and uncovered[y1, x:x1].all() and (cells[y1, x:x1] == code).all():
                y1 += 1
            uncovered[y:y1, x:x1] = False
            boxes.append((int(code), x, y, x1, y1))
    return boxes


def scene_xml(cells: np.ndarray) -> str:
    """Returns the MJCF text (MuJoCo's XML) of a plan with the camera ``eye``.

    The y axis of the scene points up, so the y of the plan is negated.

    Args:
        cells: Codes of the plan's cells (H rows, W columns) uint8: numbers for floor, wall, door frame or furniture.
    """
    tall, colour = heights(), colours()
    height, width = (side * CELL_M for side in cells.shape)

    def box(x: float, y: float, z: float, half: tuple[float, float, float], shade: Any) -> str:
        rgba = " ".join(f"{value / 255:.3f}" for value in shade)
        at, size = f"{x:.4f} {-y:.4f} {z:.4f}", " ".join(f"{value:.4f}" for value in half)
        return f'<geom type="box" pos="{at}" size="{size}" rgba="{rgba} 1" contype="0" conaffinity="0"/>'

    geoms = []
    for code, x0, y0, x1, y1 in merge_into_boxes(cells):
        half = ((x1 - x0) * CELL_M / 2, (y1 - y0) * CELL_M / 2)
        x, y = (x0 + x1) * CELL_M / 2, (y0 + y1) * CELL_M / 2
        up = float(tall[code]) or -FLOOR_M
        geoms.append(box(x, y, up / 2, (*half, abs(up) / 2), colour[code]))
    slab = (width / 2, height / 2, FLOOR_M / 2)
    geoms.append(box(width / 2, height / 2, CEILING_M + FLOOR_M / 2, slab, CEILING_COLOUR))
    # There is no floor under furniture: a slab below everything closes these holes.
    geoms.append(box(width / 2, height / 2, -1.5 * FLOOR_M, slab, (128, 128, 128)))
    return (
        f'<mujoco><statistic extent="1" center="0 0 0"/>'
        f'<visual><map znear="{NEAR_CLIP_M}" zfar="{FAR_CLIP_M}"/><quality shadowsize="0" offsamples="0"/>'
        f'<headlight ambient="0.55 0.55 0.55" diffuse="0.45 0.45 0.45" specular="0 0 0"/></visual>'
        f'<worldbody><camera name="eye" fovy="{math.degrees(FIELD_OF_VIEW):.6f}"/>{"".join(geoms)}</worldbody></mujoco>'
    )


class RenderContext:
    """The OpenGL context of this process for images of one size.

    Plans consist of boxes, which need no data in the context. One context therefore serves all plans; one context per
    plan makes a software renderer very slow.

    Args:
        model: MuJoCo model of any plan.
        pixels: S, side of the images.

    Attributes:
        device: Name of the device that renders, as OpenGL reports it.
    """

    def __init__(self, model: Any, pixels: int) -> None:
        import mujoco

        model.vis.global_.offwidth = model.vis.global_.offheight = pixels
        self.gl = mujoco.GLContext(pixels, pixels)
        self.gl.make_current()
        atexit.register(self.gl.free)
        self.context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_50)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self.context)
        self.context.readDepthMap = mujoco.mjtDepthMap.mjDEPTH_ZEROFAR
        self.device = opengl_renderer()
        self.rect = mujoco.MjrRect(0, 0, pixels, pixels)
        self.rgb = np.empty((pixels, pixels, 3), np.uint8)
        self.near = np.empty((pixels, pixels), np.float32)
        self._draw, self._read = mujoco.mjr_render, mujoco.mjr_readPixels

    def draw(self, scene: Any) -> tuple[np.ndarray, np.ndarray]:
        """Renders a scene.

        Args:
            scene: MuJoCo scene.

        Returns:
            Copies of the colours (S, S, 3) uint8 and of the depth buffer (S, S) float32, with S x S pixels. A depth of
            1 is the near clipping plane, 0 the far one.
        """
        self.gl.make_current()
        self._draw(self.rect, scene, self.context)
        self._read(self.rgb, self.near, self.rect, self.context)
        return self.rgb[::-1].copy(), self.near[::-1].copy()


_contexts: dict[int, RenderContext] = {}
"""Contexts of this process by the side of their images."""


class MujocoRenderer:
    """Renderer of one plan by MuJoCo.

    Args:
        cells: Codes of the plan's cells (H rows, W columns) uint8: numbers for floor, wall, door frame or furniture.
        pixels: S, side of the images.

    Attributes:
        device: Name of the device that renders, as OpenGL reports it.
    """

    def __init__(self, cells: np.ndarray, pixels: int) -> None:
        import mujoco

        self.model = mujoco.MjModel.from_xml_string(scene_xml(cells))
        self.data = mujoco.MjData(self.model)
        if pixels not in _contexts:
            _contexts[pixels] = RenderContext(self.model, pixels)
        self.context = _contexts[pixels]
        self.device = self.context.device
        mujoco.mj_forward(self.model, self.data)
        self.scene, self.eye = mujoco.MjvScene(self.model, maxgeom=self.model.ngeom), mujoco.MjvCamera()
        self.eye.type, self.eye.fixedcamid = mujoco.mjtCamera.mjCAMERA_FIXED, self.model.camera("eye").id
        every, option = mujoco.mjtCatBit.mjCAT_ALL, mujoco.MjvOption()
        mujoco.mjv_updateScene(self.model, self.data, option, None, self.eye, every, self.scene)
        self._look, self._light = mujoco.mjv_updateCamera, mujoco.mjv_makeLights

    def render(self, x: float, y: float, heading: float) -> tuple[np.ndarray, np.ndarray]:
        """Renders the view of an agent. Only the camera and its light move.

        Args:
            x, y: Position on the plan in metres.
            heading: Heading in radians, clockwise on the plan from the x axis.

        Returns:
            Colours (S, S, 3) uint8, and depth (S, S) float32 in metres along the axis of the camera.
        """
        sin, cos = math.sin(heading), math.cos(heading)
        self.data.cam_xpos[self.eye.fixedcamid] = (x, -y, CAMERA_M)
        # The columns point right, up and back, because the camera looks along -z.
        self.data.cam_xmat[self.eye.fixedcamid] = (-sin, 0, -cos, -cos, 0, sin, 0, 1, 0)
        self._look(self.model, self.data, self.eye, self.scene)
        self._light(self.model, self.data, self.scene)  # the headlight moves with the camera
        rgb, near = self.context.draw(self.scene)
        return rgb, NEAR_CLIP_M * FAR_CLIP_M / (NEAR_CLIP_M + near * (FAR_CLIP_M - NEAR_CLIP_M))
