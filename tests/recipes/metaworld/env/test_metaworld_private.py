"""Private interfaces of the metaworld package: the version that they were written for, and that they still work."""

from __future__ import annotations

from importlib.metadata import version
from operator import attrgetter

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


def test_a_shared_model_is_the_packages_own_and_a_copy() -> None:
    from metaworld.env_dict import ALL_V3_ENVIRONMENTS

    own_class = ALL_V3_ENVIRONMENTS["door-open-v3"]
    own, first, second = own_class(width=900), *(MetaWorldEnv("door-open", render_size=900).env for _ in range(2))
    assert isinstance(first, own_class) and first.model is not second.model
    for name in ("body_pos", "geom_size", "mesh_vert", "opt.timestep", "vis.global_.offwidth"):
        for model in (first.model, second.model):
            np.testing.assert_array_equal(attrgetter(name)(model), attrgetter(name)(own.model), err_msg=name)
    first.model.body_pos[1] += 1.0
    np.testing.assert_array_equal(second.model.body_pos, own.model.body_pos)


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
