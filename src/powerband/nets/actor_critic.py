"""ActorCritic: network with a policy output and a value output, on one shared trunk or two separate trunks.

Shapes: T steps, B rows, F features, H width of the GRU, S width of the central critic's state."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from powerband.nets.choices import Activation
from powerband.nets.mlp import MLP, linear_fp32, orthogonal_
from powerband.nets.observations.normalise import RunningNorm
from powerband.nets.recurrent import GRU


class ActorCritic(nn.Module):
    """Network from features to policy outputs (logits or means) and values, with an optional GRU after the trunk.

    With a shared trunk, one matrix product computes both outputs.

    Shapes: T steps, B rows, F features, H width of the GRU, S width of the central critic's state.
    """

    def __init__(
        self,
        inputs: int,
        hidden: Sequence[int],
        outputs: int,
        activation: Activation = "tanh",
        shared: bool = True,
        state_inputs: int = 0,
        gru_width: int = 0,
        normalize: bool = False,
        log_std: float | None = None,
    ):
        """
        Args:
            inputs: Width of the features.
            hidden: Widths of the hidden layers of a trunk.
            outputs: Width of the policy output: number of discrete actions, or entries of a continuous action.
            activation: Activation function of the trunks.
            shared: One trunk for policy and value instead of two.
            state_inputs: Width of the additional state of a central critic (separate trunks only).
            gru_width: Width of the GRU; 0 builds none (shared trunk only).
            normalize: Normalises features with running statistics.
            log_std: Initial log standard deviation of continuous actions; None for discrete actions.
        """
        super().__init__()
        self.norm = RunningNorm(inputs) if normalize else None
        self.trunk = MLP(inputs, hidden, 0, activation, output_gain=1.0)
        self.value_trunk = None if shared else MLP(inputs + state_inputs, hidden, 0, activation, output_gain=1.0)
        self.gru = GRU(self.trunk.width, gru_width) if gru_width else None
        width = gru_width or self.trunk.width
        self.outputs = outputs
        if shared:
            self.head = orthogonal_(nn.Linear(width, outputs + 1), 0.01)
            with torch.no_grad():  # the rows of an orthogonal matrix have the norm of its gain
                self.head.weight[-1].mul_(1.0 / 0.01)
        else:
            assert self.value_trunk is not None
            self.head = orthogonal_(nn.Linear(width, outputs), 0.01)
            self.value_head = orthogonal_(nn.Linear(self.value_trunk.width, 1), 1.0)
        self.log_std = None if log_std is None else nn.Parameter(torch.full((outputs,), float(log_std)))

    def forward(
        self, x: Tensor, carry: Tensor | None = None, starts: Tensor | None = None, state: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Computes policy outputs and values.

        Shapes: B rows, F features, T steps, H width of the GRU, S width of the central critic's state.

        Args:
            x: Features (B, F); with a GRU (T, B, F).
            carry: Recurrent state (B, H) before the first step; None without a GRU.
            starts: Bools (T, B), True at steps that start an episode; None if no episode starts.
            state: State (B, S), an additional input of a central critic; None without a central critic.

        Returns:
            Policy outputs (B, outputs), values (B,) and the last recurrent state (B, H), None without a GRU. With a
            GRU, outputs and values have T * B rows.
        """
        if self.norm is not None:
            x = self.norm(x)
        hidden = self.trunk(x)
        if self.gru is not None:
            hidden, carry = self.gru(hidden, carry, starts)
            hidden = hidden.flatten(0, 1)
        out = linear_fp32(hidden, self.head)
        if self.value_trunk is None:
            return out[:, : self.outputs], out[:, self.outputs], carry
        hidden = self.value_trunk(x if state is None else torch.cat([x, state], -1))
        value = linear_fp32(hidden, self.value_head)
        return out, value.squeeze(-1), carry
