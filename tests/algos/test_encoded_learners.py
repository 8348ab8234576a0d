"""Learners with an encoder of images: what it learns from, what follows it, and what an exported policy holds."""

from __future__ import annotations

import copy

import pytest
import torch

from powerband.algos.fast_td3 import FastTD3
from powerband.algos.sac import SAC
from powerband.algos.settings import FastTD3Config, SACConfig, TD3Config
from powerband.algos.td3 import TD3
from powerband.core.rank_context import RankContext
from powerband.data.types import EnvSpec, TensorSpec
from powerband.nets.observations.encoders import ObsEncoder

OBS = {"camera": TensorSpec((10, 10, 3), torch.uint8, high=255.0), "speed": TensorSpec((2,))}
SPEC = EnvSpec(OBS, TensorSpec((2,)), low=-torch.ones(2), high=torch.ones(2))


def observations(rows: int, seed: int) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    camera = torch.randint(0, 256, (rows, 10, 10, 3), dtype=torch.uint8, generator=draw)
    return {"camera": camera, "speed": torch.randn(rows, 2, generator=draw)}


def batch(rows: int = 8) -> dict:
    return {
        "obs": observations(rows, 1),
        "next_obs": observations(rows, 2),
        "action": torch.zeros(rows, 2),
        "reward": torch.arange(rows).float(),
        "terminated": torch.zeros(rows, dtype=torch.bool),
    }


@pytest.fixture(params=["sac", "td3", "fast_td3"])
def learner(request):
    torch.manual_seed(0)
    encoder = ObsEncoder(OBS)
    if request.param == "sac":
        return SAC(SPEC, SACConfig(hidden=(16,), tau=0.5), RankContext.single(), encoder)
    if request.param == "fast_td3":
        settings = FastTD3Config(hidden=(16,), critic_hidden=(16,), tau=0.5, policy_interval=1)
        return FastTD3(SPEC, settings, RankContext.single(), encoder)
    return TD3(SPEC, TD3Config(hidden=(16,), tau=0.5, policy_interval=1), RankContext.single(), encoder)


def test_the_critics_train_the_encoder_and_a_copy_follows_it(learner):
    before = {name: value.clone() for name, value in learner.encoder.state_dict().items()}
    learner.update(batch())
    for name, value in learner.encoder.state_dict().items():
        assert not torch.equal(value, before[name]), name
        torch.testing.assert_close(learner.target_encoder.state_dict()[name], (value + before[name]) / 2)


def test_the_actor_does_not_train_the_encoder(learner):
    learner.critic_adam.lr = 1e-30
    weight = learner.encoder.images["camera"].linear.weight
    before, actor = weight.clone(), copy.deepcopy(learner.actor.state_dict())
    learner.update(batch())
    assert torch.equal(weight, before)
    assert any(not torch.equal(value, actor[name]) for name, value in learner.actor.state_dict().items())


def test_the_policy_and_the_checkpoint_hold_the_encoder(learner):
    learner.update(batch())
    assert "encoder.images.camera.linear.weight" in learner.policy_state()
    saved = copy.deepcopy(learner.state_dict())
    expected = learner.act(observations(4, 3), None, explore=False)[0]
    learner.update(batch())
    assert not torch.equal(learner.act(observations(4, 3), None, explore=False)[0], expected)
    learner.load_state_dict(saved)
    assert torch.equal(learner.act(observations(4, 3), None, explore=False)[0], expected)


def test_targets_use_the_copy_of_the_encoder(learner):
    learner.update(batch())  # creates the streams of random numbers
    before, losses = copy.deepcopy(learner.state_dict()), []
    for shift in (0.0, 0.0, 0.5):
        learner.load_state_dict(copy.deepcopy(before))
        with torch.no_grad():
            for weight in learner.target_encoder.parameters():
                weight.add_(shift)
        losses.append(float(learner.update(batch())["losses/critic"]))
    assert losses[0] == losses[1] != losses[2]
