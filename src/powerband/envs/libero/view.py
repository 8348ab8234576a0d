"""Frames of a simulation of LIBERO, by MuJoCo's own renderer. No torch here.

A processor draws as fast as it has triangles, and a scene has 300,000 of them: a bowl that is twelve pixels wide has
42,000. So what lies outside of a camera's view is left out, and meshes are drawn about as finely as frames can show.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np

from powerband.envs.drawing import drawn_by
from powerband.envs.libero.kept_meshes import coarse_corners

VISUAL = (0, 1, 0, 0, 0, 0)
"""Groups of geometry that are drawn: robosuite's first is for collisions."""
UNDRAWN = 5
"""A group that nobody draws."""
TOLERANCE_M = 0.0005 * 128
"""Metres that a surface may be simplified by, for one pixel; more pixels get less."""
DISTANT = ("robot0_", "mount0_")
"""Bodies that the camera in the hand never comes near to: the arm and what it stands on, without the hand."""
FURTHER = 3
"""How much more they may be simplified."""
LEAST = 100
"""Meshes of fewer faces stay as they are."""
CORNERS = ("mesh_face", "mesh_facenormal", "mesh_facetexcoord")
"""What a model says of each face: its corners' places, normals and texture coordinates, by number."""
Quality = Literal["coarse", "plain", "full"]


class View:
    """Frames of a simulation.

    Args:
        sim: robosuite's simulation, which stays as it is.
        pixels: Side of a frame.
        quality: "full" renders shadows, reflections and multisampling, as the package does. "plain" does not, and
            leaves out what is not seen. "coarse" simplifies meshes besides, to about the detail that `pixels` can show;
            the first time takes seconds, then they are kept in the user's cache folder.
    """

    def __init__(self, sim: Any, pixels: int, quality: Quality = "coarse") -> None:
        import mujoco

        self.model, self.data = sim.model._model, sim.data._data
        if quality != "full":
            self.model.vis.quality.offsamples = 0  # read when the renderer is made
        with simplified(self.model, pixels) if quality == "coarse" else contextlib.nullcontext():
            self.renderer = mujoco.Renderer(self.model, pixels, pixels)
        self.device = drawn_by()
        self.drawn = mujoco.MjvOption()
        self.drawn.geomgroup[:] = VISUAL
        self.off, self.culls = (), quality != "full"  # what is not seen casts shadows all the same
        if quality != "full":
            self.off = (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION)

    def see(self, camera: str) -> np.ndarray:
        """(pixels, pixels, 3) uint8, upright."""
        groups = self.model.geom_group.copy()
        if self.culls:
            self.model.geom_group[~self.in_view(camera)] = UNDRAWN
        self.renderer.update_scene(self.data, camera, self.drawn)
        self.model.geom_group[:] = groups
        for flag in self.off:
            self.renderer.scene.flags[flag] = 0
        return self.renderer.render()

    def in_view(self, camera: str) -> np.ndarray:
        """(geometries,) bool: those whose ball reaches into the pyramid that a camera sees; planes have no end."""
        number = self.model.camera(camera).id
        half = math.radians(float(self.model.cam_fovy[number])) / 2
        away = (self.data.geom_xpos - self.data.cam_xpos[number]) @ self.data.cam_xmat[number].reshape(3, 3)
        radius = np.where(self.model.geom_rbound > 0, self.model.geom_rbound, np.inf)
        beside = np.abs(away[:, :2]).max(1)  # of the sides of the pyramid; a frame is square
        return beside * math.cos(half) + away[:, 2] * math.sin(half) <= radius

    def close(self) -> None:
        """Frees the GL context."""
        self.renderer.close()


@contextlib.contextmanager
def simplified(model: Any, pixels: int) -> Iterator[None]:
    """A model whose meshes have fewer faces within; a renderer that is made there draws these for good.

    Only faces change, which MuJoCo's contacts never ask for, and they are put back as they were.
    """
    before = {name: getattr(model, name).copy() for name in ("mesh_facenum", *CORNERS)}
    try:
        for mesh, tolerance in tolerances(model, pixels).items():
            begin, count = model.mesh_faceadr[mesh], model.mesh_facenum[mesh]
            left = coarse_corners(*_corners(model, mesh), tolerance)
            for name in CORNERS:
                faces = getattr(model, name)[begin : begin + count]
                faces[: len(left)] = faces.reshape(-1)[left]
            model.mesh_facenum[mesh] = len(left)
        yield
    finally:
        for name, faces in before.items():
            getattr(model, name)[:] = faces


def tolerances(model: Any, pixels: int) -> dict[int, float]:
    """Mesh -> metres that its surface may be simplified by, of those that are drawn and have faces to spare."""
    import mujoco

    found: dict[int, float] = {}
    for geom in range(model.ngeom):
        mesh = int(model.geom_dataid[geom])
        if not VISUAL[model.geom_group[geom]] or model.geom_type[geom] != mujoco.mjtGeom.mjGEOM_MESH:
            continue
        distant = model.body(model.geom_bodyid[geom]).name.startswith(DISTANT)
        if model.mesh_facenum[mesh] >= LEAST:
            most = TOLERANCE_M / pixels * (FURTHER if distant else 1)
            found[mesh] = min(found.get(mesh, most), most)
    return found


def _corners(model: Any, mesh: int) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """(faces, 3, 3) places and normals and (faces, 3, 2) texture coordinates of each corner, None where it has none."""
    faces = slice(model.mesh_faceadr[mesh], model.mesh_faceadr[mesh] + model.mesh_facenum[mesh])
    places = model.mesh_vert[model.mesh_vertadr[mesh] + model.mesh_face[faces]]
    normals = model.mesh_normal[model.mesh_normaladr[mesh] + model.mesh_facenormal[faces]]
    if model.mesh_texcoordadr[mesh] < 0:
        return places, normals, None
    return places, normals, model.mesh_texcoord[model.mesh_texcoordadr[mesh] + model.mesh_facetexcoord[faces]]
