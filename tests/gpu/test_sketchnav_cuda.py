"""Sketchnav on a GPU: the same trajectories and images as on the CPU, up to the rounding of the devices.

A policy on the GPU also plays in environments on the CPU: on the drawing page, and while demonstrations are recorded.
"""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import runs
from powerband.cli import main as cli
from powerband.cli.catalogue import configure
from powerband.core.rank_context import RankContext
from powerband.data.recorded.recording import read_recording
from powerband.recipes.sketchnav.drawing.walker import Walker
from powerband.recipes.sketchnav.env.env import SketchNavEnv
from powerband.recipes.sketchnav.learners import build_learner
from powerband.recipes.sketchnav.plans.episodes.episodes import COORDINATE_UNIT_M, EpisodeConfig
from powerband.recipes.sketchnav.plans.episodes.generation import generate_episodes, generate_numbered_plan
from recipes.sketchnav.drawing.test_page import start_request

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device: torch.cuda.is_available() is False"),
]
MIN_EQUAL_PIXELS = 0.99
"""Share of the bytes of an image that differ by at most 1: at an edge, rounding decides which wall a pixel shows."""


def test_walks_and_images_match_those_on_the_cpu() -> None:
    pytest.importorskip("powerband.envs.numba.numba_cuda", reason="numba-cuda is not installed")
    episodes = generate_episodes(EpisodeConfig(max_size_m=12.0, plans=2, goals=2, starts=2), "train", 0)
    on_cpu = SketchNavEnv(32, episodes, seed=3, threads=1)
    on_gpu = SketchNavEnv(32, episodes, seed=3, device="cuda")
    generator = torch.Generator().manual_seed(0)
    weight = torch.tensor([0.01, 0.5, 0.25, 0.24])
    ended = 0
    for _ in range(100):
        action = torch.multinomial(weight, 32, replacement=True, generator=generator)
        a, b = on_cpu.step(action), on_gpu.step(action.cuda())
        torch.testing.assert_close(b.reward.cpu(), a.reward, atol=1e-4, rtol=1e-4)
        assert torch.equal(b.terminated.cpu(), a.terminated) and torch.equal(b.truncated.cpu(), a.truncated)
        assert torch.equal(b.obs["episode"].cpu(), a.obs["episode"])
        for name in ("gps", "compass"):
            torch.testing.assert_close(b.obs[name].cpu(), a.obs[name], atol=1e-4, rtol=1e-4)
        for name in ("rgb", "depth"):
            difference = (b.obs[name].cpu().int() - a.obs[name].int()).abs()
            assert (difference <= 1).float().mean() >= MIN_EQUAL_PIXELS, name
        ended += int(a.ended.sum())
    assert ended > 0


@pytest.mark.parametrize("options", [["algo=ppo"], ["algo=clone", "chunks.gru=8", "chunks.sequence=4"]])
def test_the_drawing_page_plays_a_policy_on_the_gpu(options: list[str]) -> None:
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    config = configure("sketchnav", ["variant=smoke", *options])[2].config
    plan = generate_numbered_plan(config.scenes, "val_unseen", 0, 0)
    walker = Walker(config, build_learner(config, RankContext.single("cuda"))[0], {"house.png": plan})
    episodes = generate_episodes(replace(config.scenes, plans=1, goals=1, starts=1), "val_unseen", 0)
    places = (each[0, :2] * COORDINATE_UNIT_M for each in (episodes.start, episodes.target))
    state = walker.start(start_request(plan, "policy", *(place.numpy() for place in places)))
    assert len(state["estimate"]) == 2
    for _ in range(5):
        state = walker.step()
    assert state["steps"] > 0


@pytest.mark.parametrize("actions", ["follower", "policy"])
def test_a_policy_on_the_gpu_acts_while_demonstrations_are_recorded(tmp_path: Path, actions: str) -> None:
    policy = runs.train("sketchnav", tmp_path / "policy")
    arguments = [*runs.SMALL["sketchnav"][1:], "threads=1", "tensorboard=false", "gpus=0", "rules.success_m=5"]
    arguments += [f"demo_policy={policy}", f"demo_actions={actions}", f"demos_dir={tmp_path / 'demos'}"]
    assert cli.main(["train", "sketchnav", "demos", *arguments, f"run_dir={tmp_path / 'run'}"]) == 0
    assert len(read_recording(tmp_path / "demos")[0]["action"]) > 0
