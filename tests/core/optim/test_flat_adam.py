"""The flat optimiser and flat targets, compared with torch.optim.Adam and a loop over parameters."""

import copy
import subprocess
import sys

import pytest
import torch
from torch import nn

from powerband.core.optim.compile import all_tensors
from powerband.core.optim.flat_adam import FLUSH_INTERVAL, FlatAdam, FlatTarget, clipped_adam_, join_
from powerband.core.optim.precision import Precision

FP32 = Precision("fp32")


def network(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).to(dtype)


def loss_of(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return net(x).square().mean()


@pytest.mark.parametrize("max_grad_norm", [None, 0.05])
def test_equals_adam_on_each_tensor(max_grad_norm):
    ours, plain = network(), network()
    optimiser = FlatAdam([ours], 1e-2, precision=FP32, max_grad_norm=max_grad_norm)
    adam = torch.optim.Adam(plain.parameters(), 1e-2)
    for step in range(20):
        x = torch.randn(16, 5, generator=torch.Generator().manual_seed(step))
        norm = optimiser.step(loss_of(ours, x))
        adam.zero_grad()
        loss_of(plain, x).backward()
        expected = nn.utils.clip_grad_norm_(plain.parameters(), max_grad_norm or float("inf"))
        adam.step()
        torch.testing.assert_close(norm, expected)
    for mine, theirs in zip(ours.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("flush_interval, denormal", [(FLUSH_INTERVAL, False), (2**62, True)])
def test_shrinking_moments_become_zero_without_an_effect_on_weights(monkeypatch, flush_interval, denormal):
    """The second case, which never flushes, shows that denormal moments would occur."""
    monkeypatch.setattr("powerband.core.optim.flat_adam.FLUSH_INTERVAL", flush_interval)
    ours, plain = network(), network()
    optimiser = FlatAdam([ours], 1e-2, precision=FP32)
    adam = torch.optim.Adam(plain.parameters(), 1e-2, fused=True)
    denormal_seen = False
    for step in range(1_100):
        alive = torch.ones(16, 5)
        if step > 10:
            alive[:, 0] = 0  # without this input its seven weights have no gradient
        x = alive * torch.randn(16, 5, generator=torch.Generator().manual_seed(step))
        optimiser.step(loss_of(ours, x))
        adam.zero_grad()
        loss_of(plain, x).backward()
        adam.step()
        moments = optimiser.adam.state["exp_avg"].abs()
        denormal_seen |= bool(((moments > 0) & (moments < torch.finfo(torch.float32).tiny)).any())
    assert denormal_seen is denormal
    for mine, theirs in zip(ours.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


def test_two_half_batches_averaged_are_one_joint_batch():
    x = torch.randn(8, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    joint = network(torch.float64)
    optimiser = FlatAdam([joint], 1e-2, precision=FP32)
    optimiser.step(loss_of(joint, x))

    gradients = []
    for half in x.chunk(2):
        alone = network(torch.float64)
        FlatAdam([alone], 1e-2, precision=FP32, average=lambda grad: gradients.append(grad.clone())).step(
            loss_of(alone, half)
        )
    first = network(torch.float64)
    FlatAdam([first], 1e-2, precision=FP32, average=lambda grad: grad.copy_(sum(gradients) / 2)).step(
        loss_of(first, x[:4])
    )
    for mine, theirs in zip(first.parameters(), joint.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12)


def test_parameters_are_views_and_state_dicts_still_work():
    net = network()
    before = copy.deepcopy(net.state_dict())
    flat = FlatAdam([net], 1e-2, precision=FP32)
    for key, value in net.state_dict().items():
        assert torch.equal(value, before[key])
    places = [parameter.data_ptr() for parameter in net.parameters()]
    flat.step(loss_of(net, torch.randn(4, 5)))
    assert not torch.equal(net.state_dict()["0.weight"], before["0.weight"])
    net.load_state_dict(before)
    assert [parameter.data_ptr() for parameter in net.parameters()] == places
    start = flat.flat.data_ptr()
    assert all(start <= place < start + 4 * flat.flat.numel() and place % 64 == start % 64 for place in places)


def test_resume_is_bit_exact():
    def train(net, flat, steps):
        for step in steps:
            flat.step(loss_of(net, torch.randn(4, 5, generator=torch.Generator().manual_seed(step))))

    straight = network()
    train(straight, FlatAdam([straight], 1e-2, precision=FP32), range(10))
    first = network()
    flat = FlatAdam([first], 1e-2, precision=FP32)
    train(first, flat, range(5))
    saved = copy.deepcopy({"net": first.state_dict(), "adam": flat.state_dict()})
    second = network()
    flat = FlatAdam([second], 1e-2, precision=FP32)
    second.load_state_dict(saved["net"])
    flat.load_state_dict(saved["adam"])
    train(second, flat, range(5, 10))
    for mine, theirs in zip(second.parameters(), straight.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    other = FlatAdam([network()], 5e-2, precision=FP32)
    other.load_state_dict(saved["adam"])
    assert other.lr == 5e-2, "a resume keeps the learning rate of its configuration"


def test_frozen_gives_no_weight_gradient():
    net = network()
    flat = FlatAdam([net], 1e-2, precision=FP32)
    x = torch.randn(4, 5, requires_grad=True)
    with flat.frozen():
        loss_of(net, x).backward()
    assert x.grad.abs().sum() > 0 and flat.grad.abs().sum() == 0
    assert all(parameter.requires_grad for parameter in net.parameters())


def test_target_follows():
    online = network()
    flat = FlatAdam([online], 1e-2, precision=FP32)
    target = copy.deepcopy(online)
    follow = FlatTarget(flat, [target], 0.1)
    assert not any(parameter.requires_grad for parameter in target.parameters())
    plain = copy.deepcopy(target)
    for step in range(3):
        flat.step(loss_of(online, torch.randn(4, 5, generator=torch.Generator().manual_seed(step))))
        follow.update()
        for slow, fast in zip(plain.parameters(), online.parameters(), strict=True):
            slow.data.copy_(0.9 * slow.data + 0.1 * fast.data)
    for mine, theirs in zip(target.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: FlatAdam([nn.ReLU()], 1e-3, precision=FP32), "no parameters"),
        (lambda: FlatAdam([network(), network(torch.float64)], 1e-3, precision=FP32), "one dtype"),
        (lambda: FlatAdam([network()], 0.0, precision=FP32), "above 0"),
        (lambda: FlatTarget(FlatAdam([network()], 1e-3, precision=FP32), [network()], 0.0), "tau=0.0"),
        (lambda: FlatTarget(FlatAdam([network()], 1e-3, precision=FP32), [nn.Linear(2, 2)], 0.5), "same order"),
    ],
)
def test_errors_name_the_fix(make, message):
    with pytest.raises(ValueError, match=message):
        make()


class Scaled:
    """Loss scaling on a CPU, as fp16 needs it on CUDA."""

    def scaler(self) -> torch.amp.GradScaler:
        return torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)


def test_a_skipped_step_decays_no_weight():
    net = network()
    flat = FlatAdam([net], 1e-2, precision=Scaled(), weight_decay=0.5)
    x, before = torch.randn(16, 5), flat.flat.detach().clone()
    flat.step(loss_of(net, x) * float("inf"))
    assert torch.equal(flat.flat, before)
    flat.step(loss_of(net, x))
    assert flat.flat.norm() < 0.998 * before.norm()


def test_loss_scaling_changes_nothing_but_skips_steps_that_are_not_finite():
    scaled, plain = network(), network()
    flat, reference = FlatAdam([scaled], 1e-2, precision=Scaled()), FlatAdam([plain], 1e-2, precision=FP32)
    for step in range(8):
        x = torch.randn(16, 5, generator=torch.Generator().manual_seed(step))
        if step == 4:
            before = flat.flat.detach().clone()
            flat.step(loss_of(scaled, x) * float("inf"))
            assert torch.equal(flat.flat, before) and flat.scaler.get_scale() == 2.0**10
            continue
        torch.testing.assert_close(flat.step(loss_of(scaled, x)), reference.step(loss_of(plain, x)))
    assert flat.state_dict()["step"] == reference.state_dict()["step"] == 7
    torch.testing.assert_close(flat.flat, reference.flat, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("numbers", [False, True], ids=["tensors", "numbers of earlier versions"])
def test_the_loss_scale_is_part_of_the_state_and_restored_in_place(numbers):
    net = network()
    flat, other = FlatAdam([net], 1e-2, precision=Scaled()), FlatAdam([network()], 1e-2, precision=Scaled())
    live = all_tensors(other.state_dict()["scaler"])
    assert len(live) == 2, "scale and growth tracker exist before the first step, as a captured graph needs them"
    for factor in (1.0, 1.0, 1.0, 1.0, float("inf"), 1.0):
        flat.step(loss_of(net, torch.randn(16, 5)) * factor)
    state = copy.deepcopy(flat.state_dict())
    if numbers:
        state["scaler"] = flat.scaler.state_dict()
    other.load_state_dict(state)
    assert other.scaler.state_dict() == flat.scaler.state_dict() and other.scaler.get_scale() == 2.0**10
    assert [float(each) for each in live] == [2.0**10, 1.0]


def test_training_without_compile_does_not_import_the_compiler():
    """The import takes over a second at the start of each rank."""
    code = """
import sys, torch
from powerband.algos.sac import SAC
from powerband.algos.settings import SACConfig
from powerband.core.rank_context import RankContext
from powerband.data.types import EnvSpec, TensorSpec
one = torch.ones(2)
spec = EnvSpec(obs=TensorSpec((3,)), action=TensorSpec((2,)), low=-one, high=one)
sac = SAC(spec, SACConfig(hidden=(8,)), RankContext.single("cpu", "bf16"))
batch = {"obs": torch.zeros(4, 3), "next_obs": torch.zeros(4, 3), "action": torch.zeros(4, 2)}
sac.update(batch | {"reward": torch.zeros(4), "terminated": torch.zeros(4, dtype=torch.bool)})
assert "torch._dynamo" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(("weight_decay", "max_grad_norm"), [(0.0, None), (0.1, 0.05)])
def test_the_functions_for_the_compiler_make_the_same_steps(weight_decay, max_grad_norm):
    fused_net, plain_net = network(), network()
    options = {"precision": FP32, "weight_decay": weight_decay, "max_grad_norm": max_grad_norm}
    fused, plain = (FlatAdam([net], 1e-2, **options) for net in (fused_net, plain_net))
    plain._join_fn, plain._clipped_adam_fn, plain.adam.lr = join_, clipped_adam_, torch.tensor(1e-2)
    for _ in range(20):
        x = torch.randn(16, 5)
        torch.testing.assert_close(plain.step(loss_of(plain_net, x)), fused.step(loss_of(fused_net, x)))
    torch.testing.assert_close(plain.flat, fused.flat, rtol=1e-4, atol=1e-5)
    assert plain.adam.state["step"] == fused.adam.state["step"] == 20
