"""Finds the keyframes of recorded episodes: the steps in which the gripper opens or closes."""

from __future__ import annotations

import torch
from torch import Tensor

LEAVE_DISTANCE_M = 0.02
"""The hand has left a keyframe when it is this many metres away from the keyframe's position."""


def next_keyframes(closes: Tensor, position: Tensor, last: Tensor) -> Tensor:
    """Returns the keyframe that each step moves to: where the command of the gripper changes, or the episode ends.

    A step belongs to a keyframe until the hand leaves it, or until the next keyframe. The fingers need several steps
    for a command, in which the state does not show yet that the command has changed; without this rule the same state
    would have two targets. Source of the term: James and Davison 2022, arXiv 2105.14829.

    Args:
        closes: Whether the action of each row closes the gripper, (N,) bool.
        position: Position of the hand in metres, (N, 3).
        last: Index of the last row of each row's episode (N,) int64; the rows of an episode are consecutive.

    Returns:
        Indices of rows (N,) int64 in the same episodes.
    """
    rows = torch.arange(len(closes))
    changed = torch.zeros_like(closes)
    changed[1:] = (closes[1:] != closes[:-1]) & (last[1:] == last[:-1])
    keyframes = (changed | (rows == last)).nonzero()[:, 0]
    newest = torch.searchsorted(keyframes, rows, right=True) - 1  # -1 before the first keyframe of all
    away = (position - position[keyframes[newest]]).norm(dim=1) > LEAVE_DISTANCE_M
    following = torch.cat([keyframes[1:], torch.tensor([len(rows)])])
    leaves = torch.cat([away.nonzero()[:, 0], torch.tensor([len(rows)])])
    ends = torch.minimum(leaves[torch.searchsorted(leaves, keyframes)], following)
    ends = torch.minimum(ends, last[keyframes] + 1)
    return keyframes[torch.searchsorted(ends, rows, right=True)]
