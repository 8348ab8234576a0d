"""The unified vector: 128 slots, each with a meaning of its own, that states and actions of any arm are written into.

Of LIBERO's one arm a state fills the joints, the gripper and the pose of the end effector, an action the gripper and
the change of that pose. Rotations lie there as 6-D, the first two columns of the matrix: continuous, as quaternions and
angles are not (Zhou et al. 2019). Sources: Liu et al. 2024 (RDT-1B, arXiv 2410.07864), whose slots these are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from powerband.core.flags import ConfigError

UNIFIED = 128
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
RADIANS_A_UNIT = 0.5
"""What 1 of an action's rotation is: `output_max` of the OSC_POSE controller (robosuite 1.4)."""
FINGER_M = 0.04
"""How far a finger of the Panda's gripper goes."""
ACTION_DIM = 7


def gripper_opening(qpos: Tensor) -> Tensor:
    """Positions of the two fingers in metres (..., 2), 0..0.04 and -0.04..0 -> (...): 0 closed, 1 open.

    Takes NumPy arrays too, so that training and evaluation share it.

    Raises:
        ConfigError: The gripper has another number of fingers.
    """
    if qpos.shape[-1] != 2:
        raise ConfigError(f"the gripper has {qpos.shape[-1]} positions; this robot is a Panda, whose gripper has 2.")
    return ((qpos[..., 0] - qpos[..., 1]) / (2 * FINGER_M)).clip(0.0, 1.0)


def state_vector(joints: Tensor, gripper: Tensor, eef_pos: Tensor, eef_quat: Tensor) -> Tensor:
    """The unified vector of a state.

    Args:
        joints: (..., 7) radians.
        gripper: (...) opening, 0 to 1.
        eef_pos: (..., 3) metres.
        eef_quat: (..., 4) x, y, z, w, of any length but 0.

    Returns:
        (..., 128) float32; slots outside `STATE_SLOTS` are 0.
    """
    vector = torch.zeros(*gripper.shape, UNIFIED, device=gripper.device)
    vector[..., JOINTS], vector[..., GRIPPER], vector[..., POSITION] = joints, gripper, eef_pos
    vector[..., ROTATION] = six_of(eef_quat.double()).float()
    return vector


def action_vector(action: Tensor) -> Tensor:
    """The unified vector of LIBERO's action.

    Args:
        action: (..., 7) in [-1, 1]: change of position, of rotation (axis times angle), gripper.

    Returns:
        (..., 128) float32: position and gripper as they are, the rotation in 6-D; slots outside `ACTION_SLOTS` are 0.
    """
    vector = torch.zeros(*action.shape[:-1], UNIFIED, device=action.device)
    vector[..., POSITION], vector[..., GRIPPER] = action[..., :3], action[..., 6]
    vector[..., ROTATION] = six_of(quat_of(action[..., 3:6].double() * RADIANS_A_UNIT)).float()
    return vector


def action_of(vector: Tensor) -> Tensor:
    """LIBERO's action (..., 7) float32 in [-1, 1] of a unified vector (..., 128): the inverse of `action_vector`.

    Six numbers that are no rotation, as a network gives them, are taken for the nearest by Gram and Schmidt.
    """
    turn = axis_angle_of(quat_of_six(vector[..., ROTATION].double())) / RADIANS_A_UNIT
    parts = [vector[..., POSITION].double(), turn, vector[..., GRIPPER].double().unsqueeze(-1)]
    return torch.cat(parts, -1).clamp(-1.0, 1.0).float()


def at_slots(values: Tensor, names: Sequence[str], fill: float = 0.0) -> Tensor:
    """Spreads `values` (..., D) of the slots called `names` over the unified vector (..., 128); `fill` elsewhere."""
    vector = torch.full((*values.shape[:-1], UNIFIED), fill, dtype=values.dtype, device=values.device)
    vector[..., [NAMED_SLOTS[name] for name in names]] = values
    return vector


def slots_there(slots: Sequence[int]) -> Tensor:
    """(128,) bool: True at `slots`."""
    there = torch.zeros(UNIFIED, dtype=torch.bool)
    there[list(slots)] = True
    return there


def quat_of(axis_angle: Tensor) -> Tensor:
    """Axis times angle in radians (..., 3) -> unit quaternion (..., 4) x, y, z, w."""
    half = axis_angle.norm(dim=-1, keepdim=True) / 2
    return torch.cat([axis_angle * torch.sinc(half / math.pi) / 2, half.cos()], -1)


def axis_angle_of(quat: Tensor) -> Tensor:
    """Unit quaternion (..., 4) x, y, z, w -> axis times angle (..., 3), the angle in 0..pi."""
    quat = torch.where(quat[..., 3:] < 0, -quat, quat)
    sine = quat[..., :3].norm(dim=-1, keepdim=True)
    angle = 2 * torch.atan2(sine, quat[..., 3:])
    return quat[..., :3] * torch.where(sine > 1e-12, angle / sine.clamp(min=1e-12), 2.0)


def six_of(quat: Tensor) -> Tensor:
    """Quaternion (..., 4) x, y, z, w of any length but 0 -> first column, then second, of its matrix (..., 6)."""
    x, y, z, w = torch.nn.functional.normalize(quat, dim=-1).unbind(-1)
    first = [1 - 2 * (y * y + z * z), 2 * (x * y + z * w), 2 * (x * z - y * w)]
    second = [2 * (x * y - z * w), 1 - 2 * (x * x + z * z), 2 * (y * z + x * w)]
    return torch.stack(first + second, -1)


def quat_of_six(six: Tensor) -> Tensor:
    """Two columns (..., 6) that need be neither of length 1 nor at right angles -> unit quaternion (..., 4) x, y, z, w.

    The quaternion's products with itself are sums of the matrix's entries; the row of its largest part is taken, which
    is exact at every angle. Source: Shepperd 1978.
    """
    x = _unit(six[..., :3], torch.eye(3, dtype=six.dtype, device=six.device)[0].expand_as(six[..., :3]))
    y = six[..., 3:] - (x * six[..., 3:]).sum(-1, keepdim=True) * x
    aside = torch.nn.functional.one_hot(x.abs().argmin(-1), 3).to(six.dtype)
    y = _unit(y, aside - (x * aside).sum(-1, keepdim=True) * x)
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


def _unit(vector: Tensor, otherwise: Tensor) -> Tensor:
    """(..., 3) at length 1; `otherwise`, where there is no direction."""
    length = vector.norm(dim=-1, keepdim=True)
    return torch.nn.functional.normalize(torch.where(length > 1e-8, vector, otherwise), dim=-1)
