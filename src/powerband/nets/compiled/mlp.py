"""Compiled MLP: forward and backward pass of a small tanh or ReLU network on a CPU, for use inside functions of numba.

A compiled function has no overhead per operator. With up to some hundred rows and narrow layers it is therefore several
times as fast as operators of PyTorch. No sum is reordered at run time, so a machine repeats its results bit for bit.
The functions are not cached on disk themselves: the cached function that uses them passes this module and `product` to
`source_checksum`.

Shapes: R rows, F features, I inputs and O outputs of a layer, L layers, P parameters with the gaps of `FlatAdam`.

An array `layers` (L, 5) int64 describes a network. A row has the positions of weight and bias in the parameters, O, I,
and the activation: `LINEAR`, `TANH` or `RELU`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from torch import Tensor, nn

from powerband.core.optim.compiled_adam import compiled
from powerband.nets.compiled.product import add_product
from powerband.nets.mlp import TwinMLP

LINEAR, TANH, RELU = range(3)
"""Activation of a layer."""
NOUGHT, ONE, EPSILON = np.float32(0), np.float32(1), np.float32(1e-8)
# Rational approximation of tanh with an error below 3e-7. Source: Eigen 3.4, generic_fast_tanh_float.
A1, A3, A5, A7, A9, A11, A13 = map(
    np.float32,
    (4.89352456e-03, 6.37261929e-04, 1.48572236e-05, 5.12229709e-08, -8.60467152e-11, 2.00018790e-13, -2.76076848e-16),
)
B0, B2, B4, B6 = map(np.float32, (4.89352519e-03, 2.26843463e-03, 1.18534706e-04, 1.19825839e-06))
TANH_LIMIT = np.float32(7.90531110763549805)


def position(flat: Tensor, parameter: Tensor) -> int:
    """Returns the index in `flat` (P,) of the first entry of a parameter that is a view of it."""
    return (parameter.data_ptr() - flat.data_ptr()) // flat.element_size()


def layer_table(flat: Tensor, modules: Iterable[nn.Module | None], activation: int) -> np.ndarray:
    """Describes the linear layers among `modules`, in their order, as one network.

    Args:
        flat: All parameters (P,), of which those of the layers are views.
        modules: Layers of the network from inputs to outputs.
        activation: Activation of all layers except for the last one, which has none.

    Returns:
        The array `layers` (L, 5) int64 that `forward` expects.
    """
    linear = [module for module in modules if isinstance(module, nn.Linear)]
    rows = [(position(flat, each.weight), position(flat, each.bias), *each.weight.shape, activation) for each in linear]
    table = np.array(rows, np.int64)
    table[-1, -1] = LINEAR
    return table


def twin_layer_table(flat: Tensor, net: TwinMLP) -> np.ndarray:
    """Describes the members of a `TwinMLP` with ReLU layers, each as one network.

    Args:
        flat: All parameters (P,), of which those of `net` are views.
        net: Networks with the same layers, such as two critics.

    Returns:
        Array (members, L, 5) int64: one array `layers` for each member.
    """
    members = [
        [
            (position(flat, weight[member]), position(flat, bias[member]), *weight.shape[1:], RELU)
            for weight, bias in zip(net.weights, net.biases, strict=True)
        ]
        for member in range(net.members)
    ]
    table = np.array(members, np.int64)
    table[:, -1, -1] = LINEAR
    return table


@compiled
def joined(obs, action):
    """Concatenates features obs (R, F) and actions (R, D) to the inputs (R, F + D) of a critic."""
    width = obs.shape[1]
    x = np.empty((len(obs), width + action.shape[1]), np.float32)
    for r in range(len(obs)):  # an assignment of slices takes 4 s to compile
        for f in range(width):
            x[r, f] = obs[r, f]
        for d in range(action.shape[1]):
            x[r, width + d] = action[r, d]
    return x


@compiled
def tanh_(x):
    """Replaces each entry of x (n,) by its hyperbolic tangent; NaN stays NaN."""
    for i in range(x.size):
        y = x[i]
        y = TANH_LIMIT if y > TANH_LIMIT else y
        y = -TANH_LIMIT if y < -TANH_LIMIT else y
        s = y * y
        odd = y * (A1 + s * (A3 + s * (A5 + s * (A7 + s * (A9 + s * (A11 + s * A13))))))
        x[i] = odd / (B0 + s * (B2 + s * (B4 + s * B6)))


@compiled
def activate_(x, activation):
    """Applies an activation (`LINEAR`, `TANH` or `RELU`) to each entry of x (n,) in place."""
    if activation == TANH:
        tanh_(x)
    elif activation == RELU:
        for i in range(x.size):
            x[i] = NOUGHT if x[i] < NOUGHT else x[i]  # NaN stays NaN


@compiled
def scale_by_derivative_(grad, outputs, activation):
    """Multiplies grad (n,) in place by the derivative of an activation at each entry.

    `outputs` (n,) are the results of the activation, which is `LINEAR`, `TANH` or `RELU`.
    """
    if activation == TANH:
        for i in range(grad.size):
            grad[i] *= ONE - outputs[i] * outputs[i]
    elif activation == RELU:
        for i in range(grad.size):
            grad[i] = grad[i] if outputs[i] > NOUGHT else NOUGHT


@compiled
def forward(theta, layers, x):
    """Computes the outputs of a network.

    Args:
        theta: All parameters of the network as one array (P,).
        layers: Layers of the network (L, 5) int64; a row has the positions of weight and bias in `theta`, numbers of
            outputs and inputs, and activation.
        x: Features (R, F) of R rows.

    Returns:
        (outputs of all layers in one flat array, outputs (R, O) of the last layer). The second is a view of the first.
    """
    rows, size = len(x), 0
    for layer in range(len(layers)):
        size += rows * layers[layer, 2]
    activations, start, inputs = np.empty(size, np.float32), 0, x
    for layer in range(len(layers)):
        weight_at, bias_at, num_outputs, num_inputs, activation = layers[layer]
        weight = theta[weight_at : weight_at + num_outputs * num_inputs].reshape(num_outputs, num_inputs)
        flat = activations[start : start + rows * num_outputs]
        out = flat.reshape(rows, num_outputs)
        for r in range(rows):
            for o in range(num_outputs):
                out[r, o] = theta[bias_at + o]
        add_product(out, inputs, weight.T)
        activate_(flat, activation)
        inputs, start = out, start + rows * num_outputs
    return activations, inputs


@compiled
def backward(theta, layers, x, activations, out_grad, grad):
    """Computes the gradient of the parameters of a network, and adds it to `grad`.

    Args:
        theta: All parameters of the network as one array (P,).
        layers: Layers of the network (L, 5) int64, as in `forward`.
        x: Features (R, F) of R rows.
        activations: First result of `forward`.
        out_grad: Gradient (R, O) of the O outputs.
        grad: Gradient (P,) of the parameters, changed in place.
    """
    rows, end = len(x), activations.size - out_grad.size
    for layer in range(len(layers) - 1, -1, -1):
        weight_at, bias_at, num_outputs, num_inputs, _ = layers[layer]
        weights = slice(weight_at, weight_at + num_outputs * num_inputs)
        inputs = activations[end - rows * num_inputs : end].reshape(rows, num_inputs) if layer else x
        add_product(grad[weights].reshape(num_outputs, num_inputs), out_grad.T, inputs)
        bias_grad = grad[bias_at : bias_at + num_outputs]
        for r in range(rows):
            for o in range(num_outputs):
                bias_grad[o] += out_grad[r, o]
        if layer:
            in_grad = np.zeros((rows, num_inputs), np.float32)
            add_product(in_grad, out_grad, theta[weights].reshape(num_outputs, num_inputs))
            scale_by_derivative_(in_grad.reshape(in_grad.size), inputs.reshape(in_grad.size), layers[layer - 1, 4])
            out_grad, end = in_grad, end - rows * num_inputs


@compiled
def input_gradient(theta, layers, activations, out_grad):
    """Returns the gradient (R, F) of the features of a network.

    Args:
        theta: All parameters of the network as one array (P,).
        layers: Layers of the network (L, 5) int64, as in `forward`.
        activations: First result of `forward`.
        out_grad: Gradient (R, O) of the O outputs of R rows.
    """
    rows, end = len(out_grad), activations.size - out_grad.size
    for layer in range(len(layers) - 1, -1, -1):
        weight_at, _, num_outputs, num_inputs, _ = layers[layer]
        in_grad = np.zeros((rows, num_inputs), np.float32)
        weight = theta[weight_at : weight_at + num_outputs * num_inputs].reshape(num_outputs, num_inputs)
        add_product(in_grad, out_grad, weight)
        if layer:
            end -= rows * num_inputs
            scale_by_derivative_(
                in_grad.reshape(in_grad.size), activations[end : end + in_grad.size], layers[layer - 1, 4]
            )
        out_grad = in_grad
    return out_grad


@compiled
def normalised(x, mean, var, clip):
    """Returns features x (R, F), normalised and clipped as by `RunningNorm`; x itself if `mean` is empty.

    `mean` and `var` (F,) are the statistics. Results are clipped to -clip..clip.
    """
    if not mean.size:
        return x
    result = np.empty_like(x)
    for r in range(len(x)):
        for f in range(x.shape[1]):
            y = (x[r, f] - mean[f]) / math.sqrt(var[f] + EPSILON)
            y = clip if y > clip else y
            result[r, f] = -clip if y < -clip else y
    return result
