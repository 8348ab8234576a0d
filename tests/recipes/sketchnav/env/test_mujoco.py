"""The same plans rendered by MuJoCo: depth agrees with the ray caster's, and furniture stands where it should."""

import math
import os

import numpy as np
import pytest
import torch

from powerband.recipes.sketchnav.env.env import SketchNavEnv
from powerband.recipes.sketchnav.mujoco.scene import merge_into_boxes
from powerband.recipes.sketchnav.plans.episodes.episodes import COORDINATE_UNIT_M, EpisodeConfig
from powerband.recipes.sketchnav.plans.episodes.generation import generate_episodes


def test_boxes_cover_each_cell_once_in_its_code() -> None:
    cells = np.random.default_rng(0).integers(0, 3, (20, 30)).astype(np.uint8)
    again = np.full(cells.shape, 99)
    for code, x0, y0, x1, y1 in merge_into_boxes(cells):
        assert (again[y0:y1, x0:x1] == 99).all()
        again[y0:y1, x0:x1] = code
    assert (again == cells).all() and len(merge_into_boxes(np.zeros((9, 9), np.uint8))) == 1


def test_depth_of_both_renderers_agrees() -> None:
    mujoco = pytest.importorskip("mujoco", reason="mujoco is not installed")
    from powerband.recipes.sketchnav.mujoco.scene import MujocoRenderer

    episodes = generate_episodes(EpisodeConfig(max_size_m=10, plans=2, goals=2, starts=2, sketch_px=36), "train", 4)
    env = SketchNavEnv(len(episodes), episodes, pixels=64, sequential=True, threads=1)
    try:
        renderers = [MujocoRenderer(episodes.plan_cells(plan), 64) for plan in range(2)]
    except (mujoco.FatalError, RuntimeError, ImportError, AttributeError) as error:
        pytest.skip(f"MuJoCo cannot render here: {error}")
    generator, off = torch.Generator().manual_seed(0), []
    for _ in range(4):
        for _ in range(5):
            env.step(torch.randint(1, 4, (env.num_envs,), generator=generator))
        _, depth = env.render_metric()
        for row in range(env.num_envs):
            x, y = (env.agents.at[row].double() * COORDINATE_UNIT_M).tolist()
            renderer = renderers[int(episodes.plan[int(env.agents.episode[row])])]
            rgb, mujoco_depth = renderer.render(x, y, math.radians(10 * int(env.agents.heading[row])))
            off.append(np.abs(mujoco_depth - depth[row, 0].numpy()))
            own = mujoco.Renderer(renderer.model, 64, 64)  # has its own context
            own.update_scene(renderer.data, "eye")
            assert (own.render() == rgb).all(), "a shared context must render the same images as one context per plan"
            own.enable_depth_rendering()
            own.update_scene(renderer.data, "eye")
            assert (np.abs(own.render() - mujoco_depth) < 1e-3 * mujoco_depth).all()
            own.close()
    errors = np.stack(off)
    assert np.median(errors) < 0.005
    assert (errors < 0.03).mean() > 0.97, "only pixels at edges may differ by more than 3 cm"


@pytest.mark.slow
def test_workers_move_like_the_ray_casters_environment_and_observe_mujocos_images(tmp_path, monkeypatch) -> None:
    pytest.importorskip("mujoco", reason="mujoco is not installed")
    from powerband.core.machine import rendering
    from powerband.envs.workers.vector import WorkerVecEnv
    from powerband.recipes.sketchnav.mujoco.env import MujocoNavEnv

    for name, value in (found := rendering.prepare(environment=dict(os.environ))).variables.items():
        monkeypatch.setenv(name, value)  # workers inherit it
    if not found.variables and "MUJOCO_GL" not in os.environ:
        pytest.skip("neither EGL nor OSMesa is installed")

    scenes = EpisodeConfig(max_size_m=9, plans=2, goals=1, starts=2, sketch_px=36)
    generate_episodes(scenes, "train", 4).save(tmp_path / "set.safetensors", scenes, "train", 4)
    options = {"file": str(tmp_path / "set.safetensors"), "rules": {"max_steps": 7}, "pixels": 48}
    episode_metrics = ("success", "spl", "soft_spl", "distance_to_goal")
    env = WorkerVecEnv([(MujocoNavEnv, options)] * 2, num_workers=2, seed=1, episode_metrics=episode_metrics)
    try:
        obs = env.reset(1)
        assert obs["rgb"].shape == (2, 3, 48, 48) and obs["depth"].dtype == torch.uint8
        plain = SketchNavEnv(2, generate_episodes(scenes, "train", 4), pixels=48, threads=1)
        ended = 0
        for number in range(16):
            plain.agents.episode.copy_(obs["episode"])
            turned = torch.round(obs["compass"][:, 0] * 36 / (2 * math.pi)).long() % 36
            start = plain.episodes.start[obs["episode"], :2]
            plain.agents.at.copy_(start + torch.round(obs["gps"].double() / COORDINATE_UNIT_M).long())
            plain.agents.heading.copy_(turned)
            near = (obs["depth"].int() - plain.observe()["depth"].int()).abs()
            assert float((near <= 3).float().mean()) > 0.95
            step = env.step(torch.full((2,), 1 + number % 3))
            ended += int(step.truncated.sum())
            if step.ended.any():
                assert bool((step.episode["distance_to_goal"][step.ended] > 0).all())
            obs = step.obs
        assert ended == 4
    finally:
        env.close()
