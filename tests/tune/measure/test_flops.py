"""Operations of an update compared with the sizes of its layers, and the share of the peak in a profile."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

import runs
from powerband.cli import main as cli
from powerband.tune.measure import flops
from powerband.tune.measure.facts import WindowFacts


def test_forward_and_backward_of_a_perceptron_are_counted_exactly() -> None:
    net, x = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3)), torch.randn(7, 20)
    # Per layer: one product forward, one for its weights, one for its input; the first input needs no gradient.
    expected = 2 * 7 * (2 * 20 * 64 + 3 * 64 * 3)
    assert flops.count_flops(lambda: net(x).sum().backward()) == expected
    with torch.autocast("cpu", torch.bfloat16):
        assert flops.count_flops(lambda: net(x).float().sum().backward()) == expected


def test_fused_attention_is_counted_on_a_cpu() -> None:
    q, k = torch.randn(3, 2, 5, 4, requires_grad=True), torch.randn(3, 2, 7, 4, requires_grad=True)
    product = 2 * 3 * 2 * 5 * 7 * 4
    assert flops.count_flops(lambda: functional.scaled_dot_product_attention(q, k, k)) == 2 * product
    # Backward: two products for each of two products, and the scores are computed again.
    assert flops.count_flops(lambda: functional.scaled_dot_product_attention(q, k, k).sum().backward()) == 7 * product


def test_rate_excludes_time_outside_of_updates() -> None:
    assert WindowFacts(update_flops=10**9, grad_steps=50).flops_s(0.5) == 1e11
    assert WindowFacts().flops_s(0.0) == 0.0


def test_profile_prints_the_share_of_the_peak_of_its_updates(capsys, monkeypatch) -> None:
    monkeypatch.setattr("powerband.tune.profile.advise", lambda *words, **more: [])  # measures runs of its own
    cli.main(["profile", *runs.SMALL["sac"], *runs.COMMON, "num_workers=0", "sac.fused=false", "seconds=1"])
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("updates:"))
    share = float(line.split("% of")[0].split()[-1])
    assert "MFLOP each" in line and 0 < share < 100
