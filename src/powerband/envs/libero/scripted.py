"""Scripted demonstrators: waypoints relative to where objects are, from a task's own conditions of success.

A script covers goals of one relation: something that the gripper can hold onto or into something else, or a drawer
closed. It looks at where things are, which a policy does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from powerband.core.flags import ConfigError
from powerband.envs.libero.single import ACTION, OPEN
from powerband.envs.libero.tasks import Goal, LiberoTask

METRES, RADIANS = 0.05, 0.5
"""What 1 in an action commands: the controller's scale."""
CLOSED = 1.0
HIGH = 0.18
"""Metres above what is grasped or aimed at, where the gripper moves sideways."""
GRASPS = {
    "akita_black_bowl": (0.0, 0.05, 0.035),
    "white_bowl": (0.0, 0.05, 0.035),
}
"""Kind of object -> where the gripper closes, metres from its place; bowls are wider than the gripper: at the rim."""
CENTRE = (0.0, 0.0, 0.0)
RELEASES = {"plate": 0.06, "basket": 0.16, "stove": 0.08, "cabinet": 0.07, "bowl": 0.12}
"""What is aimed at -> metres above its place, for the lowest part of what is held, at which the gripper opens."""


@dataclass(frozen=True)
class Waypoint:
    """Where the gripper goes next.

    Attributes:
        to: Number of the place (subject 0, target 1) that the offset is from.
        offset: Metres, along the world's axes.
        grip: OPEN or CLOSED, on the way and there.
        hold: Actions to stay once it is there.
        near: Metres within which it is there.
        follows: The place is looked at in every step; else as it was when the way began.
        most: Actions after which the next waypoint is gone to all the same.
        speed: Share of the controller's largest step.
    """

    to: int
    offset: tuple[float, float, float]
    grip: float
    hold: int = 0
    near: float = 0.01
    follows: bool = False
    most: int = 60
    speed: float = 1.0


def kind_of(name: str) -> str:
    """ "akita_black_bowl_1" -> "akita_black_bowl"."""
    return name.rstrip("0123456789").rstrip("_")


def script_of(task: LiberoTask) -> tuple[tuple[str, ...], tuple[Waypoint, ...]]:
    """Names of the places that the script looks at, and its waypoints.

    Raises:
        ConfigError: There is no script for this task's goals.
    """
    goals = task.goals
    if len(goals) == 1 and goals[0].relation in ("on", "in"):
        return (goals[0].subject, goals[0].target), _moved(goals[0])
    if len(goals) == 1 and goals[0].relation == "close" and "cabinet" in goals[0].subject:
        return (goals[0].subject, goals[0].subject), _pushed()
    said = ", ".join(" ".join(filter(None, (g.relation, g.subject, g.target))) for g in goals)
    raise ConfigError(
        f"task {task.name} has no script (its goal: {said}): scripts move one object, or close a drawer. Name another "
        f"task, or bring demonstrations: data=FILE.hdf5."
    )


def _moved(goal: Goal) -> tuple[Waypoint, ...]:
    x, y, z = GRASPS.get(kind_of(goal.subject), CENTRE)
    release = next((height for word, height in RELEASES.items() if word in goal.target), 0.08)
    return (
        Waypoint(0, (x, y, z + HIGH), OPEN, near=0.02),
        Waypoint(0, (x, y, z), OPEN, near=0.008, speed=0.6),
        Waypoint(0, (x, y, z), CLOSED, hold=8, near=0.03),
        Waypoint(0, (x, y, z + HIGH), CLOSED, near=0.03, speed=0.7),
        Waypoint(1, (x, y, z + HIGH), CLOSED, near=0.015, speed=0.8),
        Waypoint(1, (x, y, z + release), CLOSED, near=0.012, speed=0.5),
        Waypoint(1, (x, y, z + release), OPEN, hold=6, near=0.03),
        Waypoint(1, (x, y, z + HIGH), OPEN, near=0.03, speed=0.7, hold=10),
    )


def _pushed() -> tuple[Waypoint, ...]:
    """The region of a drawer moves with it; the cabinets of LIBERO open towards +y."""
    return (
        Waypoint(0, (0.0, 0.22, 0.15), CLOSED, near=0.02),
        Waypoint(0, (0.0, 0.22, 0.02), CLOSED, near=0.015),
        Waypoint(0, (0.0, 0.05, 0.02), CLOSED, follows=True, most=200, speed=0.8),
    )


class Demonstrator:
    """Follows the waypoints of a script, one row of environments after its own.

    Args:
        waypoints: Of `script_of`.
        rng: Draws what makes demonstrations differ: the height of ways and a shift of waypoints above things.
        jitter: Metres of that shift at most.
    """

    def __init__(self, waypoints: Sequence[Waypoint], rng: np.random.Generator, jitter: float = 0.02) -> None:
        self.waypoints, self.rng, self.jitter = waypoints, rng, jitter
        self.begin()

    def begin(self) -> None:
        """A new episode."""
        self.at, self.stayed, self.taken = 0, 0, 0
        self.upright: np.ndarray | None = None
        self.aim: np.ndarray | None = None
        self.shifts = [
            self.rng.uniform(-self.jitter, self.jitter, 3) if point.near >= 0.02 and not point.hold else np.zeros(3)
            for point in self.waypoints
        ]

    def act(self, seen: dict[str, np.ndarray]) -> np.ndarray:
        """(7,) float32 in [-1, 1], from what `LiberoEnv` shows: eef_pos, eef_quat, poses."""
        if self.upright is None:
            self.upright = _matrix(seen["eef_quat"])
        point = self.waypoints[self.at]
        if self.aim is None or point.follows:
            self.aim = seen["poses"][point.to] + np.asarray(point.offset) + self.shifts[self.at]
        error = self.aim - seen["eef_pos"]
        there = np.linalg.norm(error) < point.near
        self.stayed += there
        self.taken += 1
        action = np.zeros(ACTION, np.float32)
        action[:3] = np.clip(error / METRES, -point.speed, point.speed)
        action[3:6] = np.clip(_turn(self.upright @ _matrix(seen["eef_quat"]).T) / RADIANS, -1, 1)
        action[6] = point.grip
        done = self.stayed > point.hold or self.taken >= point.most
        if done and self.at < len(self.waypoints) - 1:
            self.at, self.stayed, self.taken, self.aim = self.at + 1, 0, 0, None
        return action


def _matrix(quaternion: np.ndarray) -> np.ndarray:
    """(4,) xyzw -> (3, 3)."""
    x, y, z, w = np.asarray(quaternion, np.float64) / np.linalg.norm(quaternion)
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
            [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
            [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
        ]
    )


def _turn(matrix: np.ndarray) -> np.ndarray:
    """(3, 3) -> (3,) axis times angle in rad, for turns far from a half one."""
    axis = np.array([matrix[2, 1] - matrix[1, 2], matrix[0, 2] - matrix[2, 0], matrix[1, 0] - matrix[0, 1]]) / 2
    sine, cosine = np.linalg.norm(axis), (np.trace(matrix) - 1) / 2
    return axis * (np.arctan2(sine, cosine) / sine) if sine > 1e-8 else axis
