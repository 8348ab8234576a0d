"""A small convolutional network over feature maps. Suffixes: R rows, C channels, W width."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from powerband.nets.mlp import linear_fp32

SIDE = 11
KERNELS = (5, 4, 4)


class MapNet(nn.Module):
    """Three convolutions that leave one position of an 11 x 11 map, then two linear layers.

    Source: Westheider, Rueckin and Popovic 2023, section IV.
    """

    def __init__(self, channels: int, outputs: int, width: int = 256):
        """
        Args:
            channels: Feature maps.
            outputs: Width of the output.
            width: Channels of every hidden layer.
        """
        super().__init__()
        inputs = (channels, width, width)
        self.convs = nn.ModuleList(nn.Conv2d(i, width, kernel) for i, kernel in zip(inputs, KERNELS, strict=True))
        self.hidden = nn.Linear(width, width)
        self.output = nn.Linear(width, outputs)

    def forward(self, x_RCHW: Tensor) -> Tensor:
        """(R, channels, 11, 11) -> (R, outputs) float32, the last layer in the dtype of its weights."""
        x = x_RCHW
        for conv in self.convs:
            x = torch.relu(conv(x))
        return linear_fp32(torch.relu(self.hidden(x.flatten(1))), self.output)
