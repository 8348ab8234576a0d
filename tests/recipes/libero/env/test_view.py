"""Frames with simplified meshes resemble frames with the original meshes, and the model does not change."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

pytest.importorskip("libero", reason="LIBERO is not installed")


from powerband.core.machine import rendering
from powerband.recipes.libero.env import renderer as renderer_module
from powerband.recipes.libero.env.gymnasium_env import CAMERAS, LiberoEnv
from powerband.recipes.libero.env.renderer import CORNER_FIELDS, LiberoRenderer, mesh_tolerances, simplify_model

PIXELS = 128
MEAN, SHARE = 3.0, 0.1
"""Bounds for each frame: the mean difference of values in 0..255, and the share of pixels that differ by more than 8.
Four tasks with six states each had at most 2.4 and 0.08."""
TASKS = [("libero_spatial", "0"), ("libero_90", "75"), ("libero_object", "3"), ("libero_90", "30")]


@pytest.fixture(scope="module", params=[pytest.param(task, marks=pytest.mark.slow) for task in TASKS], ids=" ".join)
def env(request: pytest.FixtureRequest) -> Iterator[LiberoEnv]:
    rendering.prepare()
    env = LiberoEnv(*request.param, chunk=1, frames=1, pixels=0)
    env.reset(seed=1)
    yield env
    env.close()


def differences(env: LiberoEnv, one: LiberoRenderer, other: LiberoRenderer) -> tuple[float, float]:
    """Returns the largest mean difference and share of pixels that differ, over states and cameras."""
    frame_differences = []
    actions = np.random.default_rng(5).uniform(-1, 1, (3, 7)) * [1, 1, 0, 0.5, 0.5, 0.5, 1]
    actions[:, 2] = -1, -0.7, 0.8
    for action in actions:
        for _ in range(8):
            env.simulator.step(action)
        for camera in CAMERAS.values():
            difference = np.abs(one.render(camera).astype(int) - other.render(camera))
            frame_differences.append((difference.mean(), (difference.max(-1) > 8).mean()))
    return tuple(np.max(frame_differences, 0))


def test_coarse_frames_resemble_plain_frames(env: LiberoEnv) -> None:
    model, data = env.simulator.model, env.simulator.data
    plain, coarse = (LiberoRenderer(model, data, PIXELS, quality) for quality in ("plain", "coarse"))
    mean, share = differences(env, plain, coarse)
    assert 0 < mean < MEAN and share < SHARE
    for one in (plain, coarse):
        one.close()


def test_simplification_keeps_a_quarter_of_the_triangles_and_restores_the_model(env: LiberoEnv) -> None:
    model = env.simulator.model
    names = [name for name in dir(model) if name.startswith("mesh_") and name != "mesh_names"]
    before = {name: np.copy(getattr(model, name)) for name in names}
    meshes = list(mesh_tolerances(model, PIXELS))
    with simplify_model(model, PIXELS):
        assert model.mesh_facenum[meshes].sum() < 0.25 * before["mesh_facenum"][meshes].sum()
        changed = {name for name in names if not np.array_equal(getattr(model, name), before[name], equal_nan=True)}
    assert changed == {"mesh_facenum", *CORNER_FIELDS}, "no vertex moves"
    for name in names:
        np.testing.assert_array_equal(getattr(model, name), before[name], err_msg=name)
    with pytest.raises(KeyError), simplify_model(model, PIXELS):
        raise KeyError
    for name in names:
        np.testing.assert_array_equal(getattr(model, name), before[name], err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("env", TASKS[:1], indirect=True)
def test_the_bounds_detect_damaged_meshes(env: LiberoEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = LiberoRenderer(env.simulator.model, env.simulator.data, PIXELS, "plain")
    original = renderer_module.cached_mesh_corners
    damages = {
        "half of the faces are lost": lambda corners: corners[::2],
        "corners are mixed up": lambda corners: np.roll(corners.reshape(-1), 1).reshape(-1, 3),
        "faces are turned over": lambda corners: corners[:, ::-1],
    }
    for name, damage in damages.items():
        monkeypatch.setattr(
            renderer_module, "cached_mesh_corners", lambda *mesh, damage=damage: damage(original(*mesh))
        )
        damaged = LiberoRenderer(env.simulator.model, env.simulator.data, PIXELS, "coarse")
        mean, share = differences(env, plain, damaged)
        assert mean > MEAN or share > SHARE, name
        damaged.close()
    plain.close()


def test_more_pixels_get_finer_meshes_and_the_arm_coarser_ones(env: LiberoEnv) -> None:
    model = env.simulator.model
    few, many = mesh_tolerances(model, 64), mesh_tolerances(model, 256)
    assert few.keys() == many.keys() and all(few[mesh] == 4 * many[mesh] for mesh in few)
    arm, hand = model.mesh("robot0_link5_vis_2").id, model.mesh("gripper0_hand_vis").id
    assert few[arm] == 3 * few[hand]
