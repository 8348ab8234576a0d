"""Unified vector: published slots, rotations compared with SciPy, and round trips of actions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from powerband.core.errors import ConfigError
from powerband.data.robot.unified_vector import (
    ACTION_SLOTS,
    RADIANS_PER_UNIT,
    ROTATION,
    SLOT_NAMES,
    STATE_SLOTS,
    UNIFIED_DIM,
    action_vector,
    axis_angle_to_quat,
    gripper_opening,
    libero_action,
    quat_to_axis_angle,
    quat_to_rotation_6d,
    rotation_6d_to_quat,
    scatter_to_slots,
    slot_mask,
    state_vector,
)

unit = st.floats(-1.0, 1.0, width=32)
ACTIONS = arrays.arrays(np.float32, (5, 7), elements=unit)


def test_slots_equal_those_of_rdt() -> None:
    # RoboticsDiffusionTransformer, configs/state_vec.py: arm_joint_0_pos.., gripper_open, eef_pos_x.., eef_angle_0..
    published = {f"joint_{number}": number for number in range(7)} | {"gripper": 10}
    published |= {"eef_x": 30, "eef_y": 31, "eef_z": 32} | {f"rotation_{number}": 33 + number for number in range(6)}
    assert {name: slot for slot, name in SLOT_NAMES.items()} == published
    assert set(STATE_SLOTS) == set(SLOT_NAMES) and set(ACTION_SLOTS) == {10, *range(30, 39)}


@settings(max_examples=100, deadline=None)
@given(ACTIONS)
def test_a_round_trip_preserves_an_action(action: np.ndarray) -> None:
    given_ = torch.from_numpy(action)
    vector = action_vector(given_)
    assert vector.shape == (5, UNIFIED_DIM) and vector.dtype == torch.float32
    assert not vector[:, ~slot_mask(ACTION_SLOTS)].any()
    back = libero_action(vector)
    assert back.dtype == torch.float32 and float((back - given_).abs().max()) <= 1e-5


@pytest.mark.parametrize("value", [-1.0, -1e-7, 0.0, 1e-30, 1.0])
def test_a_round_trip_preserves_extreme_and_small_actions(value: float) -> None:
    action = torch.full((7,), value)
    assert torch.allclose(libero_action(action_vector(action)), action, atol=1e-5, rtol=0)


def test_rotations_equal_those_of_scipy() -> None:
    rotation = pytest.importorskip("scipy.spatial.transform", reason="scipy is not installed").Rotation
    rng = np.random.default_rng(0)
    quat = rng.normal(size=(200, 4))
    columns = rotation.from_quat(quat).as_matrix()[:, :, :2]
    expected = np.concatenate([columns[:, :, 0], columns[:, :, 1]], 1)
    assert np.allclose(quat_to_rotation_6d(torch.from_numpy(quat)).numpy(), expected, atol=1e-12)
    turn = rng.uniform(-1, 1, size=(200, 3))
    columns = rotation.from_rotvec(turn * RADIANS_PER_UNIT).as_matrix()[:, :, :2]
    action = torch.zeros(200, 7)
    action[:, 3:6] = torch.from_numpy(turn)
    expected = np.concatenate([columns[:, :, 0], columns[:, :, 1]], 1)
    assert np.allclose(action_vector(action)[:, ROTATION].numpy(), expected, atol=1e-6)
    assert np.allclose(
        axis_angle_to_quat(torch.from_numpy(turn)).numpy(), rotation.from_rotvec(turn).as_quat(), atol=1e-12
    )


@settings(max_examples=100, deadline=None)
@given(arrays.arrays(np.float64, 3, elements=st.floats(-1, 1)), st.floats(0, math.pi - 1e-3))
def test_a_round_trip_over_six_numbers_preserves_a_rotation(axis: np.ndarray, angle: float) -> None:
    length = np.linalg.norm(axis)
    turn = torch.from_numpy(axis / length * angle if length > 1e-3 else np.zeros(3))
    assert torch.allclose(
        quat_to_axis_angle(rotation_6d_to_quat(quat_to_rotation_6d(axis_angle_to_quat(turn)))), turn, atol=1e-9, rtol=0
    )


def test_a_rotation_by_180_degrees_is_preserved_up_to_its_sign() -> None:
    for axis in torch.eye(3, dtype=torch.float64):
        back = quat_to_axis_angle(rotation_6d_to_quat(quat_to_rotation_6d(axis_angle_to_quat(axis * math.pi))))
        assert torch.allclose(back.abs(), axis * math.pi, atol=1e-9)


def test_six_numbers_that_are_no_rotation_are_orthogonalised() -> None:
    torch.manual_seed(0)
    action = torch.rand(50, 7) * 2 - 1
    vector = action_vector(action)
    skewed = vector.clone()
    first, second = vector[:, 33:36], vector[:, 36:39]
    skewed[:, 33:36], skewed[:, 36:39] = 2.5 * first, 0.3 * second + 0.7 * first
    assert torch.allclose(libero_action(skewed), action, atol=1e-5, rtol=0)
    for broken in (torch.zeros(UNIFIED_DIM), torch.ones(UNIFIED_DIM), torch.randn(100, UNIFIED_DIM) * 10):
        found = libero_action(broken)
        assert bool(found.isfinite().all()) and float(found.abs().max()) <= 1.0
    far = vector.clone()
    far[:, 30] = 3.0
    assert torch.equal(libero_action(far)[:, 0], torch.ones(50))


def test_a_state_fills_its_slots() -> None:
    torch.manual_seed(0)
    joints, gripper, pos, quat = torch.randn(2, 3, 7), torch.rand(2, 3), torch.randn(2, 3, 3), torch.randn(2, 3, 4)
    vector = state_vector(joints, gripper, pos, quat)
    assert torch.equal(vector[..., :7], joints) and torch.equal(vector[..., 10], gripper)
    assert torch.equal(vector[..., 30:33], pos) and torch.allclose(
        vector[..., 33:39], quat_to_rotation_6d(quat), atol=1e-6
    )
    assert not vector[..., ~slot_mask(STATE_SLOTS)].any()
    assert torch.allclose(state_vector(joints, gripper, pos, 3 * quat), vector, atol=1e-6)


def test_the_gripper_opening_is_equal_for_arrays_and_tensors() -> None:
    qpos = np.array([[0.0, 0.0], [0.04, -0.04], [0.02, -0.02], [0.0208, -0.0208], [0.05, -0.05], [-0.001, 0.001]])
    expected = [0.0, 1.0, 0.5, 0.52, 1.0, 0.0]
    assert np.allclose(gripper_opening(qpos), expected)
    assert torch.allclose(gripper_opening(torch.from_numpy(qpos)), torch.tensor(expected, dtype=torch.float64))
    with pytest.raises(ConfigError, match="6 positions.*has 2"):
        gripper_opening(torch.zeros(4, 6))


def test_values_are_scattered_by_name() -> None:
    spread = scatter_to_slots(torch.tensor([[1.0, 2.0]]), ["eef_z", "joint_0"], fill=-1.0)
    assert spread.shape == (1, UNIFIED_DIM) and spread[0, 32] == 1.0 and spread[0, 0] == 2.0
    assert int((spread == -1.0).sum()) == UNIFIED_DIM - 2
