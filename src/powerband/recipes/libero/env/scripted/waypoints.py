"""Scene, Pose and Waypoint: what a skill sees and what it asks of the hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from powerband.recipes.libero.env.gymnasium_env import OPEN

CLOSED = 1.0
"""Gripper entry of an action that closes the gripper."""


@dataclass(frozen=True)
class Pose:
    """Position (3,) in metres and rotation matrix (3, 3), in the world."""

    position: np.ndarray
    rotation: np.ndarray

    def __matmul__(self, point: np.ndarray | tuple[float, float, float]) -> np.ndarray:
        """Returns the position in the world (3,) of a `point` (3,) of this pose's own frame."""
        return self.position + self.rotation @ np.asarray(point)


@dataclass(frozen=True)
class Scene:
    """What the demonstrator observes.

    Attributes:
        hand: Pose of the end effector.
        places: Name of an object, region or body -> its pose.
        met: Whether each condition of success holds, in the order of the task's goals.
    """

    hand: Pose
    places: Mapping[str, Pose]
    met: tuple[bool, ...]


@dataclass(frozen=True)
class Waypoint:
    """A target of the end effector.

    Attributes:
        target: Returns the pose of the end effector for a scene.
        grip: OPEN or CLOSED, on the way and at the waypoint.
        hold: Actions to stay after the end effector has arrived.
        tolerance_m: Distance at which the end effector has arrived, in metres.
        tolerance_rad: Angle at which it has arrived, in rad.
        follows: Compute the target in every step, instead of at the start of the way.
        max_steps: Actions after which the demonstrator moves on to the next waypoint in any case.
        speed: Largest step, as a fraction (0..1) of the controller's largest step.
        varied: Shift the target by the demonstrator's random shift; for waypoints in free space.
        needs: Condition at the end of the waypoint; if it does not hold, the skill ends and is tried again.
        until: Condition that ends the waypoint at once.
    """

    target: Callable[[Scene], Pose]
    grip: float = OPEN
    hold: int = 0
    tolerance_m: float = 0.01
    tolerance_rad: float = 0.1
    follows: bool = False
    max_steps: int = 60
    speed: float = 1.0
    varied: bool = False
    needs: Callable[[Scene], bool] | None = None
    until: Callable[[Scene], bool] | None = None


def at(position: np.ndarray, rotation: np.ndarray) -> Callable[[Scene], Pose]:
    """Returns a target that is the same in every scene."""
    pose = Pose(np.asarray(position, np.float64), rotation)
    return lambda scene: pose


def raised(height: float) -> Callable[[Scene], Pose]:
    """Returns the target above the present position of the hand at `height` in the world, or where it is if higher."""

    def target(scene: Scene) -> Pose:
        x, y, z = scene.hand.position
        return Pose(np.array([x, y, max(z, height)]), scene.hand.rotation)

    return target


def carrying(name: str, wanted: Callable[[Scene], Pose]) -> Callable[[Scene], Pose]:
    """Returns the target of the hand that brings the object `name`, which it holds, to the pose `wanted`."""

    def target(scene: Scene) -> Pose:
        held, hand, goal = scene.places[name], scene.hand, wanted(scene)
        turn = goal.rotation @ held.rotation.T
        return Pose(goal.position + turn @ (hand.position - held.position), turn @ hand.rotation)

    return target
