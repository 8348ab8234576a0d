"""Rotations of the hand, and target poses of held objects."""

from __future__ import annotations

import numpy as np
import pytest

from powerband.recipes.libero.env.scripted.grasps import GRASPS, grasps_of, lowest_of, object_kind
from powerband.recipes.libero.env.scripted.rotations import (
    DOWN,
    UP,
    about_vertical,
    axis_angle,
    hand_rotation,
    rotation_matrix,
)
from powerband.recipes.libero.env.scripted.waypoints import Pose, Scene, carrying

AXES = np.eye(3)


def test_quaternions_and_axes_describe_the_same_rotation() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        axis, angle = rng.standard_normal(3), rng.uniform(0, 3)
        axis /= np.linalg.norm(axis)
        matrix = rotation_matrix(np.array([*(np.sin(angle / 2) * axis), np.cos(angle / 2)]))
        np.testing.assert_allclose(axis_angle(matrix), angle * axis, atol=1e-9)
        np.testing.assert_allclose(matrix @ matrix.T, AXES, atol=1e-12)


@pytest.mark.parametrize("approach", [DOWN, AXES[1], -AXES[1], DOWN + AXES[1]])
def test_the_hand_points_along_its_approach_and_closes_along_its_fingers(approach: np.ndarray) -> None:
    fingers = AXES[0]
    rotation = hand_rotation(approach, fingers)
    np.testing.assert_allclose(rotation.T @ rotation, AXES, atol=1e-12)
    assert np.linalg.det(rotation) == pytest.approx(1.0)
    np.testing.assert_allclose(rotation[:, 2], approach / np.linalg.norm(approach), atol=1e-12)
    assert abs(rotation[:, 1] @ fingers) == pytest.approx(1.0)
    np.testing.assert_allclose(hand_rotation(approach, -fingers), rotation, atol=1e-12, err_msg="the fingers are alike")


def test_the_initial_orientation_is_kept_for_fingers_along_y_and_half_turns_are_avoided() -> None:
    initial = np.diag([1.0, -1.0, -1.0])
    np.testing.assert_allclose(hand_rotation(DOWN, AXES[1]), initial, atol=1e-12)
    for yaw in np.linspace(0, 2 * np.pi, 17):
        turned = hand_rotation(DOWN, about_vertical(yaw) @ AXES[1])
        angle = axis_angle(turned @ initial.T) @ UP
        assert -np.pi / 4 - 1e-6 <= angle <= 3 * np.pi / 4 + 1e-6, "the last joint stays off its limits"


def test_a_held_object_is_brought_to_the_wanted_pose() -> None:
    held = Pose(np.array([0.1, 0.2, 0.5]), about_vertical(0.4))
    hand = Pose(held @ (0.0, 0.05, 0.03), np.diag([1.0, -1.0, -1.0]))
    wanted = Pose(np.array([-0.1, 0.0, 0.8]), about_vertical(-1.1))
    target = carrying("book", lambda scene: wanted)(Scene(hand, {"book": held}, ()))
    turn = target.rotation @ hand.rotation.T
    np.testing.assert_allclose(turn @ held.rotation, wanted.rotation, atol=1e-12)
    np.testing.assert_allclose(target.position + turn @ (held.position - hand.position), wanted.position, atol=1e-12)


def test_names_lose_their_number_and_unknown_kinds_are_held_at_the_centre() -> None:
    assert object_kind("akita_black_bowl_1") == "akita_black_bowl" and object_kind("chefmate_8_frypan_1") != "chefmate"
    assert grasps_of("new_salad_1")[0].offset == (0.0, 0.0, 0.0) and lowest_of("new_salad_1") == 0.0
    assert len(GRASPS["akita_black_bowl"]) > 2 and lowest_of("moka_pot_2") == 0.066
