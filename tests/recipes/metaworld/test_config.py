"""Settings that the stages of metaworld do not support are refused."""

from __future__ import annotations

import pytest

from powerband.cli.catalogue import configure
from powerband.core.errors import ConfigError
from powerband.recipes.metaworld.config import check


def test_statistics_of_observations_are_refused():
    config = configure("metaworld", ["variant=smoke", "sac.normalize_obs=true"])[2].config
    with pytest.raises(ConfigError, match="Write sac.normalize_obs=false"):
        check(config, 1)
