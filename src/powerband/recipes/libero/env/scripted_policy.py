"""ScriptedDemonstrator: solves simple LIBERO tasks by moving the gripper along waypoints relative to objects.

A script is a list of waypoints that follows from the goal of a task. Scripts cover tasks with one goal: to place an
object that the gripper can hold on or in another object, or to close a drawer. The demonstrator observes the positions
of objects, which a learned policy does not observe.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from powerband.core.errors import ConfigError
from powerband.recipes.libero.env.gymnasium_env import ACTION, OPEN
from powerband.recipes.libero.env.tasks import Goal, LiberoTask

METRES_PER_UNIT, RADIANS_PER_UNIT = 0.05, 0.5
"""Translation and rotation that an action entry of 1 commands: the scale of the controller."""
CLOSED = 1.0
"""Gripper entry of an action that closes the gripper."""
LIFT_M = 0.18
"""Height above the grasp or release at which the gripper moves sideways, in metres."""
GRASPS = {
    "akita_black_bowl": (0.0, 0.05, 0.035),
    "white_bowl": (0.0, 0.05, 0.035),
}
"""Kind of object -> grasp position relative to it, in metres; bowls are too wide and are grasped at the rim."""
CENTRE = (0.0, 0.0, 0.0)
RELEASES = {"plate": 0.06, "basket": 0.16, "stove": 0.08, "cabinet": 0.07, "bowl": 0.12}
"""Kind of target -> height of the object's lowest part above the target at which the gripper opens, in metres."""
DEFAULT_RELEASE_M = 0.08
"""Height of the release above other targets, in metres."""


@dataclass(frozen=True)
class Waypoint:
    """A target of the gripper.

    Attributes:
        to: Index of the place, an object or region, that `offset` is relative to: 0 is what the task moves, 1 is its
            destination.
        offset: Position relative to the place, in metres along the world's axes.
        grip: OPEN or CLOSED, on the way and at the waypoint.
        hold: Actions to stay after the gripper has arrived.
        tolerance_m: Distance at which the gripper has arrived, in metres.
        follows: Use the current position of the place in every step, instead of its position at the start of the way.
        max_steps: Actions after which the demonstrator moves on to the next waypoint in any case.
        speed: Largest step, as a fraction (0..1) of the controller's largest step.
    """

    to: int
    offset: tuple[float, float, float]
    grip: float
    hold: int = 0
    tolerance_m: float = 0.01
    follows: bool = False
    max_steps: int = 60
    speed: float = 1.0


def object_kind(name: str) -> str:
    """Removes the number of an object's name: "akita_black_bowl_1" -> "akita_black_bowl"."""
    return name.rstrip("0123456789").rstrip("_")


def task_script(task: LiberoTask) -> tuple[tuple[str, ...], tuple[Waypoint, ...]]:
    """Returns (names, waypoints): the names of the objects and regions that the script uses, and its waypoints.

    Raises:
        ConfigError: No script covers the goals of the task.
    """
    goals = task.goals
    if len(goals) == 1 and goals[0].relation in ("on", "in"):
        return (goals[0].subject, goals[0].target), _placing_waypoints(goals[0])
    if len(goals) == 1 and goals[0].relation == "close" and "cabinet" in goals[0].subject:
        return (goals[0].subject, goals[0].subject), _closing_waypoints()
    conditions = ", ".join(" ".join(filter(None, (g.relation, g.subject, g.target))) for g in goals)
    raise ConfigError(
        f"The task {task.name} has no script (its goals: {conditions}). Scripts move one object, or close a drawer. "
        f"Name another task, or use existing demonstrations: data=FILE.hdf5."
    )


def _placing_waypoints(goal: Goal) -> tuple[Waypoint, ...]:
    """Returns waypoints that grasp the subject of the goal and release it on or in the target."""
    x, y, z = GRASPS.get(object_kind(goal.subject), CENTRE)
    release = next((height for kind, height in RELEASES.items() if kind in goal.target), DEFAULT_RELEASE_M)
    return (
        Waypoint(0, (x, y, z + LIFT_M), OPEN, tolerance_m=0.02),
        Waypoint(0, (x, y, z), OPEN, tolerance_m=0.008, speed=0.6),
        Waypoint(0, (x, y, z), CLOSED, hold=8, tolerance_m=0.03),
        Waypoint(0, (x, y, z + LIFT_M), CLOSED, tolerance_m=0.03, speed=0.7),
        Waypoint(1, (x, y, z + LIFT_M), CLOSED, tolerance_m=0.015, speed=0.8),
        Waypoint(1, (x, y, z + release), CLOSED, tolerance_m=0.012, speed=0.5),
        Waypoint(1, (x, y, z + release), OPEN, hold=6, tolerance_m=0.03),
        Waypoint(1, (x, y, z + LIFT_M), OPEN, tolerance_m=0.03, speed=0.7, hold=10),
    )


def _closing_waypoints() -> tuple[Waypoint, ...]:
    """Returns waypoints that push a drawer shut.

    The region of a drawer moves with the drawer, and the cabinets of LIBERO open towards +y.
    """
    return (
        Waypoint(0, (0.0, 0.22, 0.15), CLOSED, tolerance_m=0.02),
        Waypoint(0, (0.0, 0.22, 0.02), CLOSED, tolerance_m=0.015),
        Waypoint(0, (0.0, 0.05, 0.02), CLOSED, follows=True, max_steps=200, speed=0.8),
    )


class ScriptedDemonstrator:
    """Policy without learning: moves the gripper along the waypoints of a script in one environment.

    Args:
        waypoints: Waypoints from `task_script`.
        rng: Generator of random shifts of the waypoints above objects, which make demonstrations differ.
        jitter: Largest shift in metres.
    """

    def __init__(self, waypoints: Sequence[Waypoint], rng: np.random.Generator, jitter: float = 0.02) -> None:
        self.waypoints, self.rng, self.jitter = waypoints, rng, jitter
        self.reset()

    def reset(self) -> None:
        """Prepares for a new episode: returns to the first waypoint and draws new random shifts."""
        self.index, self.steps_at_target, self.steps = 0, 0, 0
        self.initial_rotation: np.ndarray | None = None
        self.target: np.ndarray | None = None
        self.shifts = [
            self.rng.uniform(-self.jitter, self.jitter, 3)
            if waypoint.tolerance_m >= 0.02 and not waypoint.hold
            else np.zeros(3)
            for waypoint in self.waypoints
        ]

    def act(self, obs: dict[str, np.ndarray]) -> np.ndarray:
        """Returns an action (7,) float32 in [-1, 1] for the observations eef_pos, eef_quat and poses of `LiberoEnv`."""
        rotation = _rotation_matrix(obs["eef_quat"])
        if self.initial_rotation is None:
            self.initial_rotation = rotation
        waypoint = self.waypoints[self.index]
        if self.target is None or waypoint.follows:
            self.target = obs["poses"][waypoint.to] + np.asarray(waypoint.offset) + self.shifts[self.index]
        error = self.target - obs["eef_pos"]
        self.steps_at_target += int(np.linalg.norm(error) < waypoint.tolerance_m)
        self.steps += 1
        action = np.zeros(ACTION, np.float32)
        action[:3] = np.clip(error / METRES_PER_UNIT, -waypoint.speed, waypoint.speed)
        action[3:6] = np.clip(_axis_angle(self.initial_rotation @ rotation.T) / RADIANS_PER_UNIT, -1, 1)
        action[6] = waypoint.grip
        finished = self.steps_at_target > waypoint.hold or self.steps >= waypoint.max_steps
        if finished and self.index < len(self.waypoints) - 1:
            self.index, self.steps_at_target, self.steps, self.target = self.index + 1, 0, 0, None
        return action


def _rotation_matrix(quaternion: np.ndarray) -> np.ndarray:
    """Converts a quaternion (4,) x, y, z, w to a rotation matrix (3, 3)."""
    x, y, z, w = np.asarray(quaternion, np.float64) / np.linalg.norm(quaternion)
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
            [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
            [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
        ]
    )


def _axis_angle(matrix: np.ndarray) -> np.ndarray:
    """Converts a rotation matrix (3, 3) to axis times angle (3,) in rad, for angles well below pi."""
    axis = np.array([matrix[2, 1] - matrix[1, 2], matrix[0, 2] - matrix[2, 0], matrix[1, 0] - matrix[0, 1]]) / 2
    sine, cosine = np.linalg.norm(axis), (np.trace(matrix) - 1) / 2
    return axis * (np.arctan2(sine, cosine) / sine) if sine > 1e-8 else axis
