"""A stack of linear layers with ReLU between them as one autograd node, for CPUs.

What a small network costs on a CPU beside its matrix products is the work around them: a node an operation, a cast a
weight, ReLU of bfloat16 through float32. Here the forward and backward passes are written out in the fewest operations.
The same function in plain modules is what runs on CUDA, under torch.compile and with other activations; a test holds
the two together.

Suffixes: E members of an ensemble (absent for a single network), R rows, I inputs, O outputs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

CHUNK = 512
"""Rows that the output layer widens to float32 at a time: a copy of all rows would leave the cache."""


def affine(x_RI: Tensor, weight_OI: Tensor, bias_O: Tensor) -> Tensor:
    """x W^T + b, for one network (2-d) or an ensemble (3-d); `bias` has shape (O,) or (E, 1, O)."""
    if x_RI.dim() == 2:
        return torch.addmm(bias_O, x_RI, weight_OI.t())
    return torch.baddbmm(bias_O, x_RI, weight_OI.mT)


def relu_(x: Tensor) -> Tensor:
    """In-place ReLU. Of a bfloat16 it is max(word, 0) of its bits read as an int16: both have the same sign bit."""
    if x.dtype == torch.bfloat16:
        x.view(torch.int16).clamp_(min=0)
        return x
    return x.relu_()


def relu_backward(grad: Tensor, out: Tensor) -> Tensor:
    """Gradient of ReLU's input, from its output; for bfloat16 the mask is min(word, 1)."""
    if grad.dtype == torch.bfloat16:
        mask = out.view(torch.int16).clamp(max=1)
        return mask.mul_(grad.view(torch.int16)).view(torch.bfloat16)
    return torch.ops.aten.threshold_backward(grad, out, 0)


def output(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The last layer, in float32 whatever the layers before: bf16 has 8 bits, too few for values and logits."""
    if x.dim() == 3:
        members = zip(x.unbind(), weight.unbind(), bias.unbind(), strict=True)
        return torch.stack([output(x_RI, weight_OI, bias_1O[0]) for x_RI, weight_OI, bias_1O in members])
    if x.dtype == weight.dtype or len(x) <= CHUNK:
        return affine(x.to(weight.dtype), weight, bias)
    return torch.cat([affine(part.to(weight.dtype), weight, bias) for part in x.split(CHUNK)])


class Dense(torch.autograd.Function):
    """x -> affine, ReLU, ..., affine (, ReLU). Parameters and gradients float32, inner products in `dtype`."""

    @staticmethod
    def forward(ctx, x: Tensor, dtype: torch.dtype, open_end: bool, exact_inputs: bool, *parameters: Tensor) -> Tensor:
        """
        Args:
            x: (R, I), or (E, R, I) for an ensemble.
            dtype: Of the inner matrix products.
            open_end: True where the last layer has no ReLU; it is then computed and returned in float32.
            exact_inputs: The first layer reads `x` in its own type, whatever the others compute in.
            parameters: weight, bias of each layer: (O, I) and (O,), or (E, O, I) and (E, 1, O).
        """
        weights, biases = parameters[0::2], parameters[1::2]
        inner = len(weights) - open_end
        autocast = torch.is_autocast_enabled("cpu")
        torch.set_autocast_enabled("cpu", False)  # a sixth of the cost of entering and leaving `torch.autocast`
        narrow = [weight.to(dtype) for weight in weights]
        inputs = [x.to(dtype)]
        for layer, (weight, bias) in enumerate(zip(narrow[:inner], biases, strict=False)):
            if layer == 0 and exact_inputs:
                inputs.append(relu_(affine(x, weights[0], bias)).to(dtype))
            else:
                inputs.append(relu_(affine(inputs[-1], weight, bias.to(dtype))))
        out = output(inputs[-1], weights[-1], biases[-1]) if open_end else inputs[-1]
        torch.set_autocast_enabled("cpu", autocast)
        ctx.save_for_backward(*inputs, *narrow)
        ctx.open_end, ctx.layers = open_end, len(weights)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        layers, open_end = ctx.layers, ctx.open_end
        saved: Sequence[Tensor] = ctx.saved_tensors
        inputs, weights = saved[:-layers], saved[-layers:]
        of_weights = ctx.needs_input_grad[4]
        gradients: list[Tensor | None] = []
        grad = grad.to(weights[0].dtype)
        if not open_end:
            grad = relu_backward(grad.contiguous(), inputs[-1])
        for layer in range(layers - 1, -1, -1):
            if of_weights:
                bias_grad = grad.sum(-2, keepdim=grad.dim() == 3)
                gradients += [bias_grad.float(), (grad.mT @ inputs[layer]).float()]
            if layer:
                grad = relu_backward(grad @ weights[layer], inputs[layer])
        of_x = (grad @ weights[0]).float() if ctx.needs_input_grad[0] else None
        return (of_x, None, None, None, *(reversed(gradients) if of_weights else (None,) * (2 * layers)))


def supports(x: Tensor, activation: str) -> bool:
    """True where `Dense` stands in for the plain modules."""
    return activation == "relu" and x.device.type == "cpu" and not torch.compiler.is_compiling()


def matmul_dtype(x: Tensor) -> torch.dtype:
    """Type that the autocast around the call asks of matrix products, else that of `x`."""
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x.dtype
