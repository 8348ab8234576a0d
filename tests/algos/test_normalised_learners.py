"""Running normalisation of observations in SAC, TD3 and DQN: an update equals one on normalised observations."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from powerband.algos.dqn import DQN
from powerband.algos.sac import SAC
from powerband.algos.settings import DQNConfig, SACConfig, TD3Config
from powerband.algos.td3 import TD3
from powerband.core.errors import ConfigError
from powerband.core.rank_context import RankContext
from powerband.data.types import EnvSpec, StatisticsLearner, TensorSpec
from powerband.nets.observations.encoders import ObsEncoder

OBS = TensorSpec((4,))
BOUNDED = EnvSpec(OBS, TensorSpec((2,)), low=-torch.ones(2), high=torch.ones(2))
DISCRETE = EnvSpec(OBS, TensorSpec((), torch.int64), num_actions=3)
KINDS: dict[str, tuple[Any, Any, EnvSpec, dict[str, Any]]] = {
    "sac": (SAC, SACConfig, BOUNDED, {"fused": False, "obs_scale": 2.0}),
    "fused": (SAC, SACConfig, BOUNDED, {"fused": True}),
    "td3": (TD3, TD3Config, BOUNDED, {}),
    "dqn": (DQN, DQNConfig, DISCRETE, {"double": True}),
}


def learner(name: str, normalize: bool) -> Any:
    kind, settings, spec, options = KINDS[name]
    torch.manual_seed(0)
    return kind(spec, settings(hidden=(16,), normalize_obs=normalize, **options), RankContext.single())


def observations(seed: int, rows: int = 16) -> torch.Tensor:
    return 50 + 20 * torch.randn(rows, 4, generator=torch.Generator().manual_seed(seed))


def batch(name: str, seed: int = 0) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    action = torch.randint(3, (16,), generator=draw) if name == "dqn" else 2 * torch.rand(16, 2, generator=draw) - 1
    return {
        "obs": observations(seed + 100),
        "next_obs": observations(seed + 200),
        "action": action,
        "reward": torch.randn(16, generator=draw),
        "terminated": torch.rand(16, generator=draw) < 0.3,
    }


@pytest.mark.parametrize("name", KINDS)
def test_actions_and_updates_equal_those_on_normalised_observations(name):
    ours, plain = learner(name, True), learner(name, False)
    assert isinstance(ours, StatisticsLearner)
    collected = [observations(seed) for seed in range(5)]
    for obs in collected:
        ours.update_statistics(obs)
        plain.update_statistics(obs)
    rows = torch.cat(collected)
    mean, deviation = rows.mean(0), rows.std(0, unbiased=False)

    def normalised(obs: torch.Tensor) -> torch.Tensor:
        return ((obs - mean) / deviation).clamp(-10, 10)

    before = {key: value.clone() for key, value in ours.obs_norm.state_dict().items()}
    for seed in range(4):
        data = batch(name, seed)
        figures = ours.update(data)
        expected = plain.update({**data, "obs": normalised(data["obs"]), "next_obs": normalised(data["next_obs"])})
        for key, value in expected.items():
            torch.testing.assert_close(figures[key], value, rtol=1e-3, atol=1e-4, msg=key)
    obs = observations(7)
    torch.testing.assert_close(
        ours.act(obs, None, False)[0], plain.act(normalised(obs), None, False)[0], atol=1e-3, rtol=0
    )
    assert all(torch.equal(value, before[key]) for key, value in ours.obs_norm.state_dict().items()), (
        "batches and actions do not change the statistics"
    )


@pytest.mark.parametrize("name", KINDS)
def test_statistics_are_part_of_the_state_and_of_the_policy(name):
    ours, copy = learner(name, True), learner(name, True)
    ours.update_statistics(observations(1))
    copy.load_state_dict(ours.state_dict())
    for key in ("mean", "var", "count"):
        assert torch.equal(copy.obs_norm.state_dict()[key], ours.obs_norm.state_dict()[key])
        assert torch.equal(ours.policy_state()[f"obs_norm.{key}"], ours.obs_norm.state_dict()[key])
    assert not any(key.startswith("obs_norm") for key in learner(name, False).policy_state())


@pytest.mark.parametrize("name", ["sac", "td3", "dqn"])
def test_images_are_refused(name):
    kind, settings, spec, options = KINDS[name]
    image = TensorSpec((8, 8, 1), torch.uint8, high=255.0)
    spec = EnvSpec(image, spec.action, spec.num_actions, spec.low, spec.high)
    with pytest.raises(ConfigError, match=f"{name}.normalize_obs=true needs observations of vectors"):
        kind(spec, settings(normalize_obs=True), RankContext.single(), ObsEncoder(image))
