"""LiberoRenderer: renders a LIBERO simulation with MuJoCo's own renderer and fewer triangles. No torch here.

A CPU renders at a rate in proportion to the triangles, and a scene has 300,000 of them: a bowl that is twelve pixels
wide has 42,000. Geometry outside a camera's view is therefore left out, and meshes are simplified to about the detail
that a frame can show.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from powerband.core.machine.gl_device import opengl_renderer
from powerband.recipes.libero.env.mesh_cache import cached_mesh_corners
from powerband.recipes.libero.settings import Quality

VISIBLE_GROUPS = (0, 1, 0, 0, 0, 0)
"""Mask of MuJoCo's geometry groups; robosuite's group 0 is for collisions and is not rendered."""
HIDDEN_GROUP = 5
"""Geometry group that is not rendered."""
TOLERANCE_M = 0.0005 * 128
"""Tolerance of the simplification in metres for frames of one pixel; it is inversely proportional to the pixels."""
DISTANT_BODIES = ("robot0_", "mount0_")
"""Prefixes of bodies that the wrist camera never comes near to: the arm without the hand, and its mount."""
DISTANT_FACTOR = 3
"""Factor on the tolerance of distant bodies."""
MIN_FACES = 100
"""Meshes with fewer faces are not simplified."""
CORNER_FIELDS = ("mesh_face", "mesh_facenormal", "mesh_facetexcoord")
"""Fields of a MuJoCo model with the indices of position, normal and texture coordinate of each corner of a face."""


class LiberoRenderer:
    """Renders frames of a simulation without lasting changes of its physics or state.

    Args:
        model: Model of the simulation, mujoco.MjModel.
        data: State of the simulation, mujoco.MjData.
        pixels: Side of a frame in pixels.
        quality: "full" renders shadows, reflections and multisampling, as LIBERO does. "plain" does not, and leaves
            out geometry outside the view. "coarse" is "plain" and simplifies meshes to about the detail that
            `pixels` can show. The first start takes seconds; later starts read the meshes from the disk cache.

    Attributes:
        culls: Whether geometry outside the view is left out.
        device: Name of the device that renders.
    """

    def __init__(self, model: Any, data: Any, pixels: int, quality: Quality = "coarse") -> None:
        import mujoco

        self.model, self.data = model, data
        if quality != "full":
            self.model.vis.quality.offsamples = 0  # the renderer's constructor reads it
        with simplify_model(self.model, pixels) if quality == "coarse" else contextlib.nullcontext():
            self.renderer = mujoco.Renderer(self.model, pixels, pixels)
        self.device = opengl_renderer()
        self.options = mujoco.MjvOption()
        self.options.geomgroup[:] = VISIBLE_GROUPS
        self.culls = quality != "full"  # geometry outside the view still casts shadows
        self.disabled_flags: tuple[Any, ...] = ()
        if quality != "full":
            self.disabled_flags = (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION)

    def render(self, camera: str) -> np.ndarray:
        """Renders a frame (pixels, pixels, 3) uint8, upright; `camera` is the name of a camera in the model."""
        groups = self.model.geom_group.copy()
        if self.culls:
            self.model.geom_group[~self.in_view(camera)] = HIDDEN_GROUP
        self.renderer.update_scene(self.data, camera, self.options)
        self.model.geom_group[:] = groups
        for flag in self.disabled_flags:
            self.renderer.scene.flags[flag] = 0
        return self.renderer.render()

    def in_view(self, camera: str) -> np.ndarray:
        """Finds the geometries of the model that a camera may see.

        Returns:
            Mask (geometries,) bool: True if the bounding sphere intersects the camera's view. It is True for planes.
        """
        index = self.model.camera(camera).id
        half_angle = math.radians(float(self.model.cam_fovy[index])) / 2
        position = (self.data.geom_xpos - self.data.cam_xpos[index]) @ self.data.cam_xmat[index].reshape(3, 3)
        radius = np.where(self.model.geom_rbound > 0, self.model.geom_rbound, np.inf)
        sideways = np.abs(position[:, :2]).max(1)  # towards the nearest side of the view; a frame is square
        return sideways * math.cos(half_angle) + position[:, 2] * math.sin(half_angle) <= radius

    def close(self) -> None:
        """Frees the OpenGL context."""
        self.renderer.close()


@contextlib.contextmanager
def simplify_model(model: Any, pixels: int) -> Iterator[None]:
    """Context manager that simplifies the meshes of a model, for frames of `pixels` pixels, and restores them at exit.

    A renderer that is created within the context keeps the simplified meshes. Only faces of the mujoco.MjModel change,
    which MuJoCo's contacts do not use.
    """
    original = {name: getattr(model, name).copy() for name in ("mesh_facenum", *CORNER_FIELDS)}
    try:
        for mesh, tolerance in mesh_tolerances(model, pixels).items():
            first, count = model.mesh_faceadr[mesh], model.mesh_facenum[mesh]
            corners = cached_mesh_corners(*_mesh_corners(model, mesh), tolerance)
            for name in CORNER_FIELDS:
                faces = getattr(model, name)[first : first + count]
                faces[: len(corners)] = faces.reshape(-1)[corners]
            model.mesh_facenum[mesh] = len(corners)
        yield
    finally:
        for name, faces in original.items():
            getattr(model, name)[:] = faces


def mesh_tolerances(model: Any, pixels: int) -> dict[int, float]:
    """Returns a dict of mesh index -> tolerance of its simplification in metres.

    The dict contains the visible meshes with at least `MIN_FACES` faces, for frames of `pixels` pixels.
    """
    import mujoco

    tolerances: dict[int, float] = {}
    for geom in range(model.ngeom):
        mesh = int(model.geom_dataid[geom])
        if not VISIBLE_GROUPS[model.geom_group[geom]] or model.geom_type[geom] != mujoco.mjtGeom.mjGEOM_MESH:
            continue
        distant = model.body(model.geom_bodyid[geom]).name.startswith(DISTANT_BODIES)
        if model.mesh_facenum[mesh] >= MIN_FACES:
            tolerance = TOLERANCE_M / pixels * (DISTANT_FACTOR if distant else 1)
            tolerances[mesh] = min(tolerances.get(mesh, tolerance), tolerance)
    return tolerances


def _mesh_corners(model: Any, mesh: int) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Returns positions, normals and texture coordinates of the corners of mesh number `mesh`.

    Positions and normals are (faces, 3, 3); texture coordinates are (faces, 3, 2), or None if the mesh has none.
    """
    faces = slice(model.mesh_faceadr[mesh], model.mesh_faceadr[mesh] + model.mesh_facenum[mesh])
    positions = model.mesh_vert[model.mesh_vertadr[mesh] + model.mesh_face[faces]]
    normals = model.mesh_normal[model.mesh_normaladr[mesh] + model.mesh_facenormal[faces]]
    if model.mesh_texcoordadr[mesh] < 0:
        return positions, normals, None
    return positions, normals, model.mesh_texcoord[model.mesh_texcoordadr[mesh] + model.mesh_facetexcoord[faces]]
