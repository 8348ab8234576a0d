"""Rotations of the hand: conversions, and the orientation for an approach and an axis of the fingers. NumPy only."""

from __future__ import annotations

import numpy as np

UP = np.array([0.0, 0.0, 1.0])
DOWN = -UP
REFERENCE_YAW = np.pi / 4
"""Turn of the hand about the vertical, in rad from its initial one, at which its last joint is far from both limits."""


def rotation_matrix(quaternion: np.ndarray) -> np.ndarray:
    """Converts a quaternion (4,) x, y, z, w to a rotation matrix (3, 3)."""
    x, y, z, w = np.asarray(quaternion, np.float64) / np.linalg.norm(quaternion)
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
            [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
            [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
        ]
    )


def axis_angle(matrix: np.ndarray) -> np.ndarray:
    """Converts a rotation matrix (3, 3) to axis times angle (3,) in rad, for angles well below pi."""
    axis = np.array([matrix[2, 1] - matrix[1, 2], matrix[0, 2] - matrix[2, 0], matrix[1, 0] - matrix[0, 1]]) / 2
    sine, cosine = np.linalg.norm(axis), (np.trace(matrix) - 1) / 2
    return axis * (np.arctan2(sine, cosine) / sine) if sine > 1e-8 else axis


def about_vertical(angle: float) -> np.ndarray:
    """Returns the rotation matrix (3, 3) of a turn about the vertical by `angle` in rad."""
    cosine, sine = np.cos(angle), np.sin(angle)
    return np.array([[cosine, -sine, 0.0], [sine, cosine, 0.0], [0.0, 0.0, 1.0]])


def hand_rotation(approach: np.ndarray, fingers: np.ndarray) -> np.ndarray:
    """Returns the orientation (3, 3) of the hand that points along `approach` and closes its fingers along `fingers`.

    Both are directions (3,) in the world. The two fingers are alike, so two orientations fit. The result is the one
    nearer to a hand that points down and is turned by `REFERENCE_YAW`.
    """
    point = approach / np.linalg.norm(approach)
    close = fingers - point * (fingers @ point)
    close /= np.linalg.norm(close)
    reference = about_vertical(REFERENCE_YAW) @ np.diag([1.0, -1.0, -1.0])
    both = [np.stack([np.cross(sign * close, point), sign * close, point], axis=1) for sign in (1.0, -1.0)]
    return max(both, key=lambda rotation: np.trace(reference.T @ rotation))
