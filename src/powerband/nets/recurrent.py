"""Recurrent layers without cuDNN buffers, so that parameters can be views and CUDA graphs can be captured.

Shapes: T time, A agents, B rows, H width of the carry, I inputs.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class GRU(nn.Module):
    """Gated recurrent unit over sequences, which sets the state to zero at steps that start an episode.

    Source: Cho et al. 2014, gates as in `nn.GRUCell`.

    Shapes: T steps, B rows, I inputs, H width of the recurrent state.
    """

    def __init__(self, inputs: int, width: int):
        super().__init__()
        self.inputs = nn.Linear(inputs, 3 * width)
        self.carry = nn.Linear(width, 3 * width)
        self.width = width
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -1 / math.sqrt(width), 1 / math.sqrt(width))

    def forward(self, x_TBI: Tensor, carry_BH: Tensor, starts_TB: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Computes the outputs of a sequence of T steps for B rows, with I inputs and a state of H numbers.

        Args:
            x_TBI: Inputs (T, B, I).
            carry_BH: Recurrent state (B, H) float32 before the first step.
            starts_TB: Bools (T, B), True at inputs that start an episode, before which the state becomes zero; None if
                no episode starts.

        Returns:
            Outputs (T, B, H) and the last recurrent state (B, H), float32.
        """
        outputs = []
        # unbind instead of indexing: the gradient of an index at each step would be a tensor of all steps.
        for t, gates_x in enumerate(self.inputs(x_TBI).float().unbind(0)):
            if starts_TB is not None:
                carry_BH = carry_BH * ~starts_TB[t].unsqueeze(-1)
            reset_x, update_x, new_x = gates_x.chunk(3, -1)
            reset_h, update_h, new_h = self.carry(carry_BH).float().chunk(3, -1)
            update = torch.sigmoid(update_x + update_h)
            new = torch.tanh(new_x + torch.sigmoid(reset_x + reset_h) * new_h)
            carry_BH = torch.lerp(new, carry_BH, update)
            outputs.append(carry_BH)
        return torch.stack(outputs), carry_BH


class BiLSTM(nn.Module):
    """Bidirectional LSTM across the agents, the communication of BiCNet. Each batched product computes both directions.

    Source: Hochreiter and Schmidhuber 1997, gates as in `nn.LSTM`; Peng et al. 2017, BiCNet.

    Args:
        inputs: Width of the input of each agent.
        width: Width of the recurrent state in each direction.
    """

    def __init__(self, inputs: int, width: int):
        super().__init__()
        self.inputs = nn.Linear(inputs, 8 * width)
        bound = 1 / math.sqrt(width)
        self.carry_weight = nn.Parameter(torch.empty(2, width, 4 * width).uniform_(-bound, bound))
        nn.init.uniform_(self.inputs.weight, -bound, bound)
        nn.init.uniform_(self.inputs.bias, -bound, bound)
        self.width = width

    def forward(self, x_BAI: Tensor) -> Tensor:
        """Maps (B rows, A agents, I inputs) to (B, A, 2 * width): forward, then backward outputs of each agent."""
        rows, agents, _ = x_BAI.shape
        gates_2BA = self.inputs(x_BAI).view(rows, agents, 2, -1).permute(2, 0, 1, 3)
        outputs: list[Tensor] = []
        hidden = cell = None
        for step in range(agents):
            gates = torch.stack([gates_2BA[0, :, step], gates_2BA[1, :, agents - 1 - step]])
            if hidden is not None:
                gates = torch.baddbmm(gates, hidden, self.carry_weight)
            input_gate, forget, new, out = gates.float().chunk(4, -1)
            cell_new = torch.sigmoid(input_gate) * torch.tanh(new)
            cell = cell_new if cell is None else cell_new + torch.sigmoid(forget) * cell
            hidden = torch.sigmoid(out) * torch.tanh(cell)
            outputs.append(hidden)
        forward = torch.stack([hidden[0] for hidden in outputs], 1)
        backward = torch.stack([hidden[1] for hidden in reversed(outputs)], 1)
        return torch.cat([forward, backward], -1)
