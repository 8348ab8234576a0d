"""Learners of gym: the entry `state` reaches a central critic or is refused, and images of agents are encoded."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from powerband.cli.catalogue import configure
from powerband.core.errors import ConfigError
from powerband.core.rank_context import RankContext
from powerband.data.types import EnvSpec, Learner, TensorSpec
from powerband.recipes.gym.learners import make_learner

BOX = EnvSpec(
    {"view": TensorSpec((4,)), "state": TensorSpec((3,))}, TensorSpec((2,)), low=-torch.ones(2), high=torch.ones(2)
)
DISCRETE = EnvSpec(BOX.obs, TensorSpec((), torch.int64), num_actions=3)
AGENTS = EnvSpec(
    {"view": TensorSpec((2, 4)), "state": TensorSpec((3,))}, TensorSpec((2,), torch.int64), num_actions=3, num_agents=2
)


def build_learner(spec: EnvSpec, *arguments: str) -> Learner:
    return make_learner(configure("gym", ["hyper=default", *arguments])[2].config, spec, RankContext.single())


@pytest.mark.parametrize(
    ("spec", "arguments"),
    [
        (BOX, ("algo=sac",)),
        (BOX, ("algo=td3",)),
        (BOX, ("algo=fast_td3",)),
        (DISCRETE, ("algo=dqn",)),
        (DISCRETE, ("algo=ppo", "ppo.shared_trunk=true")),
    ],
    ids=lambda each: each[0] if isinstance(each, tuple) else "",
)
def test_a_state_that_no_network_reads_is_refused(spec, arguments):
    with pytest.raises(ConfigError, match="an entry named state.*Rename the entry.*algo=ppo ppo.shared_trunk=false"):
        build_learner(spec, *arguments)
    build_learner(replace(spec, obs={"view": spec.obs["view"], "robot_state": spec.obs["state"]}), *arguments)


@pytest.mark.parametrize("spec", [BOX, DISCRETE, AGENTS], ids=["box", "discrete", "agents"])
def test_the_central_critic_of_ppo_reads_the_state(spec):
    learner = build_learner(spec, "algo=ppo")
    obs = {name: torch.randn(5, *part.shape) for name, part in spec.obs.items()}
    assert (learner.value(obs) != learner.value({**obs, "state": obs["state"] + 1})).all()


def test_the_agent_axis_makes_no_image_of_bytes():
    spec = EnvSpec(TensorSpec((8, 9), torch.uint8), TensorSpec((8,), torch.int64), num_actions=3, num_agents=8)
    assert build_learner(spec, "algo=ppo").encoder is None
    images = replace(spec, obs=TensorSpec((8, 4, 36, 36, 3), torch.uint8))
    assert build_learner(images, "algo=ppo").encoder is not None
