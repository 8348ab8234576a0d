"""TeamMLP: a network shared by all agents of a team, with optional communication between them."""

from __future__ import annotations

from torch import Tensor, nn

from powerband.algos.settings import Communication
from powerband.nets.mlp import MLP
from powerband.nets.recurrent import BiLSTM


class TeamMLP(nn.Module):
    """Multilayer perceptron with two hidden layers, which is applied to every agent of a team with the same weights.

    If `communicate` is "lstm", a bidirectional LSTM runs across the agents of a team after the first hidden layer. The
    second hidden layer then reads the outputs of both directions. Source: Peng et al. 2017, BiCNet.

    Args:
        inputs: Number of inputs per agent.
        width: Number of units in each hidden layer.
        outputs: Number of outputs per agent.
        communicate: "lstm" for communication between the agents, or "none".
    """

    def __init__(self, inputs: int, width: int, outputs: int, communicate: Communication = "none"):
        super().__init__()
        self.first = MLP(inputs, (width,), 0)
        self.talk = BiLSTM(width, width) if communicate == "lstm" else None
        self.rest = MLP(width if self.talk is None else 2 * width, (width,), outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Maps (B, A, inputs) of B teams of A agents to (B, A, outputs).

        Without communication, any leading axes are possible instead of (B, A).
        """
        x = self.first(x)
        return self.rest(x if self.talk is None else self.talk(x))
