"""ScriptedDemonstrator: solves LIBERO tasks with one skill for each condition of success that does not hold yet.

The goal of a task is a conjunction of conditions, such as (In bowl drawer) and (Close drawer). Each relation has a
skill, which plans waypoints of the hand from the positions of the objects. When a skill ends, the next one follows from
the conditions that still do not hold, so that a failed skill is tried again, with another grasp. The demonstrator
observes the poses of objects and the conditions, which a learned policy does not observe. It remembers over episodes
which grasp succeeded, and begins the next episode with that one: a policy without memory cannot learn from
demonstrations that fail first.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from powerband.core.errors import ConfigError
from powerband.recipes.libero.env.gymnasium_env import ACTION, OPEN
from powerband.recipes.libero.env.scripted.fixtures import (
    OPENED_DOOR_RAD,
    OPENED_M,
    door_angle,
    door_of,
    drawer_cabinet,
    drawer_way,
    in_way_of_drawer,
    knob_of,
    microwave_of,
    top_of,
)
from powerband.recipes.libero.env.scripted.grasps import HANDLES, object_kind
from powerband.recipes.libero.env.scripted.moving_parts import close_door, close_drawer, open_drawer, turn_knob
from powerband.recipes.libero.env.scripted.placing import put, put_in_microwave, slide
from powerband.recipes.libero.env.scripted.rotations import axis_angle, rotation_matrix
from powerband.recipes.libero.env.scripted.waypoints import Pose, Scene, Waypoint
from powerband.recipes.libero.env.tasks import Goal, LiberoTask

METRES_PER_UNIT, RADIANS_PER_UNIT = 0.05, 0.5
"""Translation and rotation that an action entry of 1 commands: the scale of the controller."""
STILL_M, STILL_RAD, STILL_STEPS = 0.0006, 0.006, 10
"""A hand that moves and turns less than this per action, for the last number of actions, goes on."""
ORDER = ("open", "turnon", "turnoff", "on", "in", "close")
"""Relations in the order in which their skills are executed."""


@dataclass(frozen=True)
class Script:
    """What a demonstrator has to do.

    Attributes:
        goals: Conditions of success, in the order of the task.
        places: Names of the objects, regions and bodies that the skills observe.
    """

    goals: tuple[Goal, ...]
    places: tuple[str, ...]


def task_script(task: LiberoTask) -> tuple[tuple[str, ...], Script]:
    """Returns (names, script): the names of what the script observes, for `LiberoEnv`, and the script.

    Raises:
        ConfigError: A condition of the task has no skill.
    """
    without = [goal for goal in task.goals if not _has_skill(goal)]
    if without or not task.goals:
        conditions = ", ".join(" ".join(filter(None, (g.relation, g.subject, g.target))) for g in without)
        raise ConfigError(
            f"The task {task.name} has no script (no skill for: {conditions or 'a task without conditions'}). Skills "
            f"place objects, open and close drawers, close microwaves, and turn stoves on and off. "
            f"Name another task, or use existing demonstrations: data=FILE.hdf5."
        )
    names = dict.fromkeys(name for goal in task.goals for name in _places(goal))
    return tuple(names), Script(task.goals, tuple(names))


def _has_skill(goal: Goal) -> bool:
    if goal.relation in ("on", "in"):
        return "microwave" not in goal.target or goal.relation == "on" or object_kind(goal.subject) in HANDLES
    if goal.relation in ("turnon", "turnoff"):
        return "stove" in goal.subject
    if goal.relation == "open":
        return bool(drawer_cabinet(goal.subject))
    return goal.relation == "close" and bool(drawer_cabinet(goal.subject) or microwave_of(goal.subject))


def _places(goal: Goal) -> list[str]:
    """Returns the names of what the skill of a goal observes."""
    names = [name for name in (goal.subject, goal.target) if name]
    for name in tuple(names):
        if drawer_cabinet(name):
            names += [drawer_cabinet(name), top_of(drawer_cabinet(name))]
        if microwave_of(name):
            names += [microwave_of(name), door_of(microwave_of(name))]
    return [*names, knob_of(goal.subject)] if goal.relation.startswith("turn") else names


def next_skill(
    script: Script, scene: Scene, attempts: Mapping[str, int], first: Mapping[str, int] | None = None
) -> tuple[str, list[Waypoint]]:
    """Returns (name, waypoints) of the skill for the first condition that does not hold, or ("", []) if all hold.

    Args:
        script: Conditions of the task.
        scene: Present scene.
        attempts: Name of a skill -> number of times that it was executed in this episode.
        first: Name of a skill -> number of its first attempt in an episode, if that is not 0.
    """
    missing = [goal for goal, met in zip(script.goals, scene.met, strict=True) if not met]
    if not missing:
        return "", []
    goal = min(missing, key=lambda goal: ORDER.index(goal.relation))
    target, relation = goal.target, goal.relation
    if relation == "in" and drawer_cabinet(target) and drawer_way(scene, target) < OPENED_M:
        cabinet = drawer_cabinet(target)
        if in_way_of_drawer(scene, goal.subject, target) and not attempts.get(f"on {goal.subject}"):
            goal, relation, target = Goal("on", goal.subject, top_of(cabinet)), "on", top_of(cabinet)
        else:
            goal, relation = Goal("open", target), "open"  # a drawer must be open before anything fits
    name = f"{relation} {goal.subject}"
    attempt = attempts.get(name, 0) + (first or {}).get(name, 0)
    if relation == "open":
        return name, open_drawer(scene, goal.subject, attempt)
    if relation == "close" and drawer_cabinet(goal.subject):
        return name, close_drawer(scene, goal.subject, attempt)
    if relation == "close":
        return name, close_door(scene, microwave_of(goal.subject), attempt)
    if relation.startswith("turn"):
        return name, turn_knob(scene, goal.subject, attempt, on=relation == "turnon")
    if relation == "in" and microwave_of(target) and door_angle(scene, microwave_of(target)) > OPENED_DOOR_RAD / 2:
        return name, put_in_microwave(scene, goal, attempt)
    if object_kind(goal.subject) == "plate" and target.endswith("region"):
        return name, slide(scene, goal, attempt)
    return name, put(scene, goal, attempt, _slot(script, goal))


def _slot(script: Script, goal: Goal) -> float:
    """Returns the place of an object among those for the same target; 0 is the centre, and neighbours differ by 1."""
    same = [other for other in script.goals if other.relation == goal.relation and other.target == goal.target]
    return same.index(goal) - (len(same) - 1) / 2 if goal in same else 0.0


class ScriptedDemonstrator:
    """Policy without learning: moves the hand along the waypoints of the skills of a script in one environment.

    Args:
        script: Script from `task_script`.
        rng: Generator of random shifts of waypoints in free space, which make demonstrations differ.
        jitter: Largest shift in metres.
    """

    def __init__(self, script: Script, rng: np.random.Generator, jitter: float = 0.02) -> None:
        self.script, self.rng, self.jitter = script, rng, jitter
        self.target: Pose | None = None
        self.last_hand: Pose | None = None
        self.shift = np.zeros(3)
        self.index = self.steps = self.steps_at_target = self.still_steps = 0
        self.successes: defaultdict[str, Counter[int]] = defaultdict(Counter)
        self.first: dict[str, int] = {}
        self.attempts: Counter[str] = Counter()
        self.reset()

    def reset(self, solved: bool = False) -> None:
        """Prepares for a new episode: no skill is active, and no skill was executed.

        Args:
            solved: Whether the last episode was solved. Each skill begins with the attempt that succeeded in most
                episodes.
        """
        if solved:
            for name, count in self.attempts.items():
                self.successes[name][self.first.get(name, 0) + count - 1] += 1
            self.first = {name: counts.most_common(1)[0][0] for name, counts in self.successes.items()}
        self.attempts = Counter()
        self.skill = ""
        self.waypoints: list[Waypoint] = []
        self._start_waypoint(0)

    def act(self, obs: Mapping[str, np.ndarray]) -> np.ndarray:
        """Returns an action (7,) float32 in [-1, 1].

        Args:
            obs: The observations eef_pos, eef_quat, poses, rotations and goals_met of `LiberoEnv`.
        """
        scene = self._scene(obs)
        if self.index >= len(self.waypoints):
            self.skill, self.waypoints = next_skill(self.script, scene, self.attempts, self.first)
            self.attempts[self.skill] += 1
            self._start_waypoint(0)
        action = np.zeros(ACTION, np.float32)
        action[6] = OPEN
        if not self.waypoints:
            return action
        waypoint = self.waypoints[self.index]
        if self.target is None or waypoint.follows:
            self.target = waypoint.target(scene)
        shift = self.shift if waypoint.varied else 0.0
        error = self.target.position + shift - scene.hand.position
        turn = axis_angle(self.target.rotation @ scene.hand.rotation.T)
        action[:3] = np.clip(error / METRES_PER_UNIT, -waypoint.speed, waypoint.speed)
        action[3:6] = np.clip(turn / RADIANS_PER_UNIT, -1, 1)
        action[6] = waypoint.grip
        arrived = np.linalg.norm(error) < waypoint.tolerance_m and np.linalg.norm(turn) < waypoint.tolerance_rad
        self.steps_at_target += int(arrived)
        self.steps += 1
        self.still_steps = self.still_steps + 1 if self._is_still(scene.hand) else 0
        ended = waypoint.until is not None and waypoint.until(scene)
        stuck = self.still_steps >= max(STILL_STEPS, waypoint.hold) or self.steps >= waypoint.max_steps
        if ended or stuck or self.steps_at_target > waypoint.hold:
            failed = waypoint.needs is not None and not waypoint.needs(scene)
            self._start_waypoint(len(self.waypoints) if failed else self.index + 1)
        return action

    def _start_waypoint(self, index: int) -> None:
        self.index, self.steps_at_target, self.steps, self.still_steps = index, 0, 0, 0
        self.target = self.last_hand = None
        self.shift = self.rng.uniform(-self.jitter, self.jitter, 3)

    def _is_still(self, hand: Pose) -> bool:
        """Returns whether the hand did not move since the last action of this waypoint."""
        before, self.last_hand = self.last_hand, hand
        if before is None:
            return False
        turn = axis_angle(hand.rotation @ before.rotation.T)
        moved = np.linalg.norm(hand.position - before.position)
        return bool(moved < STILL_M and np.linalg.norm(turn) < STILL_RAD)

    def _scene(self, obs: Mapping[str, np.ndarray]) -> Scene:
        places = {
            name: Pose(np.asarray(obs["poses"][row], np.float64), rotation_matrix(obs["rotations"][row]))
            for row, name in enumerate(self.script.places)
        }
        hand = Pose(np.asarray(obs["eef_pos"], np.float64), rotation_matrix(obs["eef_quat"]))
        return Scene(hand, places, tuple(bool(met) for met in obs["goals_met"]))
