"""A small convolutional network over feature maps, and the maps of a central critic. Suffixes: R rows, C channels."""

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


def critic_inputs(obs: dict[str, Tensor], action: Tensor, num_actions: int) -> Tensor:
    """What the central critic sees of every step and agent.

    Args:
        obs: maps (T, N, A, C, H, W), state (T, N, C', H, W), cell (T, N, A) int64.
        action: (T, N, A) int64.
        num_actions: K.

    Returns:
        (T N A, C + C' + 1, H, W): the agent's maps, the state, and the other agents' actions.
    """
    maps, state = obs["maps"].flatten(0, 1), obs["state"].flatten(0, 1)
    rows, agents, seen, height, width = maps.shape
    out = maps.new_zeros(rows, agents, seen + state.shape[1] + 1, height, width)
    out[:, :, :seen] = maps
    out[:, :, seen:-1] = state.unsqueeze(1)
    planes = maps.new_zeros(rows, agents, height * width)
    own = torch.eye(agents, dtype=torch.bool, device=maps.device)
    cells, values = obs["cell"].flatten(0, 1), (action.flatten(0, 1) + 1).to(maps.dtype) / num_actions
    for j in range(agents):  # one after the other: where agents share a cell, the last of them is shown
        at = cells[:, j].view(-1, 1, 1).expand(-1, agents, 1)
        there = planes.gather(2, at)
        planes.scatter_(2, at, torch.where(own[j].view(1, -1, 1), there, values[:, j].view(-1, 1, 1)))
    out[:, :, -1] = planes.view(rows, agents, height, width)
    return out.flatten(0, 1)
