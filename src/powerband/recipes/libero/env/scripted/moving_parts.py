"""Skills for the moving parts of fixtures: drawers, the door of a microwave, the knob of a stove."""

from __future__ import annotations

import numpy as np

from powerband.recipes.libero.env.gymnasium_env import OPEN
from powerband.recipes.libero.env.scripted.fixtures import (
    HANDLE,
    KNOB,
    door_of,
    drawer_cabinet,
    drawer_way,
    knob_angle,
    knob_of,
)
from powerband.recipes.libero.env.scripted.rotations import DOWN, UP, about_vertical, hand_rotation
from powerband.recipes.libero.env.scripted.waypoints import CLOSED, Pose, Scene, Waypoint, at, raised

DRAWER_STOP_M = 0.16
"""Way of a drawer that is pulled out to its stop."""


def open_drawer(scene: Scene, region: str, attempt: int) -> list[Waypoint]:
    """Returns waypoints that pull out a drawer by its handle; the hand points at the cabinet."""
    cabinet = scene.places[drawer_cabinet(region)]
    outward, along = -cabinet.rotation[:, 1], cabinet.rotation[:, 0]
    rotation = hand_rotation(-outward, UP)
    handle = scene.places[region].position + cabinet.rotation @ HANDLE + (0.0, 0.008, -0.008)[attempt % 3] * along
    way = DRAWER_STOP_M - drawer_way(scene, region) + 0.01
    free = handle + 0.15 * outward
    return [
        Waypoint(raised(handle[2] + 0.12), tolerance_m=0.03),
        Waypoint(at(free + 0.1 * UP, rotation), tolerance_m=0.03, max_steps=100),
        Waypoint(at(free, rotation), tolerance_m=0.015, varied=True),
        Waypoint(at(handle + 0.05 * outward, rotation), tolerance_m=0.008, speed=0.6),
        Waypoint(at(handle, rotation), tolerance_m=0.006, speed=0.3, max_steps=40),
        Waypoint(at(handle, rotation), CLOSED, hold=8, tolerance_m=0.03),
        Waypoint(at(handle + way * outward, rotation), CLOSED, tolerance_m=0.008, speed=0.4, max_steps=60),
        Waypoint(lambda now: now.hand, OPEN, hold=6, tolerance_m=0.05),
        Waypoint(_back, OPEN, tolerance_m=0.03),
        Waypoint(raised(cabinet.position[2] + 0.4), tolerance_m=0.04),
    ]


def close_drawer(scene: Scene, region: str, attempt: int) -> list[Waypoint]:
    """Returns waypoints that push a drawer shut by its handle with closed fingers.

    The hand leans back from the cabinet, so that the fingers arrive before the hand meets the drawers above.
    """
    cabinet = scene.places[drawer_cabinet(region)]
    outward, along = -cabinet.rotation[:, 1], cabinet.rotation[:, 0]
    lean = (0.8, 1.0, 0.6)[attempt % 3]
    rotation = hand_rotation(np.cos(lean) * DOWN - np.sin(lean) * outward, along)

    def front(distance: float) -> np.ndarray:
        return scene.places[region].position + cabinet.rotation @ HANDLE + (0.015 + distance) * outward

    def push(now: Scene) -> Pose:
        handle = now.places[region].position + now.places[drawer_cabinet(region)].rotation @ HANDLE
        return Pose(handle - 0.05 * outward, rotation)

    return [
        Waypoint(raised(front(0)[2] + 0.08), CLOSED, tolerance_m=0.03),
        Waypoint(at(front(0.1) + 0.11 * UP, rotation), CLOSED, tolerance_m=0.03, max_steps=100, varied=True),
        Waypoint(at(front(0.06), rotation), CLOSED, tolerance_m=0.015),
        Waypoint(push, CLOSED, follows=True, max_steps=100, speed=0.6, until=lambda now: drawer_way(now, region) < 0),
        Waypoint(_back, CLOSED, tolerance_m=0.03),
        Waypoint(raised(cabinet.position[2] + 0.4), CLOSED, tolerance_m=0.04),
    ]


def close_door(scene: Scene, microwave: str, attempt: int) -> list[Waypoint]:
    """Returns waypoints that push the open door of a microwave shut, near its free edge and from outside."""
    door, rotation = scene.places[door_of(microwave)], hand_rotation(DOWN, np.array([0.0, 1.0, 0.0]))
    reach = (0.2, 0.17, 0.225)[attempt % 3]

    def outside(now: Scene, distance: float, height: float) -> np.ndarray:
        return now.places[door_of(microwave)] @ (reach, -0.025 - distance, height)

    def push(now: Scene) -> Pose:
        return Pose(outside(now, -0.04, 0.04), rotation)

    before = outside(scene, 0.09, 0.04)
    return [
        Waypoint(raised(door.position[2] + 0.2), CLOSED, tolerance_m=0.03),
        Waypoint(at(before + 0.16 * UP, rotation), CLOSED, tolerance_m=0.03, max_steps=100, varied=True),
        Waypoint(at(before, rotation), CLOSED, tolerance_m=0.02),
        Waypoint(push, CLOSED, follows=True, max_steps=160, speed=0.4),
        Waypoint(raised(door.position[2] + 0.25), CLOSED, tolerance_m=0.04),
    ]


def turn_knob(scene: Scene, stove: str, attempt: int, on: bool) -> list[Waypoint]:
    """Returns waypoints that hold the knob of a stove from above and turn it on or off."""
    knob = scene.places[knob_of(stove)]
    rotation = hand_rotation(DOWN, knob.rotation[:, 0])
    angle = 1.3 - knob_angle(scene, stove) if on else -knob_angle(scene, stove) - 0.4
    turned = Pose(knob.position, about_vertical(angle) @ knob.rotation)
    lower = -0.004 * (attempt % 3) * UP
    return [
        Waypoint(raised(knob.position[2] + 0.15), tolerance_m=0.03),
        Waypoint(at(knob @ KNOB + 0.12 * UP, rotation), tolerance_m=0.02, varied=True),
        Waypoint(at(knob @ KNOB + lower, rotation), tolerance_m=0.008, speed=0.5),
        Waypoint(at(knob @ KNOB + lower, rotation), CLOSED, hold=8, tolerance_m=0.03),
        Waypoint(at(turned @ KNOB + lower, about_vertical(angle) @ rotation), CLOSED, max_steps=50, hold=4),
        Waypoint(lambda now: now.hand, OPEN, hold=6, tolerance_m=0.05),
        Waypoint(raised(knob.position[2] + 0.2), tolerance_m=0.04),
    ]


def _back(scene: Scene) -> Pose:
    """Returns the target behind the hand."""
    return Pose(scene.hand.position - 0.1 * scene.hand.rotation[:, 2], scene.hand.rotation)
