"""What a policy of action chunks computes: features of what was observed, then noise of a chunk, or logits of it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from powerband.data.types import Tree
from powerband.nets.chunk_unet import ChunkUNet

WIDTH = 512


class ChunkPolicy(nn.Module):
    """An encoder and a head. Shapes: R rows, T steps of a chunk, A numbers of an action's code, K actions."""

    def __init__(
        self, encoder: nn.Module, horizon: int, actions: int, codes: int, unet: tuple[int, ...] | None
    ) -> None:
        """
        Args:
            encoder: Observations -> (R, encoder.width).
            horizon: T.
            actions: K.
            codes: A.
            unet: Channels of the U-Net of a diffusion policy; None clones: logits of each step.

        Raises:
            ValueError: The U-Net halves the steps more often than they divide.
        """
        super().__init__()
        if unet is not None and horizon % 2 ** (len(unet) - 1):
            raise ValueError(f"horizon={horizon} with {len(unet)} levels: give a multiple of {2 ** (len(unet) - 1)}.")
        self.encoder, self.shape = encoder, (horizon, actions)
        self.joined = nn.Sequential(nn.Linear(encoder.width, WIDTH), nn.SiLU())
        self.unet = None if unet is None else ChunkUNet(codes, WIDTH, unet)
        self.logits = None
        if unet is None:
            self.logits = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, horizon * actions))

    def observe(self, obs: Tree) -> Tensor:
        """(R, WIDTH)."""
        return self.joined(self.encoder(obs))

    def forward(self, obs: Tree, noisy: Tensor | None = None, step: Tensor | None = None) -> Tensor:
        """Logits (R, T, K); or of a diffusion policy what it says of noisy chunks (R, T, A) at steps (R,)."""
        seen = self.observe(obs)
        if self.logits is not None:
            return self.logits(seen).view(-1, *self.shape).float()
        assert noisy is not None and step is not None
        return self.unet(noisy, step, seen)


def nearest(codes: Tensor, table: Tensor) -> Tensor:
    """(..., A) codes -> (...) int64: the action whose code in `table` (K, A) is nearest; exact for those codes."""
    return torch.cdist(codes.flatten(0, -2), table).argmin(1).view(codes.shape[:-1])
