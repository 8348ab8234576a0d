"""Views of the values in MuJoCo's data that observations and rewards read: positions, orientations and angles."""

from __future__ import annotations

from typing import Any

import numpy as np

from powerband.recipes.metaworld.env.threads.reward_terms import COMMON_PLACES, JOINT, TURN

OBJECT_PLACES = {
    **dict.fromkeys(("reach", "push", "pick-place"), ("body:obj", "geom:objGeom")),
    "door-open": ("geom:handle", "geom:handle"),
    "drawer-open": ("body:drawer_link", "body:drawer_link"),
    "drawer-close": ("body:drawer_link", ""),
    "button-press-topdown": ("body:button", "body:button"),
    "peg-insert-side": ("site:pegGrasp", "site:pegGrasp"),
    "window-open": ("site:handleOpenStart", ""),
    "window-close": ("site:handleCloseStart", ""),
}
"""Task -> the model elements whose position and whose orientation an observation contains; empty for no orientation."""
BOX_CORNERS = [f"site:{corner}_corner_collision_box_{box}" for box in (1, 2) for corner in ("bottom_right", "top_left")]


def element_view(data: Any, element: str, quantity: str) -> np.ndarray:
    """Returns a view of a quantity of an element in MuJoCo's data.

    Args:
        data: mujoco.MjData of a simulation.
        element: Kind and name, such as "body:hand", "site:goal", "geom:handle" or "joint:doorjoint".
        quantity: ``xpos`` (3,), ``xquat`` (4,), ``xmat`` (9,) or, for a joint, ``qpos``.
    """
    kind, name = element.split(":")
    view: np.ndarray = getattr(getattr(data, kind)(name), quantity)
    return view


def mt10_views(task: str, data: Any) -> dict[int, np.ndarray]:
    """Returns views of the arrays in MuJoCo's `data` that the reward of one of the ten tasks of MT10 reads.

    Args:
        task: Name of the task.
        data: mujoco.MjData of a simulation of the task.

    Returns:
        Index in ``RewardArrays.place`` -> view of a position, an orientation or an angle. The constants of
        `reward_terms` name the indices.
    """
    position, orientation = OBJECT_PLACES[task]
    elements = [*COMMON_PLACES, position]
    if task == "peg-insert-side":
        elements += ["site:pegHead", *BOX_CORNERS]
    views = {place: element_view(data, element, "xpos") for place, element in enumerate(elements)}
    if orientation:
        views[TURN] = element_view(data, orientation, "xquat" if orientation.startswith("body:") else "xmat")
    if task == "door-open":
        views[JOINT] = element_view(data, "joint:doorjoint", "qpos")
    return views
