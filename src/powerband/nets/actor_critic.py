"""Policy and value in one module: shared or separate trunks, with or without memory. Suffixes: T, B, F features."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from powerband.nets.choices import Activation
from powerband.nets.mlp import MLP, linear_fp32, orthogonal_
from powerband.nets.normalise import RunningNorm
from powerband.nets.recurrent import GRU


class ActorCritic(nn.Module):
    """Features -> policy outputs (logits, or means) and value.

    With a shared trunk both come from one last matrix product. With memory, a GRU stands between trunk and heads.
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
            hidden: Widths of a trunk.
            outputs: Width of the policy output.
            activation: Of the trunks.
            shared: One trunk for both, or one each.
            state_inputs: Width of what a central critic sees beside the features (separate trunks only).
            gru_width: Width of the memory, 0 for none (shared trunk only).
            normalize: Normalises features with running statistics.
            log_std: Initial log deviation of a continuous action, None for a discrete one.
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
            with torch.no_grad():  # the rows of an orthogonal matrix have the length of its gain
                self.head.weight[-1].mul_(1.0 / 0.01)
        else:
            self.head = orthogonal_(nn.Linear(width, outputs), 0.01)
            self.value_head = orthogonal_(nn.Linear(self.value_trunk.width, 1), 1.0)
        self.log_std = None if log_std is None else nn.Parameter(torch.full((outputs,), float(log_std)))

    def forward(
        self, x: Tensor, carry: Tensor | None = None, starts: Tensor | None = None, state: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """
        Args:
            x: (B, F); with memory (T, B, F).
            carry: (B, H) before the first step, None without memory.
            starts: (T, B) bool: an episode starts with this step.
            state: (B, S) for a central critic.

        Returns:
            Policy outputs (B, outputs), values (B,), the last carry; with memory B stands for T B rows.
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
