"""Finds the keyframes of recorded episodes: the steps in which the gripper opens or closes."""

from __future__ import annotations

import torch
from torch import Tensor


def next_keyframes(closes: Tensor, last: Tensor) -> Tensor:
    """Returns the next keyframe after each step: where the command of the gripper next changes, or the episode ends.

    Source of the term: James and Davison 2022, arXiv 2105.14829.

    Args:
        closes: Whether the action of each row closes the gripper, (N,) bool.
        last: Index of the last row of each row's episode (N,) int64; the rows of an episode are consecutive.

    Returns:
        Indices of rows (N,) int64, above the row's own index except for the last row of an episode, which returns
        itself.
    """
    rows = torch.arange(len(closes))
    changed = torch.zeros_like(closes)
    changed[1:] = (closes[1:] != closes[:-1]) & (last[1:] == last[:-1])
    keyframes = (changed | (rows == last)).nonzero()[:, 0]
    following = torch.searchsorted(keyframes, rows, right=True).clamp(max=len(keyframes) - 1)
    return torch.minimum(keyframes[following], last)
