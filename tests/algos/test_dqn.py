"""DQN: updates equal those of a reference; epsilon, masks, quantiles, resuming; small image tasks are learned."""

import copy

import pytest
import torch
import torch.nn.functional as F

from powerband.algos.dqn import DQN
from powerband.algos.settings import DQNConfig
from powerband.core.errors import ConfigError
from powerband.core.rank_context import RankContext
from powerband.data.types import EnvSpec, TensorSpec
from powerband.nets.observations.encoders import ObsEncoder

K = 4
ACTION = TensorSpec((), torch.int64)
SPEC = EnvSpec({"vector": TensorSpec((3,)), "action_mask": TensorSpec((K,), torch.bool)}, ACTION, num_actions=K)


def learner(spec=SPEC, precision="fp32", encoder=None, **settings) -> DQN:
    torch.manual_seed(0)
    return DQN(spec, DQNConfig(**{"hidden": (16, 16), **settings}), RankContext.single("cpu", precision), encoder)


def observations(n: int, draw: torch.Generator) -> dict[str, torch.Tensor]:
    mask = torch.rand(n, K, generator=draw) < 0.5
    mask[torch.arange(n), torch.randint(K, (n,), generator=draw)] = True
    return {"vector": torch.randn(n, 3, generator=draw), "action_mask": mask}


def batch(n=8, seed=0) -> dict:
    draw = torch.Generator().manual_seed(seed)
    return {
        "obs": observations(n, draw),
        "next_obs": observations(n, draw),
        "action": torch.randint(K, (n,), generator=draw),
        "reward": 3 * torch.randn(n, generator=draw),
        "terminated": torch.rand(n, generator=draw) < 0.3,
        "steps": torch.randint(1, 4, (n,), generator=draw),
    }


def quantile_loss(quantiles: torch.Tensor, targets: torch.Tensor, delta: float) -> torch.Tensor:
    """Equation 10 of Dabney et al. 2018, row by row, for quantiles and targets (B, Q)."""
    losses = []
    for row, target in zip(quantiles, targets, strict=True):
        for i, quantile in enumerate(row):
            level = (i + 0.5) / len(row)
            for sample in target:
                u = sample - quantile
                huber = 0.5 * u * u if u.abs() <= delta else delta * (u.abs() - 0.5 * delta)
                losses.append(abs(level - float(u < 0)) * huber / delta / len(target))
    return torch.stack(losses).sum() / len(quantiles)


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize(("quantiles", "delta"), [(0, 1.0), (5, 1.0), (5, 0.3)])
def test_updates_equal_the_reference(double, dueling, quantiles, delta):
    ours = learner(
        lr=1e-2,
        target_interval=2,
        tau=1.0,
        double=double,
        dueling=dueling,
        quantiles=quantiles,
        huber_delta=delta,
        max_grad_norm=0.5,
    )
    net, target_net = copy.deepcopy(ours.net), copy.deepcopy(ours.target_net)
    adam = torch.optim.Adam(net.parameters(), 1e-2)
    rows = torch.arange(8)
    for number in range(1, 6):
        data = batch(seed=number)
        figures = ours.update(data)
        with torch.no_grad():
            following = target_net(data["next_obs"]["vector"])
            choosing = net(data["next_obs"]["vector"]) if double else following
            choosing = choosing.mean(2).masked_fill(~data["next_obs"]["action_mask"], -torch.inf)
            discount = 0.99 ** data["steps"] * (1 - data["terminated"].float())
            targets = data["reward"].unsqueeze(1) + discount.unsqueeze(1) * following[rows, choosing.argmax(1)]
        values = net(data["obs"]["vector"])[rows, data["action"]]
        loss = quantile_loss(values, targets, delta) if quantiles else F.smooth_l1_loss(values, targets)
        adam.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        adam.step()
        if number % 2 == 0:
            target_net.load_state_dict(net.state_dict())
        torch.testing.assert_close(figures["losses/critic"], loss.detach())
        torch.testing.assert_close(figures["losses/q"], values.mean().detach())
    for mine, plain in ((ours.net, net), (ours.target_net, target_net)):
        for one, other in zip(mine.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    assert ("net.hidden.1.weight" in ours.net.state_dict()) == (not dueling)


def test_a_dueling_network_without_hidden_layers_has_mean_value_v():
    ours = learner(hidden=(), dueling=True, quantiles=3)
    x = torch.randn(5, 3)
    torch.testing.assert_close(ours.net(x).mean(1), ours.net.value(x))


def test_a_next_state_without_allowed_actions_keeps_the_loss_finite():
    data = batch()
    data["next_obs"]["action_mask"][:] = False
    data["terminated"][:] = True
    assert torch.isfinite(learner().update(data)["losses/critic"])


def test_epsilon_falls_linearly_in_the_steps_of_all_ranks_and_survives_a_resume():
    ours = learner(epsilon_start=0.8, epsilon_end=0.2, epsilon_steps=40)
    obs = observations(4, torch.Generator().manual_seed(0))
    epsilons = []
    for _ in range(12):
        epsilons.append(float(ours.epsilon))
        ours.act(obs, None, explore=True)
        ours.act(obs, None, explore=False)
    assert epsilons == pytest.approx([max(0.2, 0.8 - 0.6 * 4 * step / 40) for step in range(12)])
    ours.world_size = 3
    ours.act(obs, None, explore=True)
    assert int(ours.env_steps) == 12 * 4 + 3 * 4
    half = learner(epsilon_start=0.8, epsilon_end=0.2, epsilon_steps=40)
    for _ in range(5):
        half.act(obs, None, explore=True)
    resumed = learner(epsilon_start=0.8, epsilon_end=0.2, epsilon_steps=40)
    resumed.load_state_dict(copy.deepcopy(half.state_dict()))
    assert torch.equal(resumed.epsilon, half.epsilon) and float(half.epsilon) == pytest.approx(0.5)


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 1.0])
def test_masked_actions_are_never_chosen(epsilon):
    ours = learner(epsilon_start=epsilon, epsilon_end=epsilon)
    draw = torch.Generator().manual_seed(0)
    counts = torch.zeros(K)
    for _ in range(20):
        obs = observations(500, draw)
        for explore in (True, False):
            action, _, _ = ours.act(obs, None, explore)
            assert bool(obs["action_mask"].gather(1, action.unsqueeze(1)).all())
        counts += ours.act(obs, None, True)[0].bincount(minlength=K)
    if epsilon == 1.0:
        assert float(counts.min()) > 0.9 * float(counts.mean())


def test_exploration_is_random_as_often_as_epsilon_says():
    spec = EnvSpec(TensorSpec((3,)), ACTION, num_actions=K)
    ours = learner(spec, epsilon_start=0.4, epsilon_end=0.4)
    obs = torch.randn(20_000, 3)
    changed = ours.act(obs, None, True)[0] != ours.act(obs, None, False)[0]
    assert float(changed.float().mean()) == pytest.approx(0.4 * (1 - 1 / K), abs=0.015)


def test_resuming_between_two_copies_of_the_target_repeats_the_bits():
    one = learner(target_interval=3, tau=1.0)
    one.update(batch(seed=1))
    two = learner(target_interval=3, tau=1.0)
    two.load_state_dict(copy.deepcopy(one.state_dict()))
    for seed in range(2, 7):
        first, second = one.update(batch(seed=seed)), two.update(batch(seed=seed))
        assert all(torch.equal(first[name], second[name]) for name in first)
    obs = observations(64, torch.Generator().manual_seed(0))
    assert torch.equal(one.act(obs, None, True)[0], two.act(obs, None, True)[0])


@pytest.mark.parametrize("double", [False, True])
def test_the_loss_trains_the_encoder_and_a_copy_follows_it(double):
    obs = {"camera": TensorSpec((10, 10, 3), torch.uint8, high=255.0), "speed": TensorSpec((2,))}
    ours = learner(EnvSpec(obs, ACTION, num_actions=K), encoder=ObsEncoder(obs), tau=0.5, double=double)
    draw = torch.Generator().manual_seed(0)

    def rows() -> dict[str, torch.Tensor]:
        camera = torch.randint(0, 256, (8, 10, 10, 3), dtype=torch.uint8, generator=draw)
        return {"camera": camera, "speed": torch.randn(8, 2, generator=draw)}

    before = {name: value.clone() for name, value in ours.encoder.state_dict().items()}
    ours.update({**batch(), "obs": rows(), "next_obs": rows()})
    for name, value in ours.encoder.state_dict().items():
        assert not torch.equal(value, before[name]), name
        torch.testing.assert_close(ours.target_encoder.state_dict()[name], (value + before[name]) / 2)
    assert "encoder.images.camera.linear.weight" in ours.policy_state()
    sample, saved = rows(), copy.deepcopy(ours.state_dict())
    expected = ours.net(ours._features(sample, ours.encoder))
    ours.update({**batch(seed=1), "obs": rows(), "next_obs": rows()})
    ours.load_state_dict(saved)
    assert torch.equal(ours.net(ours._features(sample, ours.encoder)), expected)


@pytest.mark.parametrize("quantiles", [0, 7])
def test_learns_the_quantiles_or_the_mean_of_a_random_reward(quantiles):
    """Episodes of one step with rewards uniform on 0..1 (action 0) or 1..2 (action 1)."""
    spec = EnvSpec(TensorSpec((1,)), ACTION, num_actions=2)
    ours = learner(spec, hidden=(), lr=1e-2, quantiles=quantiles, huber_delta=0.01 if quantiles else 1.0)
    draw, obs = torch.Generator().manual_seed(0), torch.zeros(256, 1)
    for _ in range(600):
        action = torch.randint(2, (256,), generator=draw)
        reward = torch.rand(256, generator=draw) + action
        done = torch.ones(256, dtype=torch.bool)
        ours.update({"obs": obs, "next_obs": obs, "action": action, "reward": reward, "terminated": done})
    expected = (torch.arange(quantiles) + 0.5) / quantiles if quantiles else torch.tensor([0.5])
    found = ours.net(torch.zeros(1, 1))[0].detach()
    torch.testing.assert_close(found, torch.stack([expected, expected + 1]), rtol=0, atol=0.08)


def test_unsupported_actions_and_settings_are_refused():
    continuous = EnvSpec(TensorSpec((3,)), TensorSpec((2,)), low=-torch.ones(2), high=torch.ones(2))
    with pytest.raises(ConfigError, match="continuous. Write algo=sac"):
        learner(continuous)
    team = EnvSpec(TensorSpec((3, 5)), TensorSpec((3,), torch.int64), num_actions=K, num_agents=3)
    with pytest.raises(ConfigError, match=r"shape \(3,\). Write algo=ppo"):
        learner(team)
    for setting in ({"epsilon_end": 2.0}, {"huber_delta": 0.0}, {"quantiles": -1}, {"epsilon_steps": 0}):
        with pytest.raises(ConfigError, match="Write"):
            DQNConfig(**setting)


def test_actions_of_several_heads_are_refused():
    heads = EnvSpec(TensorSpec((3,)), TensorSpec((2,), torch.int64), num_actions=5, action_heads=(2, 3))
    with pytest.raises(ConfigError, match=r"MultiDiscrete with \(2, 3\) choices. Write algo=ppo"):
        learner(heads)
