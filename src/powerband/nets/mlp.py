"""Multi-layer perceptrons. Suffixes: B rows, E members of an ensemble, I inputs, O outputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from powerband.nets import dense
from powerband.nets.choices import Activation

ACTIVATIONS = {"relu": torch.relu, "tanh": torch.tanh, "silu": nn.functional.silu, "elu": nn.functional.elu}


def orthogonal_(linear: nn.Linear, gain: float) -> nn.Linear:
    """Orthogonal weights times `gain`, zero bias. Source: Andrychowicz et al. 2021, the choices that matter in PPO."""
    nn.init.orthogonal_(linear.weight, gain)
    nn.init.zeros_(linear.bias)
    return linear


def linear_fp32(x: Tensor, linear: nn.Linear) -> Tensor:
    """A last layer, in float32 whatever the autocast: bf16 has 8 bits, too few for values and logits."""
    with torch.autocast(x.device.type, enabled=False):
        return linear(x.to(linear.weight.dtype))


class MLP(nn.Module):
    """Linear layers with an activation between them, and none after the last."""

    def __init__(
        self,
        inputs: int,
        hidden: Sequence[int],
        outputs: int,
        activation: Activation = "relu",
        layer_norm: bool = False,
        output_gain: float | None = None,
        exact_inputs: bool = False,
    ):
        """
        Args:
            inputs: Width of the input.
            hidden: Widths of the hidden layers.
            outputs: Width of the output; 0 ends after the last hidden layer and its activation.
            activation: Between the layers.
            layer_norm: Normalises before each activation.
            exact_inputs: The first layer computes in float32 whatever the autocast: positions in metres, say, of which
                bfloat16 keeps four millimetres.
            output_gain: Orthogonal initialisation, with this gain at the output and sqrt(2) before; None is PyTorch's.
        """
        super().__init__()
        widths = [inputs, *hidden]
        self.hidden = nn.ModuleList(nn.Linear(i, o) for i, o in zip(widths[:-1], widths[1:], strict=True))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for width in hidden) if layer_norm else None
        self.output = nn.Linear(widths[-1], outputs) if outputs else None
        self.activation, self.exact_inputs = activation, exact_inputs
        self.width = outputs or widths[-1]
        if output_gain is not None:
            for linear in self.hidden:
                orthogonal_(linear, math.sqrt(2))
            if self.output is not None:
                orthogonal_(self.output, output_gain)

    def forward(self, x: Tensor) -> Tensor:
        """(..., inputs) -> (..., outputs), the output layer in the dtype of its weights."""
        lead = x.shape[:-1]
        x = x.flatten(0, -2)
        if self.norms is None and dense.supports(x, self.activation):
            open_end, dtype = self.output is not None, dense.matmul_dtype(x)
            x = dense.Dense.apply(x, dtype, open_end, self.exact_inputs, *self.parameters())
        else:
            activation = ACTIVATIONS[self.activation]
            for index, linear in enumerate(self.hidden):
                x = linear_fp32(x, linear) if self.exact_inputs and index == 0 else linear(x)
                x = activation(x if self.norms is None else self.norms[index](x))
            if self.output is not None:
                x = linear_fp32(x, self.output)
        return x.view(*lead, self.width)


class TwinMLP(nn.Module):
    """E perceptrons of one shape, each layer one batched matrix product: twin critics at the launches of one."""

    def __init__(
        self,
        inputs: int,
        hidden: Sequence[int],
        outputs: int,
        members: int = 2,
        activation: Activation = "relu",
        exact_inputs: bool = False,
    ):
        """As `MLP`, for `members` networks with their own weights, each initialised as PyTorch does a linear layer."""
        super().__init__()
        widths = [inputs, *hidden, outputs]
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for i, o in zip(widths[:-1], widths[1:], strict=True):
            bound = 1 / math.sqrt(i)
            self.weights.append(torch.empty(members, o, i).uniform_(-bound, bound))
            self.biases.append(torch.empty(members, 1, o).uniform_(-bound, bound))
        self.activation, self.exact_inputs = activation, exact_inputs
        self.members = members

    def forward(self, x_BI: Tensor) -> Tensor:
        """(B, I) -> (E, B, O), the output layer in the dtype of its weights."""
        x = x_BI.expand(self.members, -1, -1)
        layers = list(zip(self.weights, self.biases, strict=True))
        if dense.supports(x, self.activation):
            parameters = (p for layer in layers for p in layer)
            return dense.Dense.apply(x, dense.matmul_dtype(x), True, self.exact_inputs, *parameters)
        for index, (weight_EOI, bias_E1O) in enumerate(layers[:-1]):
            exact = self.exact_inputs and index == 0
            with torch.autocast(x.device.type, enabled=False) if exact else nullcontext():
                x = torch.baddbmm(bias_E1O, x, weight_EOI.mT)
            x = ACTIVATIONS[self.activation](x)
        weight_EOI, bias_E1O = layers[-1]
        with torch.autocast(x.device.type, enabled=False):
            return torch.baddbmm(bias_E1O, x.to(weight_EOI.dtype), weight_EOI.mT)
