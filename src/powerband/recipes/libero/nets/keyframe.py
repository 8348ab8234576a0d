"""KeyframeHead: predicts where the end effector will be at the next keyframe of a demonstration.

A keyframe is a step in which the gripper opens or closes, or the last step of the episode; `next_keyframes` finds it.
Source of the term: James and Davison 2022, arXiv 2105.14829, who extract keyframes from demonstrations in this way.
Suffixes: R rows, F frames, C cameras, P patches, L tokens, D width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

POSITION_DIM = 3
PATCH_FEATURES = 32
"""Features of a patch that the head uses."""
HIDDEN = 256
FINE = 5.0
"""Factor of the second copy of the offset, which distinguishes small offsets and saturates for large ones."""


class KeyframeHead(nn.Module):
    """Predicts the keyframe's position from the state, the instruction and the newest image of each camera.

    Positions are normalised as the state is: with its mean and its standard deviation.

    Args:
        vector: Entries of the state, V.
        language_width: Features of a token of the instruction.
        patch_width: Features of a patch of an image.
        patches: Largest number of patches of the newest images of all cameras; 0 if the policy observes no images.
    """

    def __init__(self, vector: int, language_width: int, patch_width: int, patches: int) -> None:
        super().__init__()
        self.patch = nn.Linear(patch_width, PATCH_FEATURES) if patches else None
        self.image_inputs = patches * PATCH_FEATURES
        inputs = 2 * vector + language_width + self.image_inputs
        self.mlp = nn.Sequential(
            nn.Linear(inputs, HIDDEN), nn.SiLU(), nn.Linear(HIDDEN, HIDDEN), nn.SiLU(), nn.Linear(HIDDEN, POSITION_DIM)
        )

    def forward(
        self, state: Tensor, state_mask: Tensor, language: Tensor, language_mask: Tensor, features: Tensor | None
    ) -> Tensor:
        """Returns normalised positions (R, 3), float32 or wider.

        Args:
            state: Normalised states (R, V).
            state_mask: Mask (R, V) bool of the entries that exist.
            language: Tokens of the instructions (R, L, features).
            language_mask: Mask (R, L) bool of these tokens, with at least one True in each row.
            features: Features of the images (R, F, C, P, D), oldest frame first; None without images.
        """
        weight = language_mask.to(language.dtype).unsqueeze(2)
        dtype = language.dtype
        inputs = [state.to(dtype), state_mask.to(dtype), (language * weight).sum(1) / weight.sum(1)]
        if self.patch is not None:
            assert features is not None, "the head was built for images"
            images = self.patch(features[:, -1]).flatten(1).to(dtype)
            inputs.append(F.pad(images, (0, self.image_inputs - images.shape[1])))  # of cameras that do not exist
        position = self.mlp(torch.cat(inputs, 1))
        return position.to(torch.promote_types(position.dtype, torch.float32))


def offset_features(offset: Tensor) -> Tensor:
    """Returns features (R, 6) of offsets (R, 3) between the keyframe and the hand, for a token of the policy."""
    return torch.cat([offset, torch.tanh(FINE * offset)], 1)
