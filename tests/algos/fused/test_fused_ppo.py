"""Fused PPO: losses, gradients, parameters and draws equal those of PyTorch; runs repeat their bits."""

import pytest
import torch

import runs
from powerband.algos.fused.ppo import kernels
from powerband.algos.ppo import PPO
from powerband.algos.settings import PPOConfig
from powerband.core.rank_context import RankContext
from powerband.data.rollout import minibatches
from powerband.data.types import EnvSpec, TensorSpec

BOX = EnvSpec(
    TensorSpec((5,)), TensorSpec((3,)), low=torch.tensor([0.0, -1.0, -2.0]), high=torch.tensor([4.0, 1.0, 2.0])
)
DISCRETE = EnvSpec(TensorSpec((5,)), TensorSpec((), torch.int64), num_actions=4)
MASKED_AGENTS = EnvSpec(
    {"view": TensorSpec((2, 5)), "action_mask": TensorSpec((2, 4), torch.bool)},
    TensorSpec((2,), torch.int64),
    num_actions=4,
    num_agents=2,
)
SPECS = pytest.mark.parametrize("spec", [BOX, DISCRETE, MASKED_AGENTS], ids=["box", "discrete", "masked agents"])
ROWS = 27  # neither rows nor widths are multiples of the blocks of the matrix product


def learner(spec, fused: bool, **options) -> PPO:
    torch.manual_seed(0)
    config = PPOConfig(**{"hidden": (30, 17), "shared_trunk": False, "fused": fused, **options})
    ppo = PPO(spec, config, RankContext.single())
    if fused:
        assert ppo.fused is not None
    return ppo


def pair(spec, **options) -> tuple[PPO, PPO]:
    """The same learner with PyTorch and with compiled functions."""
    plain, fused = learner(spec, False, **options), learner(spec, True, **options)
    for each in (plain, fused):
        each.after_rollout(observe(spec, 50))
    return plain, fused


def observe(spec, *lead, seed=0):
    draw = torch.Generator().manual_seed(seed)
    if not isinstance(spec.obs, dict):
        return 2 * torch.randn(*lead, *spec.obs.shape, generator=draw) + 1
    mask = torch.rand(*lead, 2, 4, generator=draw) < 0.5
    mask[..., 1] = True
    return {"view": torch.randn(*lead, 2, 5, generator=draw), "action_mask": mask}


def batch(plain: PPO, spec, rows: int):
    """A mini-batch whose ratios and values lie on both sides of the clipping."""
    obs = observe(spec, rows, seed=1)
    action, extras, _ = plain.act(obs, None, True)
    draw = torch.Generator().manual_seed(2)
    for name, scale in (("log_prob", 0.3), ("value", 0.2), ("advantages", 1.0), ("returns", 1.0)):
        old = extras.get(name, torch.zeros(()))
        extras[name] = old + scale * torch.randn(extras["log_prob"].shape, generator=draw)
    return {"obs": obs, "action": action, **extras}


def rollout(plain: PPO, spec, steps: int, envs: int):
    """The rows of a mini-batch as a rollout (steps, envs, ...)."""
    return {name: leaf.unflatten(0, (steps, envs)) for name, leaf in batch(plain, spec, steps * envs).items()}


@SPECS
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"value_clip": 0.1, "entropy_coef": 0.2, "entropy_end": 0.0},
        {"target_kl": 1e-3},
        {"normalize_obs": True, "hidden": (16,)},
    ],
    ids=str,
)
def test_losses_gradients_and_parameters_equal_those_of_autograd(spec, options):
    plain, fused = pair(spec, lr=1e-3, **options)
    data = batch(plain, spec, ROWS)
    for side in (plain, fused):
        side.set_progress(0.5)
    for number in range(50):
        expected, figures = plain.update(data), fused.update(data)
        assert expected.keys() == figures.keys()
        for name, value in expected.items():
            torch.testing.assert_close(figures[name], value, rtol=1e-4, atol=2e-6, msg=f"{name}, update {number}")
        difference = (fused.adam.grad - plain.adam.grad).norm() / plain.adam.grad.norm()
        assert difference < 1e-5, f"update {number}"
    for name, parameter in plain.net.named_parameters():
        torch.testing.assert_close(fused.net.get_parameter(name), parameter, rtol=1e-4, atol=2e-6, msg=name)


@SPECS
@pytest.mark.parametrize("explore", [True, False])
def test_actions_equal_those_of_pytorch_and_use_the_same_draws(spec, explore):
    plain, fused = pair(spec)
    for seed in range(3):
        obs = observe(spec, 50, seed=seed)
        (action, extras, _), (own, own_extras, _) = (each.act(obs, None, explore) for each in (plain, fused))
        assert own.dtype == action.dtype and own_extras.keys() == extras.keys()
        torch.testing.assert_close(own, action, rtol=1e-5, atol=1e-5)
        for name, value in extras.items():
            torch.testing.assert_close(own_extras[name], value, rtol=1e-5, atol=1e-5)
    assert fused.noise.state_dict() == plain.noise.state_dict()


def test_halves_of_the_environments_draw_the_numbers_of_all():
    whole, halves = learner(BOX, True), learner(BOX, True)
    obs = observe(BOX, 8)
    for _ in range(2):
        expected = whole.act(obs, None, True)[0]
        parts = []
        for rows in (slice(0, 3), slice(3, 8)):
            with halves.noise.row_slice(rows, 8):
                parts.append(halves.act(obs[rows], None, True)[0])
        torch.testing.assert_close(torch.cat(parts), expected)


@pytest.mark.parametrize("spec", [BOX, DISCRETE], ids=["box", "discrete"])
def test_an_epoch_equals_its_mini_batches(spec):
    """Ten mini-batches of 7 rows and one of 2. Adam and clipping are those of PyTorch in the single updates."""
    one, many = pair(spec, max_grad_norm=0.3, lr=1e-3)
    data = rollout(one, spec, 9, 8)
    assert many.updates_epochs(7)
    for _ in range(3):
        noise = one.noise("shuffle", 72)
        figures = [one.update(part) for part in minibatches(data, 7, noise)]
        means = many.update_epoch(data, many.noise("shuffle", 72).permutation(), 7)
        assert len(figures) == 11 and means.keys() == figures[0].keys()
        for name, mean in means.items():
            expected = torch.stack([each[name] for each in figures]).mean()
            torch.testing.assert_close(mean, expected, rtol=1e-4, atol=2e-6, msg=name)
    torch.testing.assert_close(many.adam.flat, one.adam.flat, rtol=1e-4, atol=2e-6)
    for name, tensor in one.adam.adam.state.items():
        torch.testing.assert_close(many.adam.adam.state[name], tensor, rtol=1e-3, atol=1e-7, msg=name)


def test_small_moments_become_zero():
    ours = learner(BOX, True)
    data = rollout(ours, BOX, 1, 8)
    ours.adam.adam.state["exp_avg"].fill_(1e-36)
    gap = ours.net.head.bias.numel()  # the gap behind the bias has no gradient
    ours.update_epoch(data, torch.arange(8), 8)
    at = (ours.net.head.bias.data_ptr() - ours.adam.flat.data_ptr()) // 4
    assert ours.adam.adam.state["exp_avg"][at + gap] == 0 != ours.adam.adam.state["exp_avg"][at]


def test_compiled_functions_match_their_cache_in_the_next_process():
    """numba's key of a cached function contains its closure, and a function in it has another key in each process."""
    for kernel in kernels():
        assert [type(cell.cell_contents) for cell in kernel.py_func.__closure__] == [int], kernel


def test_updates_repeat_their_bits():
    first, second = learner(BOX, True), learner(BOX, True)
    data = rollout(first, BOX, 8, 8)
    for each in (first, second):
        for _ in range(5):
            each.update_epoch(data, torch.arange(64).flip(0), 16)
    assert torch.equal(first.adam.flat, second.adam.flat)


@pytest.mark.parametrize("name", ["obs", "advantages", "returns", "log_prob"])
def test_values_that_are_not_finite_are_not_hidden(name):
    ours = learner(BOX, True)
    data = rollout(ours, BOX, 1, 8)
    data[name][0, 3] = torch.nan
    part = {key: leaf[0] for key, leaf in data.items()}
    single = learner(BOX, True).update(part)
    means = ours.update_epoch(data, torch.arange(8), 4)
    for figures in (single, means):
        assert not torch.isfinite(torch.stack(list(figures.values()))).all()


@pytest.mark.parametrize(
    ("options", "precision"),
    [
        ({"shared_trunk": True}, "fp32"),
        ({"shared_trunk": True, "gru": 8}, "fp32"),
        ({"activation": "relu"}, "fp32"),
        ({}, "bf16"),
    ],
    ids=str,
)
def test_unsupported_settings_use_pytorch(options, precision):
    config = PPOConfig(**{"hidden": (16,), "shared_trunk": False, "fused": True, **options})
    assert PPO(BOX, config, RankContext.single(precision=precision)).fused is None


def test_large_mini_batches_and_temperatures_use_pytorch():
    plain, fused = learner(DISCRETE, False, hidden=(16,)), learner(DISCRETE, True, hidden=(16,))
    data = batch(learner(DISCRETE, False, hidden=(16,)), DISCRETE, 1100)  # of a third learner: it uses random numbers
    assert all(torch.equal(a, b) for a, b in zip(plain.update(data).values(), fused.update(data).values(), strict=True))
    assert not fused.updates_epochs(1100)
    obs = observe(DISCRETE, 20)
    assert torch.equal(plain.act(obs, None, True, 0.5)[0], fused.act(obs, None, True, 0.5)[0])


def test_a_run_counts_the_same_updates_and_learns_alike(tmp_path):
    lines = []
    for name, arguments in (("fused", []), ("plain", ["ppo.fused=false"])):
        runs.train("fused", tmp_path / name, "env_steps=256", "log_interval=64", *arguments)
        lines.append(runs.metrics(tmp_path / name))
    for own, plain in zip(*lines, strict=True):
        assert own.keys() == plain.keys()
        assert own["grad_steps"] == plain["grad_steps"]
        for name in ("losses/policy", "losses/value", "losses/grad_norm", "charts/episodic_return"):
            assert own[name] == pytest.approx(plain[name], rel=1e-3, abs=1e-5), name
