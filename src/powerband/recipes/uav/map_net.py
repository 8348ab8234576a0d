"""Map net: defines a small convolutional network over maps of 11 x 11, and builds the input of the central critic.

Suffixes of tensors: R rows of the batch, C channels, H and W nodes of the lattice.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from powerband.nets.mlp import linear_fp32

KERNELS = (5, 4, 4)
"""Sizes of the kernels of the three convolutions."""


class MapNet(nn.Module):
    """Convolutional network from maps of 11 x 11 nodes to a vector: three convolutions, then two linear layers.

    The convolutions reduce the 11 x 11 nodes to a single one. Source: Westheider, Rueckin and Popovic 2023, section IV.
    """

    def __init__(self, channels: int, outputs: int, width: int = 256):
        """
        Args:
            channels: Number of input maps.
            outputs: Number of outputs.
            width: Channels of every convolution and units of the hidden linear layer.
        """
        super().__init__()
        inputs = (channels, width, width)
        self.convs = nn.ModuleList(nn.Conv2d(i, width, kernel) for i, kernel in zip(inputs, KERNELS, strict=True))
        self.hidden = nn.Linear(width, width)
        self.output = nn.Linear(width, outputs)

    def forward(self, x_RCHW: Tensor) -> Tensor:
        """Maps (R rows, channels, 11, 11) to (R, outputs) float32; the last layer runs in the dtype of its weights."""
        convs, x = list(self.convs), x_RCHW
        if x.device.type == "cpu":  # convolutions of a CPU are 1.2 times as fast with this memory format
            x = x.contiguous(memory_format=torch.channels_last)
        for conv in convs[:-1]:
            x = torch.relu(conv(x))
        last = convs[-1]
        assert isinstance(last, nn.Conv2d)
        # Its kernel covers the complete input, so it is one matrix product, which is faster than a convolution.
        x = torch.relu(F.linear(x.flatten(1), last.weight.flatten(1), last.bias))
        return linear_fp32(torch.relu(self.hidden(x)), self.output)


def state_inputs(obs: dict[str, Tensor], empty: int = 0) -> Tensor:
    """Joins the maps of each agent (UAV) and of its team, for T steps of N missions with A agents.

    An agent has C maps and the team has C' maps, each of H x W nodes.

    Args:
        obs: ``maps`` (T, N, A, C, H, W) of each agent, and ``state`` (T, N, C', H, W) of the team.
        empty: Number of further maps of zeros.

    Returns:
        (T * N * A, C + C' + empty, H, W), one row per agent.
    """
    maps, state = obs["maps"].flatten(0, 1), obs["state"].flatten(0, 1)
    rows, agents, channels, height, width = maps.shape
    inputs = maps.new_zeros(rows, agents, channels + state.shape[1] + empty, height, width)
    inputs[:, :, :channels] = maps
    inputs[:, :, channels : channels + state.shape[1]] = state.unsqueeze(1)
    return inputs.flatten(0, 1)


def critic_inputs(obs: dict[str, Tensor], action: Tensor, num_actions: int) -> Tensor:
    """Builds the inputs of COMA's critic, which observes the actions of the other agents, for T steps of N missions.

    Args:
        obs: ``maps`` (T, N, A, C, H, W) of each agent, ``state`` (T, N, C', H, W) of the team, and ``cell`` (T, N, A)
            int64, the lattice node of each agent.
        action: Actions (T, N, A) int64.
        num_actions: Number of actions K.

    Returns:
        (T * N * A, C + C' + 1, H, W), one row per agent: the result of `state_inputs`, and one map in which the node
        of each other agent is (action + 1) / K.
    """
    inputs = state_inputs(obs, empty=1)
    height, width = inputs.shape[-2:]
    cells, agents = obs["cell"].flatten(0, 1), action.shape[2]
    planes = inputs.new_zeros(len(cells), agents, height * width)
    is_self = torch.eye(agents, dtype=torch.bool, device=inputs.device)
    values = (action.flatten(0, 1) + 1).to(inputs.dtype) / num_actions
    for j in range(agents):  # in order, so that the last agent is shown if several share a cell
        cell = cells[:, j].view(-1, 1, 1).expand(-1, agents, 1)
        current = planes.gather(2, cell)
        planes.scatter_(2, cell, torch.where(is_self[j].view(1, -1, 1), current, values[:, j].view(-1, 1, 1)))
    inputs[:, -1] = planes.view(-1, height, width)
    return inputs
