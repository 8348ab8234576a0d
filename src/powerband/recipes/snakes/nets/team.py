"""A network that all agents of a team share, with or without talk between them."""

from __future__ import annotations

from torch import Tensor, nn

from powerband.algos.settings import Communication
from powerband.nets.mlp import MLP
from powerband.nets.recurrent import BiLSTM


class TeamMLP(nn.Module):
    """inputs -> width -> (talk) -> width -> outputs, the same weights for every agent.

    With "lstm" a bidirectional LSTM runs across the agents after the first layer, and what each agent goes on with are
    its two outputs. Source: Peng et al. 2017, BiCNet.
    """

    def __init__(self, inputs: int, width: int, outputs: int, communicate: Communication = "none"):
        super().__init__()
        self.first = MLP(inputs, (width,), 0)
        self.talk = BiLSTM(width, width) if communicate == "lstm" else None
        self.rest = MLP(width if self.talk is None else 2 * width, (width,), outputs)

    def forward(self, x: Tensor) -> Tensor:
        """(B, A, inputs) -> (B, A, outputs); without talk any leading axes will do."""
        x = self.first(x)
        return self.rest(x if self.talk is None else self.talk(x))
