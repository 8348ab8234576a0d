"""TrajectoryEncoder: what lies behind a trajectory's end means nothing, order does, memory can be traded for time."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from powerband.nets.trajectory import EncoderConfig, TrajectoryEncoder

SMALL = EncoderConfig(length=6, width=16, layers=2, heads=4, feedforward=32)


def batch(rows: int = 5, length: int = 6) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    return {
        "state": torch.randn(rows, length, 21, generator=draw),
        "action": torch.randn(rows, length - 1, 4, generator=draw),
        "reward": torch.rand(rows, length - 1, 1, generator=draw),
        "length": torch.tensor([6, 4, 1, 2, 6])[:rows].clamp(max=length),
    }


def test_what_lies_behind_the_end_is_not_looked_at():
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
    changed, turned = dict(known), dict(known)
    changed[part] = known[part] + 1
    turned[part] = known[part].flip(1)
    for other in (changed, turned):
        assert not torch.allclose(net(other)[0], net(known)[0], rtol=0, atol=1e-6)


def test_gradient_checkpointing_changes_memory_only():
    torch.manual_seed(0)
    net = TrajectoryEncoder(replace(SMALL, dropout=0.0)).train()
    same = TrajectoryEncoder(replace(SMALL, dropout=0.0, gradient_checkpointing=True)).train()
    same.load_state_dict(net.state_dict())
    for each in (net, same):
        z, said = each(batch())
        (z.square().sum() + sum(part.square().mean() for part in said.values())).backward()
    for one, other in zip(net.parameters(), same.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_sizes_that_do_not_fit():
    with pytest.raises(ValueError, match="heads=3"):
        EncoderConfig(heads=3)
    with pytest.raises(ValueError, match="length=1"):
        EncoderConfig(length=1)
