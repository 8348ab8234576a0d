"""Skills that put an object somewhere: from above, into a microwave, or by sliding a plate on the table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from powerband.recipes.libero.env.gymnasium_env import OPEN
from powerband.recipes.libero.env.scripted.fixtures import drawer_cabinet, microwave_of
from powerband.recipes.libero.env.scripted.grasps import HANDLES, Grasp, grasps_of, lowest_of, object_kind
from powerband.recipes.libero.env.scripted.rotations import DOWN, UP, hand_rotation
from powerband.recipes.libero.env.scripted.waypoints import CLOSED, Pose, Scene, Waypoint, at, carrying, raised
from powerband.recipes.libero.env.tasks import Goal

LIFT_M = 0.15
"""Height above the grasp at which the hand moves sideways, in metres."""
OVER_M = 0.09
"""Smallest height above its release at which an object moves sideways, in metres."""
CLEARANCE_M = 0.012
"""Height of the object's lowest point above the surface at which the gripper opens, in metres."""
REACHED_M = 0.03
"""Distance to a grasp beyond which something else is in the way of the hand, in metres."""
HELD_M = 0.05
"""Smallest rise of an object that the hand lifts, in metres."""


DRAWER_OFFSET = np.array([0.0, -0.015, 0.0])
"""From the centre of a drawer to where objects are put, in the frame of the cabinet: away from the drawers above."""
BOOK_CENTRE = np.array([0.0, -0.012, 0.0])
"""Middle of a book in its frame."""


@dataclass(frozen=True)
class Surface:
    """Where an object is put, relative to the target of a goal.

    Attributes:
        height: Height of the surface above the target, in metres.
        spread: Distance between two objects that are put on the same target, in metres.
        drop: Height above the surface from which objects fall, in addition to `CLEARANCE_M`.
    """

    height: float = 0.0
    spread: float = 0.0
    drop: float = 0.0


SURFACES = {
    "cook_region": Surface(0.0255, 0.092),
    "basket": Surface(-0.065, 0.06, drop=0.13),
    "plate": Surface(0.006),
    "top_side": Surface(0.003),
    "bowl": Surface(0.02, drop=0.05),
    "caddy": Surface(-0.07, drop=0.09),
    "wine_rack": Surface(0.003),
    "heating_region": Surface(-0.072),
    "cabinet": Surface(-0.026),
    "table": Surface(0.012),
}
"""Part of the name of a target -> its surface. The first that fits counts."""


def surface_of(target: str) -> Surface:
    """Returns the surface of the target of a goal."""
    return next((surface for part, surface in SURFACES.items() if part in target), Surface())


def release_pose(scene: Scene, goal: Goal, slot: float) -> Pose:
    """Returns the pose of the subject of `goal` at which the hand lets go.

    Args:
        scene: Present scene.
        goal: Goal of the relation on or in.
        slot: Place among several objects for the same target: 0 is its centre.
    """
    surface, target = surface_of(goal.target), scene.places[goal.target]
    height = surface.height + surface.drop + CLEARANCE_M + lowest_of(goal.subject)
    position = target.position + np.array([slot * surface.spread, 0.0, height])
    rotation = scene.places[goal.subject].rotation
    if drawer_cabinet(goal.target):
        cabinet = scene.places[drawer_cabinet(goal.target)]
        position = position + cabinet.rotation @ DRAWER_OFFSET
    if "book" in goal.subject:
        rotation = _nearest_half_turn(_frame_of_target(scene, goal), rotation)
        position = position - rotation @ BOOK_CENTRE
    return Pose(position, rotation)


def _frame_of_target(scene: Scene, goal: Goal) -> np.ndarray:
    """Returns the rotation (3, 3) of the target of a goal about the vertical."""
    x, y, _ = scene.places[goal.target].rotation[:, 0]
    return np.array([[x, -y, 0.0], [y, x, 0.0], [0.0, 0.0, 1.0]]) / np.hypot(x, y)


def _nearest_half_turn(frame: np.ndarray, rotation: np.ndarray) -> np.ndarray:
    """Returns `frame` or its half turn about the vertical, whichever is nearer to `rotation`."""
    half_turn = frame @ np.diag([-1.0, -1.0, 1.0])
    return max((half_turn, frame), key=lambda candidate: float(np.trace(candidate.T @ rotation)))


def put(scene: Scene, goal: Goal, attempt: int, slot: float) -> list[Waypoint]:
    """Returns waypoints that grasp the subject of `goal` from above and release it on or in the target.

    Args:
        scene: Present scene.
        goal: Goal of the relation on or in.
        attempt: Number of earlier attempts; each uses the next grasp of the object.
        slot: Place among several objects for the same target: 0 is its centre.
    """
    name, thing = goal.subject, scene.places[goal.subject]
    grasps = grasps_of(name)
    if drawer_cabinet(goal.target):  # the hand is thin across its fingers, and drawers above are in the way
        outward = scene.places[drawer_cabinet(goal.target)].rotation[:, 1]
        grasps = tuple(sorted(grasps, key=lambda grasp: round(abs(_fingers(grasp, thing) @ outward), 2)))
    grasp = grasps[attempt % len(grasps)]
    frame = thing.rotation if grasp.own_frame else np.eye(3)
    point, rotation = thing.position + frame @ np.array(grasp.offset), hand_rotation(DOWN, _fingers(grasp, thing))
    low = float(thing.position[2])
    travel = max(float(point[2]) + LIFT_M, float(release_pose(scene, goal, slot).position[2] + point[2]) - low + OVER_M)

    def reached(now: Scene) -> bool:
        return bool(np.linalg.norm(now.hand.position - point) < REACHED_M)

    def lifted(now: Scene) -> bool:
        return float(now.places[name].position[2]) > low + HELD_M

    return [
        Waypoint(raised(point[2] + LIFT_M / 2), tolerance_m=0.03),
        Waypoint(at(point + LIFT_M * UP, rotation), tolerance_m=0.02, varied=True),
        Waypoint(at(point, rotation), tolerance_m=0.008, speed=0.6, needs=reached),
        Waypoint(at(point, rotation), CLOSED, hold=8, tolerance_m=0.03),
        Waypoint(at(np.array([*point[:2], travel]), rotation), CLOSED, tolerance_m=0.03, speed=0.7, needs=lifted),
        *release(goal, slot, travel),
    ]


def release(goal: Goal, slot: float, travel: float) -> list[Waypoint]:
    """Returns waypoints that bring the object in the hand above the target at the height `travel`, and release it."""
    name = goal.subject

    def above(now: Scene) -> Pose:
        end = release_pose(now, goal, slot)
        height = travel - float(now.hand.position[2] - now.places[name].position[2])
        return Pose(np.array([*end.position[:2], max(height, end.position[2])]), end.rotation)

    def down(now: Scene) -> Pose:
        return release_pose(now, goal, slot)

    return [
        Waypoint(carrying(name, above), CLOSED, tolerance_m=0.015, speed=0.7, max_steps=80),
        Waypoint(carrying(name, above), CLOSED, tolerance_m=0.01, speed=0.7, max_steps=30),
        Waypoint(carrying(name, down), CLOSED, tolerance_m=0.008, speed=0.5, max_steps=50),
        Waypoint(_stay, OPEN, hold=6, tolerance_m=0.05),
        Waypoint(_up, OPEN, tolerance_m=0.03, speed=0.7),
    ]


def _fingers(grasp: Grasp, thing: Pose) -> np.ndarray:
    """Returns the direction (3,) in the world in which the fingers close for a grasp of `thing`."""
    return (thing.rotation if grasp.own_frame else np.eye(3)) @ np.array(grasp.fingers)


def _stay(scene: Scene) -> Pose:
    return scene.hand


def _up(scene: Scene) -> Pose:
    return Pose(scene.hand.position + LIFT_M * UP, scene.hand.rotation)


def put_in_microwave(scene: Scene, goal: Goal, attempt: int) -> list[Waypoint]:
    """Returns waypoints that hold a mug by its handle and put it through the open front of a microwave.

    The hand points to the back of the microwave and slightly down, so that it stays in front of the opening.
    """
    name, thing = goal.subject, scene.places[goal.subject]
    microwave = scene.places[microwave_of(goal.target)]
    back, side = microwave.rotation[:, 1], microwave.rotation[:, 0]
    tilt = (0.35, 0.6, 0.2)[attempt % 3]
    approach = np.cos(tilt) * back + np.sin(tilt) * DOWN
    rotation = hand_rotation(approach, side)
    point = thing @ HANDLES[object_kind(name)]
    low = thing.position[2]

    def lifted(now: Scene) -> bool:
        return float(now.places[name].position[2]) > low + 0.02

    def inside(offset: tuple[float, float, float]) -> Callable[[Scene], Pose]:
        return lambda now: Pose(now.places[microwave_of(goal.target)] @ offset, now.places[name].rotation)

    return [
        Waypoint(raised(point[2] + LIFT_M), tolerance_m=0.03),
        Waypoint(at(point - 0.12 * approach + 0.1 * UP, rotation), tolerance_m=0.02, max_steps=90),
        Waypoint(at(point - 0.1 * approach, rotation), tolerance_m=0.015),
        Waypoint(at(point, rotation), tolerance_m=0.008, speed=0.4),
        Waypoint(at(point, rotation), CLOSED, hold=8, tolerance_m=0.03),
        Waypoint(_raise_by(0.06), CLOSED, tolerance_m=0.015, speed=0.4, needs=lifted),
        Waypoint(carrying(name, inside((-0.04, -0.19, 0.045))), CLOSED, tolerance_m=0.01, speed=0.4),
        Waypoint(carrying(name, inside((-0.04, -0.03, 0.045))), CLOSED, tolerance_m=0.01, speed=0.4),
        Waypoint(carrying(name, inside((-0.04, -0.03, 0.028))), CLOSED, tolerance_m=0.008, speed=0.3, max_steps=30),
        Waypoint(_stay, OPEN, hold=6, tolerance_m=0.05),
        Waypoint(_back_by(0.1), OPEN, tolerance_m=0.02, speed=0.4),
        Waypoint(raised(microwave.position[2] + 0.33), tolerance_m=0.03),
    ]


def _raise_by(height: float) -> Callable[[Scene], Pose]:
    return lambda scene: Pose(scene.hand.position + height * UP, scene.hand.rotation)


def _back_by(way: float) -> Callable[[Scene], Pose]:
    return lambda scene: Pose(scene.hand.position - way * scene.hand.rotation[:, 2], scene.hand.rotation)


def slide(scene: Scene, goal: Goal, attempt: int) -> list[Waypoint]:
    """Returns waypoints that slide a plate on the table: the fingers stand in it and push its rim from inside."""
    plate, target = scene.places[goal.subject].position, scene.places[goal.target].position
    way = np.array([*(target - plate)[:2], 0.0])
    direction = way / np.linalg.norm(way)
    rotation = hand_rotation(DOWN, np.cross(UP, direction))
    start = plate + 0.02 * direction + (0.006 - 0.002 * (attempt % 3)) * UP
    return [
        Waypoint(raised(start[2] + LIFT_M / 2), CLOSED, tolerance_m=0.03),
        Waypoint(at(start + LIFT_M * UP, rotation), CLOSED, tolerance_m=0.02, varied=True),
        Waypoint(at(start, rotation), CLOSED, tolerance_m=0.005, speed=0.4, max_steps=30),
        Waypoint(at(start + way + 0.04 * direction, rotation), CLOSED, tolerance_m=0.01, speed=0.3, max_steps=120),
        Waypoint(_up, CLOSED, tolerance_m=0.03),
    ]
