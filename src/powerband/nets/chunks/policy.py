"""ChunkPolicy: an observation encoder with a head that denoises chunks of actions, or classifies their actions."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from powerband.core.errors import ConfigError
from powerband.data.types import Tree
from powerband.nets.chunks.unet import ChunkUNet

WIDTH = 512
"""Number of features of an encoded observation."""


class ChunkPolicy(nn.Module):
    """Policy network for chunks, which are sequences of T discrete actions that are predicted at once.

    It consists of an observation encoder and a head. The head is a U-Net that denoises chunks (diffusion), or layers
    that compute the logits of each action of a chunk (behaviour cloning).

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
            ConfigError: The horizon cannot be halved at each level of the U-Net after the first.
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
        """Computes the features (R, 512) of R observations; `obs` is a tensor or nested dict of tensors (R, ...)."""
        return self.joined(self.encoder(obs))

    def classify(self, features: Tensor) -> Tensor:
        """Computes the logits of a chunk from the result of `encode`; only without a U-Net (behaviour cloning).

        Returns:
            Logits (R, T, K) of R rows, T actions of a chunk and K discrete actions.
        """
        assert self.logits is not None
        return self.logits(features).view(-1, *self.shape)

    def denoise(self, noisy: Tensor, step: Tensor, features: Tensor) -> Tensor:
        """Predicts the noise or the clean chunk from a noisy chunk; only with a U-Net (diffusion).

        Args:
            noisy: Noisy chunks (R, T, A) of R rows, T actions of a chunk and A numbers per action.
            step: Diffusion step of each row (R,) int64.
            features: Result of `encode` (R, 512).

        Returns:
            Prediction (R, T, A) float32.
        """
        assert self.unet is not None
        return self.unet(noisy, step, features)

    def forward(self, obs: Tree, noisy: Tensor | None = None, step: Tensor | None = None) -> Tensor:
        """Computes the output of the head: that of `classify`, or of `denoise` if `noisy` and `step` are not None.

        Args:
            obs: Observations of R rows.
            noisy: Noisy chunks (R, T, A) of T actions with A numbers each; None for behaviour cloning.
            step: Diffusion step of each row (R,) int64; None for behaviour cloning.

        Returns:
            Logits (R, T, K) float32 of K discrete actions, or the predicted noise or clean chunks (R, T, A) float32.
        """
        features = self.encode(obs)
        if noisy is None or step is None:
            return self.classify(features).float()
        return self.denoise(noisy, step, features)


def nearest(codes: Tensor, table: Tensor) -> Tensor:
    """Decodes vectors to actions: finds the action whose code is nearest in Euclidean distance.

    Args:
        codes: Vectors (..., A) to decode, of A numbers each.
        table: Codes (K, A) of K actions.

    Returns:
        Actions (...) int64, rows of `table`.
    """
    return torch.cdist(codes.flatten(0, -2), table).argmin(1).view(codes.shape[:-1])
