"""Names and geometry of LIBERO's fixtures with moving parts: cabinets, microwaves and stoves. Lengths in metres."""

from __future__ import annotations

import re

import numpy as np

from powerband.recipes.libero.env.scripted.waypoints import Scene

CLOSED_DRAWER_Y = 0.0113
"""Position of a closed drawer's region along y of its cabinet; a drawer opens along -y."""
HANDLE = np.array([-0.006, -0.113, -0.004])
"""Position of a drawer's handle relative to its region, in the frame of the cabinet."""
OPENED_M = 0.14
"""Way of an open drawer; its stop is at 0.16."""
KNOB = np.array([0.001, 0.006, 0.036])
"""Position of the ridge of a stove's knob in the frame of the knob; it is long along y."""
OPENED_DOOR_RAD = 1.3
"""Angle of an open door of a microwave; its stop is at 2.094."""


def drawer_cabinet(region: str) -> str:
    """Returns the cabinet of the region of a drawer, or "" for other names: wooden_cabinet_1_top_region."""
    match = re.fullmatch(r"(\w*cabinet_\d+)_(top|middle|bottom)_region", region)
    return match[1] if match else ""


def microwave_of(name: str) -> str:
    """Returns the microwave of a name such as microwave_1_heating_region, or "" for other fixtures."""
    match = re.match(r"microwave_\d+", name)
    return match[0] if match else ""


def door_of(microwave: str) -> str:
    """Returns the body of the door of a microwave, whose origin is at the hinge."""
    return f"{microwave}_microdoorroot"


def knob_of(stove: str) -> str:
    """Returns the body of the knob of a stove."""
    return f"{stove}_button"


def drawer_way(scene: Scene, region: str) -> float:
    """Returns how far a drawer is pulled out, in metres."""
    cabinet = scene.places[drawer_cabinet(region)]
    return CLOSED_DRAWER_Y - float((cabinet.rotation.T @ (scene.places[region].position - cabinet.position))[1])


def door_angle(scene: Scene, microwave: str) -> float:
    """Returns how far the door of a microwave is open, in rad."""
    turn = scene.places[microwave].rotation.T @ scene.places[door_of(microwave)].rotation
    return float(-np.arctan2(turn[1, 0], turn[0, 0]))


def knob_angle(scene: Scene, stove: str) -> float:
    """Returns the angle of the knob of a stove in rad: 0 is off, 0.5 and more is on."""
    turn = scene.places[stove].rotation.T @ scene.places[knob_of(stove)].rotation
    return float(np.arctan2(turn[1, 0], turn[0, 0])) - np.pi / 2


def top_of(cabinet: str) -> str:
    """Returns the region of the top of a cabinet."""
    return f"{cabinet}_top_side"


def in_way_of_drawer(scene: Scene, name: str, region: str) -> bool:
    """Returns whether an object stands so near to where a drawer opens that the hand cannot hold it afterwards."""
    cabinet = scene.places[drawer_cabinet(region)]
    x, y, z = cabinet.rotation.T @ (scene.places[name].position - cabinet.position)
    return bool(abs(x) < 0.25 and -0.45 < y < -0.1 and z < 0.15)
