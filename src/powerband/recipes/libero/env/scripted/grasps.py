"""How each kind of object is grasped, in metres and in the frame of the object, and where its lowest point is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

X, Y = (1.0, 0.0, 0.0), (0.0, 1.0, 0.0)


@dataclass(frozen=True)
class Grasp:
    """A grasp of an object.

    Attributes:
        offset: Position of the end effector relative to the object.
        fingers: Direction in which the fingers close.
        own_frame: Both are in the frame of the object and turn with it; otherwise they are along the world's axes.
    """

    offset: tuple[float, float, float] = (0.0, 0.0, 0.0)
    fingers: tuple[float, float, float] = Y
    own_frame: bool = False


def rim(radius: float, height: float, degrees: Sequence[float]) -> tuple[Grasp, ...]:
    """Returns grasps of a round wall at the angles `degrees`, one finger inside and one outside."""
    grasps = []
    for angle in np.deg2rad(degrees):
        x, y = float(np.cos(angle)), float(np.sin(angle))
        grasps.append(Grasp((radius * x, radius * y, height), (x, y, 0.0)))
    return tuple(grasps)


def mug(centre: float, radius: float, height: float, degrees: Sequence[float]) -> tuple[Grasp, ...]:
    """Returns grasps of the rim of a mug, whose axis is `centre` metres along x of its frame."""
    return tuple(
        Grasp((grasp.offset[0] + centre, *grasp.offset[1:]), grasp.fingers, True)
        for grasp in rim(radius, height, degrees)
    )


def flat_box() -> tuple[Grasp, ...]:
    """Returns grasps of a box that lies with its long side along x of its frame, at different points of that side."""
    points = ((0.0, 0.0), (-0.022, 0.0), (0.022, 0.0), (0.0, -0.014), (0.0, 0.014))
    return tuple(Grasp((x, y, 0.0), Y, True) for x, y in points)


GRASPS: dict[str, tuple[Grasp, ...]] = {
    "akita_black_bowl": rim(0.05, 0.035, (90, 0, 180, -90, 45, 135)),
    "white_bowl": rim(0.05, 0.035, (90, 0, 180, -90)),
    "cream_cheese": flat_box(),
    "butter": flat_box(),
    "chocolate_pudding": flat_box(),
    "plate": rim(0.06, 0.012, (90, 0, 180, -90)),
    "moka_pot": (Grasp((0.0, -0.001, 0.079), X, True), Grasp((0.0, 0.076, 0.045), X, True)),
    "porcelain_mug": mug(0.012, 0.043, 0.09, (90, -90, 0)),
    "white_yellow_mug": mug(-0.018, 0.047, 0.085, (90, -90, 180)),
    "red_coffee_mug": mug(-0.01, 0.04, 0.11, (90, -90)),
    "black_book": (Grasp((0.0, -0.012, 0.11), X, True), Grasp((0.0, 0.01, 0.11), X, True)),
    "wine_bottle": (Grasp((0.0, 0.0, 0.125)), Grasp((0.0, 0.0, 0.12), X)),
    "ketchup": (Grasp((0.0, 0.0, 0.04)),),
    "salad_dressing": (Grasp((0.0, 0.0, 0.04)),),
    "milk": (Grasp((0.0, 0.0, 0.04)),),
    "bbq_sauce": (Grasp((0.0, 0.0, 0.02)),),
    "orange_juice": (Grasp((0.0, 0.0, 0.035)),),
}
"""Kind of object -> grasps, in the order in which they are tried. Bowls and mugs are wider than the gripper."""
CENTRE_GRASPS = (Grasp(), Grasp(fingers=X))
"""Grasps of other kinds."""
HANDLES = {"white_yellow_mug": (0.064, 0.0, 0.055), "porcelain_mug": (-0.06, 0.0, 0.056)}
"""Kind of mug -> position of its handle, a vertical bar."""
LOWEST = {
    "alphabet_soup": 0.038,
    "tomato_sauce": 0.038,
    "cream_cheese": 0.009,
    "butter": 0.012,
    "chocolate_pudding": 0.013,
    "moka_pot": 0.066,
    "ketchup": 0.072,
    "salad_dressing": 0.073,
    "milk": 0.073,
    "bbq_sauce": 0.055,
    "orange_juice": 0.07,
}
"""Kind of object -> distance of its lowest point below its position; 0 for other kinds."""


def object_kind(name: str) -> str:
    """Removes the number of an object's name: "akita_black_bowl_1" -> "akita_black_bowl"."""
    return name.rstrip("0123456789").rstrip("_")


def grasps_of(name: str) -> tuple[Grasp, ...]:
    """Returns the grasps of the object `name`, in the order in which they are tried."""
    return GRASPS.get(object_kind(name), CENTRE_GRASPS)


def lowest_of(name: str) -> float:
    """Returns the distance in metres of the lowest point of the object `name` below its position."""
    return LOWEST.get(object_kind(name), 0.0)
