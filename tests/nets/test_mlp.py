"""Networks: the CPU node equals plain modules, ensembles equal single networks; initialisation."""

import pytest
import torch
from torch import nn

from powerband.nets import dense
from powerband.nets.mlp import MLP, TwinMLP


def plain(net: MLP) -> nn.Sequential:
    layers = [part for linear in net.hidden for part in (linear, nn.ReLU())]
    return nn.Sequential(*layers, *([net.output] if net.output is not None else []))


def gradients(out: torch.Tensor, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    return list(torch.autograd.grad((out * torch.arange(1.0, out.shape[-1] + 1)).square().sum(), inputs))


@pytest.mark.parametrize("outputs", [0, 1, 3])
@pytest.mark.parametrize("rows", [1, 5, 700])
def test_dense_equals_plain_modules_in_float32(outputs, rows):
    torch.manual_seed(0)
    net = MLP(6, (16, 8), outputs)
    x = torch.randn(rows, 6, requires_grad=True)
    out, expected = net(x), plain(net)(x)
    torch.testing.assert_close(out, expected)
    inputs = [x, *net.parameters()]
    for mine, theirs in zip(gradients(out, inputs), gradients(expected, inputs), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


def test_dense_in_bfloat16_is_near_float32_and_ends_in_float32():
    torch.manual_seed(0)
    net = MLP(20, (64, 64), 2)
    x = torch.randn(700, 20, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        out = net(x)
        assert torch.is_autocast_enabled("cpu")
    expected = plain(net)(x)
    assert out.dtype == torch.float32 and len(out.unique()) > 1300  # many bfloat16 outputs would be equal
    assert (out - expected).norm() < 0.01 * expected.norm()
    inputs = [x, *net.parameters()]
    for mine, theirs in zip(gradients(out, inputs), gradients(expected, inputs), strict=True):
        assert mine.dtype == torch.float32 and (mine - theirs).norm() < 0.08 * theirs.norm()


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("kind", [MLP, TwinMLP])
def test_exact_inputs_distinguish_millimetres_in_bfloat16(kind, activation):
    """0.850 m and 0.851 m are equal in bfloat16, so later layers cannot distinguish them."""
    x = torch.tensor([[0.850, 0.1], [0.851, 0.1]]).repeat(300, 1).requires_grad_()
    spread = {}
    for exact in (False, True):
        torch.manual_seed(0)
        net = kind(2, (64, 64), 1, activation=activation, exact_inputs=exact)
        with torch.autocast("cpu", torch.bfloat16):
            out = net(x)
        spread[exact] = float((out[..., 0, :] - out[..., 1, :]).detach().abs().max())
        expected = net(x)
        assert (out - expected).norm() < 0.05 * expected.norm()
        inputs = [x, *net.parameters()]
        for mine, theirs in zip(gradients(out, inputs), gradients(expected, inputs), strict=True):
            assert mine.dtype == torch.float32 and (mine - theirs).norm() < 0.1 * theirs.norm()
    assert spread[False] == 0.0 < spread[True]


def test_exact_inputs_of_a_network_without_hidden_layers():
    x = torch.tensor([[1000.123, 0.1]])
    net = MLP(2, (), 1, exact_inputs=True)
    expected = net(x)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(net(x), expected)


def test_relu_through_bits():
    x = torch.randn(1000).bfloat16()
    x[:3] = torch.tensor([0.0, -0.0, float("inf")])
    grad = torch.randn(1000).bfloat16()
    expected = torch.relu(x)
    out = dense.relu_(x.clone())
    assert torch.equal(out, expected)
    assert torch.equal(dense.relu_backward(grad, out), grad * (expected > 0))


def test_frozen_weights_still_pass_gradients_on():
    net = MLP(3, (8,), 1).requires_grad_(False)
    x = torch.randn(4, 3, requires_grad=True)
    net(x).sum().backward()
    assert x.grad.abs().sum() > 0


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_twins_equal_two_single_networks(activation):
    torch.manual_seed(0)
    twins = TwinMLP(5, (16, 8), 1, activation=activation)
    x = torch.randn(9, 5, requires_grad=True)
    out = twins(x)
    assert out.shape == (2, 9, 1)
    parameters = list(twins.parameters())
    activate = {"relu": torch.relu, "tanh": torch.tanh}[activation]
    expected = []
    for member in range(2):
        h = x
        for index, (weight, bias) in enumerate(zip(twins.weights, twins.biases, strict=True)):
            h = h @ weight[member].t() + bias[member]
            h = activate(h) if index < 2 else h
        expected.append(h)
    expected = torch.stack(expected)
    torch.testing.assert_close(out, expected)
    for mine, theirs in zip(gradients(out, [x, *parameters]), gradients(expected, [x, *parameters]), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


def test_twins_with_layer_norm_depend_on_the_direction_of_hidden_layers_alone():
    torch.manual_seed(0)
    twins, x = TwinMLP(5, (16, 8), 1, layer_norm=True), torch.randn(9, 5)
    out = twins(x)
    with torch.no_grad():
        for parameters in (twins.weights[0], twins.biases[0], twins.weights[1], twins.biases[1]):
            parameters.mul_(100.0)
    torch.testing.assert_close(twins(x), out, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("outputs", [1, 3])
def test_twins_for_the_compiler_are_the_same_function(outputs, monkeypatch):
    net, x = TwinMLP(5, (16, 16), outputs), torch.randn(7, 5)
    expected = net(x)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    torch.testing.assert_close(net(x), expected)


def test_any_leading_axes_and_layer_norm():
    net = MLP(4, (8,), 2, "silu", layer_norm=True)
    assert net(torch.randn(3, 2, 4)).shape == (3, 2, 2)
    assert MLP(4, (8,), 0)(torch.randn(3, 2, 4)).shape == (3, 2, 8)


def test_orthogonal_initialisation():
    net = MLP(16, (16,), 4, output_gain=0.01)
    weight = net.hidden[0].weight
    torch.testing.assert_close(weight @ weight.t(), 2 * torch.eye(16), rtol=0, atol=1e-5)
    torch.testing.assert_close(net.output.weight.norm(dim=1), torch.full((4,), 0.01))
