"""Compiled MLP: forward and backward pass of a small tanh or ReLU network on a CPU, for use inside functions of numba.

A compiled function has no overhead per operator. With up to some hundred rows and narrow layers it is therefore several
times as fast as operators of PyTorch. No sum is reordered at run time, so a machine repeats its results bit for bit.
The functions are not cached on disk themselves: the cached function that uses them passes this module and `product` to
`source_checksum`.

Shapes: R rows, F features, I inputs and O outputs of a layer, L layers, P parameters with the gaps of `FlatAdam`.

An array `layers` (L, 5) int64 describes a network. A row has the positions of weight and bias in the parameters, O, I,
and the activation: `LINEAR`, `TANH`, `RELU`, or `NORM_RELU`, a layer norm without scale and offset before the ReLU.

An array `activations` has one block for each layer: its outputs (R, O). With `NORM_RELU` these are the outputs of the
norm, and the factors (R,) by which the norm multiplied its rows follow.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from torch import Tensor, nn

from powerband.core.optim.compiled_adam import compiled, scalar_product, total
from powerband.nets.compiled.product import add_product
from powerband.nets.mlp import TwinMLP

LINEAR, TANH, RELU, NORM_RELU = range(4)
"""Activation of a layer."""
NOUGHT, ONE, EPSILON = np.float32(0), np.float32(1), np.float32(1e-8)
NORM_EPSILON = np.float32(1e-5)
"""Added to the variance by a layer norm, as in PyTorch."""
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
    """Describes the members of a `TwinMLP` with ReLU layers, with or without layer norms, each as one network.

    Args:
        flat: All parameters (P,), of which those of `net` are views.
        net: Networks with the same layers, such as two critics.

    Returns:
        Array (members, L, 5) int64: one array `layers` for each member.
    """
    activation = NORM_RELU if net.layer_norm else RELU
    members = [
        [
            (position(flat, weight[member]), position(flat, bias[member]), *weight.shape[1:], activation)
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
            # NaN stays NaN. Without the sum, LLVM stores only the entries below 0, which is slow on some processors.
            x[i] = NOUGHT if x[i] < NOUGHT else x[i] + NOUGHT


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
def block_size(rows, outputs, activation):
    """Returns the entries of the block of a layer in an array `activations`."""
    return rows * outputs + (rows if activation == NORM_RELU else 0)


@compiled
def normalise_rows_(x, factor):
    """Shifts and scales each row of x (R, O) to mean 0 and variance 1 in place; writes the factors to `factor` (R,)."""
    width = x.shape[1]
    share = ONE / np.float32(width)
    for r in range(len(x)):
        row = x[r]
        mean = total(row) * share
        for o in range(width):
            row[o] -= mean
        scale = ONE / np.float32(math.sqrt(scalar_product(row, row) * share + NORM_EPSILON))
        factor[r] = scale
        for o in range(width):
            row[o] *= scale


@compiled
def rectified(normal):
    """Returns the ReLU of each entry of normal (R, O) in a new array."""
    result = np.empty(normal.shape, np.float32)
    for r in range(len(normal)):
        for o in range(normal.shape[1]):
            result[r, o] = NOUGHT if normal[r, o] < NOUGHT else normal[r, o]  # NaN stays NaN
    return result


@compiled
def norm_relu_backward_(grad, normal, factor):
    """Replaces the gradient (R, O) of ReLU outputs by that of the inputs of the layer norm before the ReLU.

    Args:
        grad: Gradient, changed in place.
        normal: Outputs (R, O) of the norm.
        factor: Factors (R,) by which the norm multiplied its rows.
    """
    width = grad.shape[1]
    share = ONE / np.float32(width)
    for r in range(len(grad)):
        row, normals, scale = grad[r], normal[r], factor[r]
        for o in range(width):
            row[o] = row[o] if normals[o] > NOUGHT else NOUGHT
        mean = total(row) * share
        slope = scalar_product(row, normals) * share
        for o in range(width):
            row[o] = scale * (row[o] - mean - normals[o] * slope)


@compiled
def forward(theta, layers, x):
    """Computes the outputs of a network.

    Args:
        theta: All parameters of the network as one array (P,).
        layers: Layers of the network (L, 5) int64; a row has the positions of weight and bias in `theta`, numbers of
            outputs and inputs, and activation.
        x: Features (R, F) of R rows.

    Returns:
        (array `activations`, outputs (R, O) of the last layer). The second is a view of the first.
    """
    rows, size = len(x), 0
    for layer in range(len(layers)):
        size += block_size(rows, layers[layer, 2], layers[layer, 4])
    activations, start, inputs = np.empty(size, np.float32), 0, x
    for layer in range(len(layers)):
        weight_at, bias_at, num_outputs, num_inputs, activation = layers[layer]
        weight = theta[weight_at : weight_at + num_outputs * num_inputs].reshape(num_outputs, num_inputs)
        flat = activations[start : start + rows * num_outputs]
        out = flat.reshape(rows, num_outputs)
        bias = theta[bias_at : bias_at + num_outputs]
        for r in range(rows):
            for o in range(num_outputs):
                out[r, o] = bias[o]
        if num_outputs == 1:  # a tile of `add_product` would compute 16 columns
            for r in range(rows):
                out[r, 0] += scalar_product(inputs[r], weight[0])
        else:
            add_product(out, inputs, weight.T)
        start += rows * num_outputs
        if activation == NORM_RELU:
            normalise_rows_(out, activations[start : start + rows])
            inputs, start = rectified(out), start + rows
        else:
            activate_(flat, activation)
            inputs = out
    return activations, inputs


@compiled
def activation_backward_(grad, activations, start, activation):
    """Replaces the gradient (R, O) of a layer's outputs by that of the inputs of its activation.

    Args:
        grad: Gradient, changed in place.
        activations: Array `activations`, in which the block of the layer begins at `start`.
        start: See `activations`.
        activation: Activation of the layer.
    """
    end = start + grad.size
    if activation == NORM_RELU:
        norm_relu_backward_(grad, activations[start:end].reshape(grad.shape), activations[end : end + len(grad)])
    else:
        scale_by_derivative_(grad.reshape(grad.size), activations[start:end], activation)


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
        before = layers[layer - 1, 4] if layer else LINEAR
        end -= block_size(rows, num_inputs, before) if layer else 0
        outputs = activations[end : end + rows * num_inputs].reshape(rows, num_inputs) if layer else x
        inputs = rectified(outputs) if before == NORM_RELU else outputs
        add_product(grad[weights].reshape(num_outputs, num_inputs), out_grad.T, inputs)
        bias_grad = grad[bias_at : bias_at + num_outputs]
        for r in range(rows):
            for o in range(num_outputs):
                bias_grad[o] += out_grad[r, o]
        if layer:
            in_grad = np.zeros((rows, num_inputs), np.float32)
            add_product(in_grad, out_grad, theta[weights].reshape(num_outputs, num_inputs))
            activation_backward_(in_grad, activations, end, before)
            out_grad = in_grad


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
            end -= block_size(rows, num_inputs, layers[layer - 1, 4])
            activation_backward_(in_grad, activations, end, layers[layer - 1, 4])
        out_grad = in_grad
    return out_grad


@compiled
def chosen_rows(activations, layers, rows, chosen):
    """Returns the array `activations` that `forward` would compute from some of its rows alone.

    Args:
        activations: First result of `forward` for `rows` rows.
        layers: Layers of the network (L, 5) int64, as in `forward`.
        rows: Number of rows.
        chosen: Indices (n,) int64 of the n rows of the result.
    """
    size, start, end = 0, 0, 0
    for layer in range(len(layers)):
        size += block_size(len(chosen), layers[layer, 2], layers[layer, 4])
    result = np.empty(size, np.float32)
    for layer in range(len(layers)):
        width, activation = layers[layer, 2], layers[layer, 4]
        outputs = activations[start : start + rows * width].reshape(rows, width)
        kept = result[end : end + len(chosen) * width].reshape(len(chosen), width)
        for i in range(len(chosen)):
            for o in range(width):
                kept[i, o] = outputs[chosen[i], o]
        start, end = start + rows * width, end + len(chosen) * width
        if activation == NORM_RELU:  # the factors of the rows follow
            for i in range(len(chosen)):
                result[end + i] = activations[start + chosen[i]]
            start, end = start + rows, end + len(chosen)
    return result


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
