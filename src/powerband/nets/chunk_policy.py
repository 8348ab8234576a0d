"""ChunkPolicy: an observation encoder with a head that denoises chunks of actions, or classifies their actions."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from powerband.core.errors import ConfigError
from powerband.data.types import Tree
from powerband.nets.chunk_unet import ChunkUNet

WIDTH = 512
"""Features of an encoded observation."""


class ChunkPolicy(nn.Module):
    """An encoder and a head: a U-Net that denoises chunks (diffusion), or logits of each action (cloning).

    Shapes: R rows, T actions of a chunk, K discrete actions. A code is a vector of A numbers that represents an action.

    Attributes:
        shape: (T, K).
        unet: Denoising head; None for cloning.
        logits: Classification head; None for diffusion.
    """

    def __init__(
        self, encoder: nn.Module, horizon: int, actions: int, codes: int, unet: tuple[int, ...] | None
    ) -> None:
        """
        Args:
            encoder: Module from observations to features (R, encoder.width).
            horizon: T, number of actions in a chunk.
            actions: K, number of discrete actions.
            codes: A, length of the code of an action.
            unet: Channels of the levels of the U-Net; None builds the classification head.

        Raises:
            ConfigError: The horizon cannot be halved at each level of the U-Net.
        """
        super().__init__()
        if unet is not None and horizon % 2 ** (len(unet) - 1):
            raise ConfigError(
                f"chunks.horizon={horizon} cannot be halved {len(unet) - 1} times, once per level of "
                f"chunks.unet={unet} after the first. Write a horizon that is a multiple of {2 ** (len(unet) - 1)}."
            )
        self.encoder, self.shape = encoder, (horizon, actions)
        self.joined = nn.Sequential(nn.Linear(int(cast(int, encoder.width)), WIDTH), nn.SiLU())
        self.unet = None if unet is None else ChunkUNet(codes, WIDTH, unet)
        self.logits: nn.Sequential | None = None
        if unet is None:
            self.logits = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, horizon * actions))

    def encode(self, obs: Tree) -> Tensor:
        """Computes the features (R, encoder.width) of observations."""
        return self.joined(self.encoder(obs))

    def classify(self, features: Tensor) -> Tensor:
        """Computes logits (R, T, K) of K actions at T steps from features (R, encoder.width), for behaviour cloning."""
        assert self.logits is not None
        return self.logits(features).view(-1, *self.shape)

    def denoise(self, noisy: Tensor, step: Tensor, features: Tensor) -> Tensor:
        """Predicts the noise or the clean chunk (R, T, A) from noisy chunks at diffusion steps (R,); for diffusion."""
        assert self.unet is not None
        return self.unet(noisy, step, features)

    def forward(self, obs: Tree, noisy: Tensor | None = None, step: Tensor | None = None) -> Tensor:
        """Computes logits (R, T, K); with noisy chunks (R, T, A) and steps (R,), the prediction of `denoise`."""
        features = self.encode(obs)
        if noisy is None or step is None:
            return self.classify(features).float()
        return self.denoise(noisy, step, features)


def nearest(codes: Tensor, table: Tensor) -> Tensor:
    """Decodes codes (..., A): returns the action (...) int64 whose code in `table` (K, A) is nearest."""
    return torch.cdist(codes.flatten(0, -2), table).argmin(1).view(codes.shape[:-1])
