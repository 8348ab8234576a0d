"""The next skill that a scripted demonstrator executes, in scenes without a simulator."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from powerband.recipes.libero.env.scripted.fixtures import drawer_way, in_way_of_drawer, knob_angle, knob_of, top_of
from powerband.recipes.libero.env.scripted.rotations import about_vertical
from powerband.recipes.libero.env.scripted.waypoints import Pose, Scene
from powerband.recipes.libero.env.scripted_policy import Script, ScriptedDemonstrator, next_skill
from powerband.recipes.libero.env.tasks import Goal

CABINET, DRAWER, BOWL, STOVE = "wooden_cabinet_1", "wooden_cabinet_1_top_region", "akita_black_bowl_1", "flat_stove_1"
INSIDE, SHUT, ON = Goal("in", BOWL, DRAWER), Goal("close", DRAWER), Goal("turnon", STOVE)
HAND = Pose(np.array([-0.2, 0.0, 1.2]), np.diag([1.0, -1.0, -1.0]))


def scene(met: tuple[bool, ...], way: float = 0.0, bowl: tuple[float, float] = (-0.4, 0.0), yaw: float = 0.0) -> Scene:
    """Returns a cabinet turned by `yaw` rad with its drawer open by `way` metres, a bowl on the table and a stove."""
    turn = about_vertical(yaw)
    cabinet = Pose(np.array([0.0, 0.3, 0.9]), turn)
    places = {
        CABINET: cabinet,
        DRAWER: Pose(cabinet @ (0.003, 0.0113 - way, 0.186), turn),
        top_of(CABINET): Pose(cabinet @ (0.0, 0.0, 0.22), turn),
        BOWL: Pose(np.array([*bowl, 0.9]), np.eye(3)),
        STOVE: Pose(np.array([-0.4, 0.2, 0.9]), np.eye(3)),
        knob_of(STOVE): Pose(np.array([-0.4, 0.2, 0.9]), about_vertical(np.pi / 2)),
    }
    return Scene(HAND, places, met)


def skill(goals: tuple[Goal, ...], now: Scene, attempts: Mapping[str, int] | None = None) -> str:
    return next_skill(Script(goals, tuple(now.places)), now, attempts or {})[0]


def test_a_drawer_is_opened_then_filled_then_closed() -> None:
    goals = (SHUT, INSIDE)
    assert skill(goals, scene((True, False))) == f"open {DRAWER}"
    assert skill(goals, scene((False, False), way=0.155)) == f"in {BOWL}"
    assert skill(goals, scene((False, True), way=0.155)) == f"close {DRAWER}"
    assert skill(goals, scene((True, True))) == ""


def test_conditions_that_hold_are_left_alone_and_the_stove_comes_before_the_bowl() -> None:
    goals = (Goal("on", BOWL, f"{STOVE}_cook_region"), ON)
    now = scene((False, False))
    now = Scene(now.hand, {**now.places, f"{STOVE}_cook_region": now.places[STOVE]}, now.met)
    assert skill(goals, now) == f"turnon {STOVE}"
    assert skill(goals, Scene(now.hand, now.places, (False, True))) == f"on {BOWL}"
    assert skill(goals, Scene(now.hand, now.places, (True, False))) == f"turnon {STOVE}"


@pytest.mark.parametrize("yaw", [0.0, np.pi, 2.7])
def test_a_bowl_in_the_way_of_the_drawer_is_moved_onto_the_cabinet(yaw: float) -> None:
    """The drawer opens along -y of its cabinet, whichever way the cabinet is turned."""
    front = scene((), yaw=yaw).places[CABINET] @ (0.05, -0.25, 0.0)
    now = scene((False,), bowl=(front[0], front[1]), yaw=yaw)
    assert in_way_of_drawer(now, BOWL, DRAWER) and drawer_way(now, DRAWER) == pytest.approx(0.0, abs=1e-9)
    assert skill((INSIDE,), now) == f"on {BOWL}"
    assert skill((INSIDE,), now, {f"on {BOWL}": 1}) == f"open {DRAWER}", "it is moved away once"
    behind = scene((), yaw=yaw).places[CABINET] @ (0.05, 0.3, 0.0)
    assert not in_way_of_drawer(scene((False,), bowl=(behind[0], behind[1]), yaw=yaw), BOWL, DRAWER)


def test_another_attempt_uses_another_grasp() -> None:
    now = scene((False,), way=0.155)
    script = Script((INSIDE,), tuple(now.places))
    grasps = [next_skill(script, now, {f"in {BOWL}": attempt})[1][2].target(now).position for attempt in range(3)]
    assert len({tuple(np.round(grasp, 3)) for grasp in grasps}) == 3
    for grasp in grasps:
        assert np.linalg.norm((grasp - now.places[BOWL].position)[:2]) == pytest.approx(0.05), "on the rim"


def test_the_grasp_that_succeeds_in_most_episodes_becomes_the_first() -> None:
    now = scene((False,), way=0.155)
    script = Script((INSIDE,), tuple(now.places))
    demonstrator = ScriptedDemonstrator(script, np.random.default_rng(0))

    def play(attempts: int, solved: bool) -> int:
        """Plays an episode in which the skill is executed `attempts` times; returns the number of its first attempt."""
        first = demonstrator.first.get(f"in {BOWL}", 0)
        demonstrator.attempts[f"in {BOWL}"] = attempts
        demonstrator.reset(solved)
        return first

    assert [play(2, True), play(3, False), play(1, True), play(2, True), play(1, True)] == [0, 1, 1, 1, 1]
    expected = next_skill(script, now, {f"in {BOWL}": 1})[1][2].target(now).position
    np.testing.assert_array_equal(next_skill(script, now, {}, demonstrator.first)[1][2].target(now).position, expected)


def test_the_knob_turns_about_its_axis_to_the_target_angle() -> None:
    now = scene((False,))
    assert knob_angle(now, STOVE) == pytest.approx(0.0)
    waypoints = next_skill(Script((ON,), tuple(now.places)), now, {})[1]
    before, after = waypoints[3].target(now), waypoints[4].target(now)
    np.testing.assert_allclose(after.rotation, about_vertical(1.3) @ before.rotation, atol=1e-9)
    axis = now.places[knob_of(STOVE)].position
    np.testing.assert_allclose(after.position - axis, about_vertical(1.3) @ (before.position - axis), atol=1e-9)


def test_two_objects_for_one_basket_are_put_side_by_side() -> None:
    first, second = Goal("in", "butter_1", "basket_1_contain_region"), Goal("in", "milk_1", "basket_1_contain_region")
    places = {
        "butter_1": Pose(np.array([0.1, 0.1, 0.45]), np.eye(3)),
        "milk_1": Pose(np.array([0.1, -0.1, 0.5]), np.eye(3)),
        "basket_1_contain_region": Pose(np.array([0.0, 0.25, 0.5]), np.eye(3)),
    }
    script, ends = Script((first, second), tuple(places)), []
    for met, name in (((False, False), "butter_1"), ((True, False), "milk_1")):
        held = places[name].position
        now = Scene(Pose(held, np.diag([1.0, -1.0, -1.0])), places, met)  # the hand is at the centre of the object
        title, waypoints = next_skill(script, now, {})
        assert title == f"in {name}"
        ends.append(waypoints[7].target(now).position)
    assert np.linalg.norm((ends[0] - ends[1])[:2]) == pytest.approx(0.06)
    assert np.mean(ends, axis=0)[:2] == pytest.approx([0.0, 0.25])
