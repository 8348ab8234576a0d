"""Unified vector: 128 slots with fixed meanings that represent the states and actions of any robot arm.

A state of LIBERO's arm fills the joints, the gripper and the pose of the end effector; an action fills the gripper and
the change of that pose. Rotations are 6-D, the first two columns of the matrix, which is continuous, unlike quaternions
and angles (Zhou et al. 2019). Source of the slots: Liu et al. 2024 (RDT-1B, arXiv 2410.07864).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from powerband.core.errors import ConfigError

UNIFIED_DIM = 128
JOINTS, GRIPPER, POSITION, ROTATION = slice(0, 7), 10, slice(30, 33), slice(33, 39)
STATE_SLOTS = (*range(7), 10, *range(30, 39))
ACTION_SLOTS = (10, *range(30, 39))
SLOT_NAMES: dict[int, str] = {
    **{number: f"joint_{number}" for number in range(7)},
    10: "gripper",
    **{30 + number: f"eef_{axis}" for number, axis in enumerate("xyz")},
    **{33 + number: f"rotation_{number}" for number in range(6)},
}
NAMED_SLOTS = {name: slot for slot, name in SLOT_NAMES.items()}
RADIANS_PER_UNIT = 0.5
"""Rotation of an action entry of 1: `output_max` of the controller OSC_POSE (robosuite 1.4)."""
FINGER_M = 0.04
"""Distance that a finger of the Panda's gripper moves, in metres."""
ACTION_DIM = 7


def gripper_opening(qpos: Tensor) -> Tensor:
    """Computes the gripper opening (...) from the positions of its fingers; 0 is closed, 1 is open.

    Args:
        qpos: Positions (..., 2) of the two fingers in metres, 0..0.04 and -0.04..0; a NumPy array also works.

    Raises:
        ConfigError: The gripper has another number of fingers.
    """
    if qpos.shape[-1] != 2:
        raise ConfigError(
            f"The gripper has {qpos.shape[-1]} positions, but that of the Panda has 2. Use demonstrations of a Panda."
        )
    return ((qpos[..., 0] - qpos[..., 1]) / (2 * FINGER_M)).clip(0.0, 1.0)


def state_vector(joints: Tensor, gripper: Tensor, eef_pos: Tensor, eef_quat: Tensor) -> Tensor:
    """Converts a state of the arm to a unified vector, 128 entries (slots) with fixed meanings for any robot arm.

    Args:
        joints: Joint positions (..., 7) in radians.
        gripper: Gripper opening (...), 0 (closed) to 1.
        eef_pos: Position of the end effector (..., 3) in metres.
        eef_quat: Rotation of the end effector, a quaternion (..., 4) x, y, z, w of any length except 0.

    Returns:
        Unified vector (..., 128) float32; slots outside `STATE_SLOTS` are 0.
    """
    vector = torch.zeros(*gripper.shape, UNIFIED_DIM, device=gripper.device)
    vector[..., JOINTS], vector[..., GRIPPER], vector[..., POSITION] = joints, gripper, eef_pos
    vector[..., ROTATION] = quat_to_rotation_6d(eef_quat.double()).float()
    return vector


def action_vector(action: Tensor) -> Tensor:
    """Converts an action of LIBERO to a unified vector, 128 entries (slots) with fixed meanings for any robot arm.

    Args:
        action: Action (..., 7) in [-1, 1]: change of position, change of rotation (axis times angle), gripper.

    Returns:
        Unified vector (..., 128) float32, with the rotation as two columns of its matrix; slots outside `ACTION_SLOTS`
        are 0.
    """
    vector = torch.zeros(*action.shape[:-1], UNIFIED_DIM, device=action.device)
    vector[..., POSITION], vector[..., GRIPPER] = action[..., :3], action[..., 6]
    vector[..., ROTATION] = quat_to_rotation_6d(
        axis_angle_to_quat(action[..., 3:6].double() * RADIANS_PER_UNIT)
    ).float()
    return vector


def libero_action(vector: Tensor) -> Tensor:
    """Converts a unified vector (..., 128) to an action of LIBERO (..., 7) float32 in [-1, 1]; inverts `action_vector`.

    The rotation may be any six numbers, such as the output of a network: Gram-Schmidt orthogonalisation yields a valid
    rotation.
    """
    rotation = quat_to_axis_angle(rotation_6d_to_quat(vector[..., ROTATION].double())) / RADIANS_PER_UNIT
    parts = [vector[..., POSITION].double(), rotation, vector[..., GRIPPER].double().unsqueeze(-1)]
    return torch.cat(parts, -1).clamp(-1.0, 1.0).float()


def scatter_to_slots(values: Tensor, names: Sequence[str], fill: float = 0.0) -> Tensor:
    """Returns unified vectors (..., 128) in which the D entries `names` have the `values` (..., D), others `fill`."""
    vector = torch.full((*values.shape[:-1], UNIFIED_DIM), fill, dtype=values.dtype, device=values.device)
    vector[..., [NAMED_SLOTS[name] for name in names]] = values
    return vector


def slot_mask(slots: Sequence[int]) -> Tensor:
    """Returns a mask (128,) bool of the unified vector, True at the entries `slots`."""
    mask = torch.zeros(UNIFIED_DIM, dtype=torch.bool)
    mask[list(slots)] = True
    return mask


def axis_angle_to_quat(axis_angle: Tensor) -> Tensor:
    """Converts axis times angle in radians (..., 3) to a unit quaternion (..., 4) x, y, z, w."""
    half = axis_angle.norm(dim=-1, keepdim=True) / 2
    return torch.cat([axis_angle * torch.sinc(half / math.pi) / 2, half.cos()], -1)


def quat_to_axis_angle(quat: Tensor) -> Tensor:
    """Converts a unit quaternion (..., 4) x, y, z, w to axis times angle (..., 3), with the angle in 0..pi."""
    quat = torch.where(quat[..., 3:] < 0, -quat, quat)
    sine = quat[..., :3].norm(dim=-1, keepdim=True)
    angle = 2 * torch.atan2(sine, quat[..., 3:])
    return quat[..., :3] * torch.where(sine > 1e-12, angle / sine.clamp(min=1e-12), 2.0)


def quat_to_rotation_6d(quat: Tensor) -> Tensor:
    """Converts a quaternion (..., 4) x, y, z, w of any length except 0 to the first two columns of its rotation matrix.

    Returns:
        The columns (..., 6), one after the other.
    """
    x, y, z, w = torch.nn.functional.normalize(quat, dim=-1).unbind(-1)
    first = [1 - 2 * (y * y + z * z), 2 * (x * y + z * w), 2 * (x * z - y * w)]
    second = [2 * (x * y - z * w), 1 - 2 * (x * x + z * z), 2 * (y * z + x * w)]
    return torch.stack(first + second, -1)


def rotation_6d_to_quat(six: Tensor) -> Tensor:
    """Converts the first two columns (..., 6) of a rotation matrix to a unit quaternion (..., 4) x, y, z, w.

    The columns need not be orthonormal; Gram-Schmidt orthogonalisation makes them so.

    The products of the quaternion's components are sums of the matrix's entries; the row of the largest component is
    accurate at every angle. Source: Shepperd 1978.
    """
    x = _unit(six[..., :3], torch.eye(3, dtype=six.dtype, device=six.device)[0].expand_as(six[..., :3]))
    y = six[..., 3:] - (x * six[..., 3:]).sum(-1, keepdim=True) * x
    perpendicular = torch.nn.functional.one_hot(x.abs().argmin(-1), 3).to(six.dtype)
    y = _unit(y, perpendicular - (x * perpendicular).sum(-1, keepdim=True) * x)
    z = torch.linalg.cross(x, y)
    (xx, yx, zx), (xy, yy, zy), (xz, yz, zz) = x.unbind(-1), y.unbind(-1), z.unbind(-1)
    rows = [
        [1 + xx - yy - zz, xy + yx, xz + zx, zy - yz],
        [xy + yx, 1 - xx + yy - zz, yz + zy, xz - zx],
        [xz + zx, yz + zy, 1 - xx - yy + zz, yx - xy],
        [zy - yz, xz - zx, yx - xy, 1 + xx + yy + zz],
    ]
    products = torch.stack([torch.stack(row, -1) for row in rows], -2)
    largest = products.diagonal(dim1=-2, dim2=-1).argmax(-1)
    row = products.take_along_dim(largest[..., None, None], -2).squeeze(-2)
    return torch.nn.functional.normalize(row, dim=-1)


def _unit(vector: Tensor, default: Tensor) -> Tensor:
    """Normalises vectors (..., 3); those of length 0 become `default`."""
    length = vector.norm(dim=-1, keepdim=True)
    return torch.nn.functional.normalize(torch.where(length > 1e-8, vector, default), dim=-1)
