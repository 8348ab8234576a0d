"""QNetwork: action values of discrete actions, or quantiles of the distributions of their returns."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from powerband.nets.mlp import MLP


class QNetwork(nn.Module):
    """Perceptron with one output per action and quantile.

    With ``dueling``, the last hidden layer and the output exist twice: for the value V of the state, and for the
    advantages A of the actions. Then Q = V + A - mean A. Source: Wang et al. 2016, equation 9.

    Shapes: B rows, F features, K actions, Q quantiles.
    """

    def __init__(
        self, inputs: int, hidden: Sequence[int], num_actions: int, quantiles: int = 1, dueling: bool = False
    ) -> None:
        """
        Args:
            inputs: Number F of features.
            hidden: Widths of the hidden layers.
            num_actions: Number K of actions.
            quantiles: Number Q of outputs per action.
            dueling: Splits the network into values and advantages.
        """
        super().__init__()
        self.num_actions, self.quantiles, self.dueling = num_actions, quantiles, dueling
        if not dueling:
            self.net: nn.Module = MLP(inputs, hidden, num_actions * quantiles, exact_inputs=True)
            return
        shared, last = hidden[:-1], hidden[-1:]
        self.net = MLP(inputs, shared, 0, exact_inputs=True) if shared else nn.Identity()
        width = shared[-1] if shared else inputs
        self.value = MLP(width, last, quantiles, exact_inputs=not shared)
        self.advantage = MLP(width, last, num_actions * quantiles, exact_inputs=not shared)

    def forward(self, x: Tensor) -> Tensor:
        """Maps F features of B rows, (B, F), to values (B, K, Q) float32 of K actions and Q quantiles."""
        x = self.net(x)
        if not self.dueling:
            return x.view(-1, self.num_actions, self.quantiles)
        advantage = self.advantage(x).view(-1, self.num_actions, self.quantiles)
        return self.value(x).unsqueeze(1) + advantage - advantage.mean(1, keepdim=True)
