"""Private interfaces of PyTorch: the tested versions, and the behaviour that powerband relies on."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from powerband.core.optim import torch_private

TESTED_VERSIONS = ("2.13",)


def test_the_version_is_one_that_was_tested() -> None:
    installed = ".".join(torch.__version__.split(".")[:2])
    assert installed in TESTED_VERSIONS, (
        f"torch {torch.__version__}: check core/optim/torch_private.py, then add {installed} to TESTED_VERSIONS."
    )


def test_fused_adam_equals_the_public_optimiser() -> None:
    torch.manual_seed(0)
    ours, reference = torch.ones(5), nn.Parameter(torch.ones(5))
    public = torch.optim.Adam([reference], lr=1e-2, foreach=False, fused=False)
    average, square, step = torch.zeros(5), torch.zeros(5), torch.zeros(())
    for _ in range(4):
        reference.grad = torch.randn(5)
        public.step()
        step += 1
        torch_private.fused_adam_(
            [ours], [reference.grad], [average], [square], [], [step],
            lr=1e-2, beta1=0.9, beta2=0.999, weight_decay=0.0, eps=1e-8, amsgrad=False, maximize=False,
        )  # fmt: skip
    torch.testing.assert_close(ours, reference.detach())


def test_lerp_moves_each_target_in_place() -> None:
    targets = [torch.zeros(2), torch.full((3,), 4.0)]
    torch_private.lerp_all_(targets, [torch.ones(2), torch.zeros(3)], 0.25)
    assert targets[0].tolist() == [0.25, 0.25]
    assert targets[1].tolist() == [3.0, 3.0, 3.0]


def test_a_network_is_compiled_after_compile() -> None:
    net = nn.Linear(2, 2)
    assert not torch_private.is_compiled(net)
    net.compile()
    assert torch_private.is_compiled(net) and torch_private.is_compiled(nn.Sequential(nn.ReLU(), net))


def test_attention_on_a_cpu_is_counted() -> None:
    q = torch.randn(1, 2, 16, 8, requires_grad=True)
    with FlopCounterMode(display=False, custom_mapping=torch_private.CPU_ATTENTION) as counter:
        nn.functional.scaled_dot_product_attention(q, q, q).sum().backward()
    forward = 2 * (2 * 2 * 16 * 16 * 8)  # two products of 16 x 8 and 8 x 16 per head
    assert counter.get_total_flops() >= 3 * forward
