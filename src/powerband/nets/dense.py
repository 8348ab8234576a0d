"""Dense: a stack of linear layers with ReLU between them as one autograd node, for CPUs.

Besides its matrix products, a small network on a CPU spends time on autograd nodes, casts of weights, and bfloat16 ReLU
through float32. These forward and backward passes use the fewest operations. On CUDA, under torch.compile and with
other activations, plain modules compute the same function; a test compares the two.

Shapes: E members of an ensemble (absent for a single network), R rows, I inputs, O outputs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

CHUNK = 512
"""Rows per conversion to float32 in the output layer: a copy of all rows would not fit the cache."""


def affine(x_RI: Tensor, weight_OI: Tensor, bias_O: Tensor) -> Tensor:
    """Computes x W^T + b for one network (2-d) or an ensemble of E networks (3-d), with R rows, I inputs and O outputs.

    `bias_O` has the shape (O,), or (E, 1, O) for an ensemble.
    """
    if x_RI.dim() == 2:
        return torch.addmm(bias_O, x_RI, weight_OI.t())
    return torch.baddbmm(bias_O, x_RI, weight_OI.mT)


def relu_(x: Tensor) -> Tensor:
    """Applies ReLU in place and returns `x`.

    A bfloat16 number and its bits read as int16 have the same sign. For bfloat16 the function therefore computes
    max(bits, 0) on int16, which avoids a conversion to float32.
    """
    if x.dtype == torch.bfloat16:
        x.view(torch.int16).clamp_(min=0)
        return x
    return x.relu_()


def relu_backward(grad: Tensor, out: Tensor) -> Tensor:
    """Computes the gradient of the input of ReLU.

    For bfloat16 the mask of positive outputs is min(bits, 1) of the bits as int16.

    Args:
        grad: Gradient of the output.
        out: Output of the forward pass, of the same shape.
    """
    if grad.dtype == torch.bfloat16:
        mask = out.view(torch.int16).clamp(max=1)
        return mask.mul_(grad.view(torch.int16)).view(torch.bfloat16)
    return torch.ops.aten.threshold_backward(grad, out, 0)


def output(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Computes the last layer in the type of its weights (float32), also for bfloat16 inputs.

    The 8 significant bits of bfloat16 are too few for values and logits.

    Args:
        x: Inputs (R, I), or (E, R, I) for an ensemble of E networks; R rows, I inputs.
        weight: (O, I) or (E, O, I); O outputs.
        bias: (O,) or (E, 1, O).

    Returns:
        Outputs (R, O) or (E, R, O).
    """
    if x.dim() == 3:
        members = zip(x.unbind(), weight.unbind(), bias.unbind(), strict=True)
        return torch.stack([output(x_RI, weight_OI, bias_1O[0]) for x_RI, weight_OI, bias_1O in members])
    if x.dtype == weight.dtype or len(x) <= CHUNK:
        return affine(x.to(weight.dtype), weight, bias)
    return torch.cat([affine(part.to(weight.dtype), weight, bias) for part in x.split(CHUNK)])


class Dense(torch.autograd.Function):
    """Autograd function of linear layers with ReLU between them, with parameters and gradients in float32.

    The matrix products of all layers but the last run in a type that the caller chooses, such as bfloat16.

    Shapes: R rows, E networks of an ensemble, I inputs and O outputs of a layer.
    """

    @staticmethod
    def forward(
        ctx, x: Tensor, dtype: torch.dtype, linear_output: bool, exact_inputs: bool, *parameters: Tensor
    ) -> Tensor:
        """Computes all layers.

        Shapes: R rows, E networks of an ensemble, I inputs and O outputs of a layer.

        Args:
            x: Inputs (R, I), or (E, R, I) for an ensemble.
            dtype: Type of the matrix products, except in a last layer with `linear_output`.
            linear_output: If true, the last layer has no ReLU, and its output is float32.
            exact_inputs: If true, the first layer uses the type of `x` instead of `dtype`.
            parameters: Weight and bias of each layer in turn: (O, I) and (O,), or (E, O, I) and (E, 1, O).

        Returns:
            Outputs (R, O), or (E, R, O) for an ensemble.
        """
        weights, biases = parameters[0::2], parameters[1::2]
        inner = len(weights) - linear_output
        autocast = torch.is_autocast_enabled("cpu")
        torch.set_autocast_enabled("cpu", False)  # costs a sixth of entering and leaving `torch.autocast`
        narrow: Sequence[Tensor] = weights
        narrow_biases: Sequence[Tensor] = biases
        inputs = [x]
        if dtype != weights[0].dtype or dtype != x.dtype:  # in float32, conversions without effect cost 8 us per call
            narrow, narrow_biases = ([each.to(dtype) for each in tensors] for tensors in (weights, biases))
            inputs = [x.to(dtype)]
        for layer in range(inner):
            if layer == 0 and exact_inputs:
                inputs.append(relu_(affine(x, weights[0], biases[0])).to(dtype))
            else:
                inputs.append(relu_(affine(inputs[-1], narrow[layer], narrow_biases[layer])))
        # Without a hidden layer, the last layer is the first.
        features = x if exact_inputs and not inner else inputs[-1]
        out = output(features, weights[-1], biases[-1]) if linear_output else inputs[-1]
        torch.set_autocast_enabled("cpu", autocast)
        ctx.save_for_backward(*inputs, *narrow)
        ctx.linear_output, ctx.layers = linear_output, len(weights)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        layers, linear_output = ctx.layers, ctx.linear_output
        saved: Sequence[Tensor] = ctx.saved_tensors
        inputs, weights = saved[:-layers], saved[-layers:]
        needs_weights = ctx.needs_input_grad[4]
        gradients: list[Tensor] = []
        grad = grad.to(weights[0].dtype)
        if not linear_output:
            grad = relu_backward(grad.contiguous(), inputs[-1])
        for layer in range(layers - 1, -1, -1):
            if needs_weights:
                bias_grad = grad.sum(-2, keepdim=grad.dim() == 3)
                gradients += [bias_grad, grad.mT @ inputs[layer]]
            if layer:
                grad = relu_backward(grad @ weights[layer], inputs[layer])
        x_grad = grad @ weights[0] if ctx.needs_input_grad[0] else None
        if grad.dtype != torch.float32:
            x_grad = None if x_grad is None else x_grad.float()
            gradients = [each.float() for each in gradients]
        return (x_grad, None, None, None, *(reversed(gradients) if needs_weights else (None,) * (2 * layers)))


def supports(x: Tensor, activation: str) -> bool:
    """Returns True if `Dense` can replace plain modules for input `x`: with ReLU, on a CPU, outside torch.compile."""
    return activation == "relu" and x.device.type == "cpu" and not torch.compiler.is_compiling()


def matmul_dtype(x: Tensor) -> torch.dtype:
    """Returns the dtype in which products of `x` run: that of CPU autocast if autocast is on, else that of `x`."""
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x.dtype
