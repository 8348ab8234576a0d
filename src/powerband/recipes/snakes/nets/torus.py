"""TorusConv: a convolutional network with circular padding, for boards whose opposite edges are connected.

Shapes: R rows of the batch, C channels, H rows and W columns of the board.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class TorusConv(nn.Module):
    """Convolutional network from images of a board (R, C, H, W) to features (R, `width`).

    It has three 3 x 3 layers, the last two with stride 2. Shapes: R rows of the batch, C channels, H rows and W columns
    of the board. The attribute `width` is the number of features, which the constructor computes.
    """

    def __init__(self, planes: int, rows: int, columns: int, channels: int = 32):
        """
        Args:
            planes: C, channels of the input.
            rows, columns: H, W of the board, 4 or more.
            channels: Channels of the first layer; the other layers have twice as many.
        """
        super().__init__()
        wide = 2 * channels
        self.layers = nn.ModuleList(
            nn.Conv2d(i, o, 3, stride, padding=1, padding_mode="circular")
            for i, o, stride in ((planes, channels, 1), (channels, wide, 2), (wide, wide, 2))
        )
        with torch.no_grad():
            self.width = self.forward(torch.zeros(1, planes, rows, columns)).shape[1]

    def forward(self, x_RCHW: Tensor) -> Tensor:
        for layer in self.layers:
            x_RCHW = torch.relu(layer(x_RCHW))
        return x_RCHW.flatten(1)
