"""Private interfaces of the metaworld package: the version that they were written for, and that they still work."""

from __future__ import annotations

from importlib.metadata import version

import numpy as np
import pytest

pytest.importorskip("metaworld", reason="metaworld is not installed: pip install 'powerband[metaworld]'")

from powerband.recipes.metaworld.env import metaworld_private
from powerband.recipes.metaworld.env.gymnasium_env import MetaWorldEnv
from powerband.recipes.metaworld.env.tasks import MT10_TASKS

TESTED_VERSION = "3.1."


def test_the_version_is_the_one_that_the_file_was_written_for() -> None:
    assert version("metaworld").startswith(TESTED_VERSION), (
        f"metaworld {version('metaworld')}: check env/metaworld_private.py, then change TESTED_VERSION."
    )


@pytest.mark.parametrize("task", MT10_TASKS)
def test_a_reset_sets_the_positions_that_rewards_read(task: str) -> None:
    env = MetaWorldEnv(task)
    obs, _ = env.reset(seed=3)
    positions = metaworld_private.start_positions(task, env.env)
    assert set(positions) == {
        "goal",
        "object",
        "tcp",
        "hand",
        *(["extra"] if task in metaworld_private.EXTRA_START else []),
    }
    np.testing.assert_allclose(positions["goal"], obs[36:39])
    assert np.isfinite(np.concatenate([np.ravel(position) for position in positions.values()])).all()


def test_the_first_observation_repeats_the_current_entries() -> None:
    env = MetaWorldEnv("drawer-open")
    obs, _ = env.reset(seed=1)
    np.testing.assert_array_equal(obs[:18], obs[18:36])
    np.testing.assert_array_equal(metaworld_private.refresh_observation(env.env), obs[:18])


def test_the_hand_reset_can_be_replaced() -> None:
    env, calls = MetaWorldEnv("reach"), []
    metaworld_private.replace_hand_reset(env.env, lambda: calls.append(metaworld_private.mark_hand_reset(env.env)))
    env.reset(seed=1)
    assert calls


def test_reward_versions() -> None:
    env = MetaWorldEnv("reach").env
    assert [metaworld_private.supports_reward_version(env, version) for version in ("v1", "v2", "v3")] == [
        True,
        True,
        False,
    ]
