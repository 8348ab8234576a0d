"""MLP: multi-layer perceptrons and ensembles of them. Shapes: B rows, E members of an ensemble, I inputs, O outputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from powerband.nets import dense
from powerband.nets.choices import Activation

ACTIVATIONS = {"relu": torch.relu, "tanh": torch.tanh, "silu": nn.functional.silu, "elu": nn.functional.elu}


def orthogonal_(linear: nn.Linear, gain: float) -> nn.Linear:
    """Initialises `linear` in place with orthogonal weights times `gain` and zero biases, and returns it.

    Source: Andrychowicz et al. 2021, on choices in PPO.
    """
    nn.init.orthogonal_(linear.weight, gain)
    nn.init.zeros_(linear.bias)
    return linear


def linear_fp32(x: Tensor, linear: nn.Linear) -> Tensor:
    """Computes a layer in the type of its weights (float32), even under autocast.

    The 8 significant bits of bfloat16 are too few for values and logits.
    """
    with torch.autocast(x.device.type, enabled=False):
        return linear(x.to(linear.weight.dtype))


class MLP(nn.Module):
    """Multi-layer perceptron: linear layers with an activation between them, and none after the last.

    Attributes:
        width: Width of the output.
    """

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
            activation: Activation function between the layers.
            layer_norm: Applies a layer norm before each activation.
            output_gain: Gain of the output in an orthogonal initialisation, with sqrt(2) in hidden layers; None keeps
                the initialisation of PyTorch.
            exact_inputs: Computes the first layer in float32 also under autocast, for example for positions in metres,
                which bfloat16 resolves to four millimetres.
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
                assert isinstance(linear, nn.Linear)
                orthogonal_(linear, math.sqrt(2))
            if self.output is not None:
                orthogonal_(self.output, output_gain)

    def forward(self, x: Tensor) -> Tensor:
        """Maps (..., inputs) to (..., outputs). The output layer runs in the type of its weights, even in autocast."""
        lead = x.shape[:-1]
        x = x.flatten(0, -2)
        if self.norms is None and dense.supports(x, self.activation):
            linear_output, dtype = self.output is not None, dense.matmul_dtype(x)
            x = dense.Dense.apply(x, dtype, linear_output, self.exact_inputs, *self.parameters())
        else:
            activation = ACTIVATIONS[self.activation]
            for index, linear in enumerate(self.hidden):
                assert isinstance(linear, nn.Linear)
                x = linear_fp32(x, linear) if self.exact_inputs and index == 0 else linear(x)
                x = activation(x if self.norms is None else self.norms[index](x))
            if self.output is not None:
                x = linear_fp32(x, self.output)
        return x.view(*lead, self.width)


class TwinMLP(nn.Module):
    """Ensemble of E multi-layer perceptrons of the same shape, which are computed together.

    Each layer is one batched matrix product, so the number of kernel launches does not grow with E.

    Shapes: E members of the ensemble, B rows, I inputs, O outputs.
    """

    def __init__(
        self,
        inputs: int,
        hidden: Sequence[int],
        outputs: int,
        members: int = 2,
        activation: Activation = "relu",
        exact_inputs: bool = False,
        layer_norm: bool = False,
    ):
        """
        Args:
            inputs: Width of the input.
            hidden: Widths of the hidden layers.
            outputs: Width of the output.
            members: E, number of networks. Each has the initialisation of linear layers of PyTorch.
            activation: Activation function between the layers.
            exact_inputs: Computes the first layer in float32 also under autocast.
            layer_norm: Applies a layer norm without scale and offset before each activation.
        """
        super().__init__()
        widths = [inputs, *hidden, outputs]
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for i, o in zip(widths[:-1], widths[1:], strict=True):
            bound = 1 / math.sqrt(i)
            self.weights.append(torch.empty(members, o, i).uniform_(-bound, bound))
            self.biases.append(torch.empty(members, 1, o).uniform_(-bound, bound))
        self.activation, self.exact_inputs, self.layer_norm = activation, exact_inputs, layer_norm
        self.members = members

    def forward(self, x_BI: Tensor) -> Tensor:
        """Maps inputs (B rows, I) to the outputs (E members, B, O) of all members.

        The last layer runs in the type of its weights, even under autocast.
        """
        x = x_BI.expand(self.members, -1, -1)
        layers = list(zip(self.weights, self.biases, strict=True))
        if not self.layer_norm and dense.supports(x, self.activation):
            parameters = (p for layer in layers for p in layer)
            return dense.Dense.apply(x, dense.matmul_dtype(x), True, self.exact_inputs, *parameters)
        for index, (weight_EOI, bias_E1O) in enumerate(layers[:-1]):
            exact = self.exact_inputs and index == 0
            with torch.autocast(x.device.type, enabled=False) if exact else nullcontext():
                x = affine(x, weight_EOI, bias_E1O)
            if self.layer_norm:
                x = F.layer_norm(x, x.shape[-1:])
            x = ACTIVATIONS[self.activation](x)
        weight_EOI, bias_E1O = layers[-1]
        with torch.autocast(x.device.type, enabled=False):
            return affine(x.to(weight_EOI.dtype), weight_EOI, bias_E1O)


def affine(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Computes x W^T + b for an ensemble: x (E, B, I), weight (E, O, I), bias (E, 1, O) -> (E, B, O).

    The compiler fuses a separate sum with the activation, and a product with one output with the last activation. A
    single operator would be a kernel that copies the bias and one of the matrix product.
    """
    if not torch.compiler.is_compiling():
        return torch.baddbmm(bias, x, weight.mT)
    product = (x * weight).sum(-1, keepdim=True) if weight.shape[1] == 1 else x @ weight.mT
    return product + bias.to(product.dtype)
