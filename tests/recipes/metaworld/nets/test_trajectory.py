"""TrajectoryEncoder: padding has no effect, order has, and gradient checkpointing changes no gradient."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from powerband.core.errors import ConfigError
from powerband.recipes.metaworld.nets.trajectory import TrajectoryEncoder
from powerband.recipes.metaworld.settings import TrajectoryEncoderConfig

SMALL = TrajectoryEncoderConfig(length=6, width=16, layers=2, heads=4, feedforward=32)


def batch(rows: int = 5, length: int = 6) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    return {
        "state": torch.randn(rows, length, 21, generator=draw),
        "action": torch.randn(rows, length - 1, 4, generator=draw),
        "reward": torch.rand(rows, length - 1, 1, generator=draw),
        "length": torch.tensor([6, 4, 1, 2, 6])[:rows].clamp(max=length),
    }


def test_padding_has_no_effect():
    torch.manual_seed(0)
    net, known = TrajectoryEncoder(SMALL).eval(), batch()
    other = {name: part.clone() for name, part in known.items()}
    for row, length in enumerate(known["length"].tolist()):
        other["state"][row, length:] = 9.0
        other["action"][row, length - 1 :] = 9.0
        other["reward"][row, length - 1 :] = 9.0
    torch.testing.assert_close(net(known)[0], net(other)[0])
    shorter = {name: part[1:4, ...] for name, part in known.items()}
    cut = {**shorter, "state": shorter["state"][:, :4], "action": shorter["action"][:, :3]}
    cut["reward"] = shorter["reward"][:, :3]
    torch.testing.assert_close(net(cut)[0], net(known)[0][1:4])


@pytest.mark.parametrize("part", ["state", "action", "reward"])
def test_the_code_depends_on_every_part_and_on_its_order(part):
    torch.manual_seed(0)
    net, known = TrajectoryEncoder(SMALL).eval(), batch(1)
    changed, reversed_ = dict(known), dict(known)
    changed[part] = known[part] + 1
    reversed_[part] = known[part].flip(1)
    for other in (changed, reversed_):
        assert not torch.allclose(net(other)[0], net(known)[0], rtol=0, atol=1e-6)


def test_gradient_checkpointing_keeps_the_gradients():
    torch.manual_seed(0)
    net = TrajectoryEncoder(replace(SMALL, dropout=0.0)).train()
    same = TrajectoryEncoder(replace(SMALL, dropout=0.0, gradient_checkpointing=True)).train()
    same.load_state_dict(net.state_dict())
    for each in (net, same):
        z, predicted = each(batch())
        (z.square().sum() + sum(part.square().mean() for part in predicted.values())).backward()
    for one, other in zip(net.parameters(), same.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_invalid_sizes_are_refused():
    with pytest.raises(ConfigError, match="heads=3"):
        TrajectoryEncoderConfig(heads=3)
    with pytest.raises(ConfigError, match="length=1"):
        TrajectoryEncoderConfig(length=1)
