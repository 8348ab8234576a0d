"""Fused DQN: losses, gradients and parameters equal those of PyTorch; updates repeat their bits."""

import pytest
import torch

from powerband.algos.dqn import DQN
from powerband.algos.settings import DQNConfig
from powerband.core.rank_context import RankContext
from powerband.data.types import EnvSpec, TensorSpec

K = 3
OBS, ACTION = TensorSpec((5,)), TensorSpec((), torch.int64)
PLAIN = EnvSpec(OBS, ACTION, num_actions=K)
MASKED = EnvSpec({"vector": OBS, "action_mask": TensorSpec((K,), torch.bool)}, ACTION, num_actions=K)
ROWS = 27  # neither rows nor widths are multiples of the blocks of the matrix product


def learner(fused: bool, spec: EnvSpec = PLAIN, precision: str = "fp32", **options) -> DQN:
    torch.manual_seed(0)
    settings = DQNConfig(**{"hidden": (30, 17), "fused": fused, "lr": 3e-3, **options})
    return DQN(spec, settings, RankContext.single(precision=precision))


def batch(seed: int = 0, masked: bool = False, weighted: bool = False) -> dict:
    draw = torch.Generator().manual_seed(seed)
    obs, next_obs = torch.randn(2, ROWS, 5, generator=draw)
    mask = torch.rand(2, ROWS, K, generator=draw) < 0.5
    mask[:, 0] = False  # a terminal state may allow no action
    data = {
        "obs": {"vector": obs, "action_mask": mask[0]} if masked else obs,
        "next_obs": {"vector": next_obs, "action_mask": mask[1]} if masked else next_obs,
        "action": torch.randint(K, (ROWS,), generator=draw),
        "reward": 3 * torch.randn(ROWS, generator=draw),
        "terminated": torch.rand(ROWS, generator=draw) < 0.2,
    }
    return {**data, "weight": torch.rand(ROWS, generator=draw)} if weighted else data


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    "options",
    [{}, {"double": False, "max_grad_norm": 0.1}, {"spec": MASKED, "huber_delta": 0.3}, {"hidden": (16,), "tau": 1.0}],
    ids=str,
)
def test_losses_gradients_and_parameters_equal_those_of_autograd(options, weighted):
    plain, fused = learner(False, **options), learner(True, **options)
    assert plain.fused is None and fused.fused is not None
    for number in range(40):
        data = batch(number, "spec" in options, weighted)
        expected, figures = plain.update(data), fused.update(data)
        assert expected.keys() == figures.keys()
        for name, value in expected.items():
            torch.testing.assert_close(figures[name], value, rtol=1e-4, atol=1e-5, msg=f"{name}, update {number}")
        torch.testing.assert_close(fused.errors, plain.errors, rtol=1e-3, atol=1e-4)
        assert (fused.adam.grad - plain.adam.grad).norm() <= 1e-3 * plain.adam.grad.norm(), f"update {number}"
    for name in ("net", "target_net"):
        for own, other in zip(getattr(fused, name).parameters(), getattr(plain, name).parameters(), strict=True):
            torch.testing.assert_close(own, other, rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.parametrize("explore", [True, False])
def test_actions_equal_those_of_pytorch_and_use_the_same_draws(explore):
    plain, fused = learner(False, MASKED), learner(True, MASKED)
    for seed in range(5):
        obs = batch(seed, masked=True)["obs"]
        assert torch.equal(fused.act(obs, None, explore)[0], plain.act(obs, None, explore)[0])
    assert fused.noise.state_dict() == plain.noise.state_dict()


def test_updates_repeat_their_bits_and_average_the_gradient():
    first, second = learner(True), learner(True)
    averaged: list[int] = []
    second.adam.average = lambda grad: averaged.append(grad.numel())
    for number in range(5):
        first.update(batch(number)), second.update(batch(number))
    assert torch.equal(first.adam.flat, second.adam.flat)
    assert averaged == [second.adam.grad.numel()] * 5


@pytest.mark.parametrize("name", ["obs", "reward", "next_obs"])
def test_values_that_are_not_finite_are_not_hidden(name):
    data = batch()
    data[name].view(ROWS, -1)[3, 0] = torch.nan
    data["terminated"][:] = False
    assert not torch.isfinite(torch.stack(list(learner(True).update(data).values()))).all()
