"""Settings that the stages of metaworld do not support are refused."""

from __future__ import annotations

import pytest

from powerband.cli.catalogue import configure
from powerband.core.config import RunConfig
from powerband.core.errors import ConfigError
from powerband.loops.config import OffPolicyConfig
from powerband.recipes.metaworld.config import Config, check
from powerband.recipes.metaworld.stages.online_distill import loop_sizes


def test_statistics_of_observations_are_refused():
    config = configure("metaworld", ["variant=smoke", "sac.normalize_obs=true"])[2].config
    with pytest.raises(ConfigError, match="Write sac.normalize_obs=false"):
        check(config, 1)


def test_online_distill_ignores_the_options_of_sac_returns():
    given = OffPolicyConfig(n_step=3, normalize_reward=True, priority_exponent=0.6, clip_reward=1.0, random_steps=500)
    sizes = loop_sizes(Config(off_policy=given, run=RunConfig(env_steps=60_000)), 1)
    assert (sizes.n_step, sizes.normalize_reward, sizes.priority_exponent, sizes.clip_reward) == (1, False, 0.0, 0.0)
    assert sizes.random_steps == sizes.learning_starts == 8_000
