"""Sketchnav on a GPU: the same walks and the same images as on the CPU, up to the rounding of the devices."""

import pytest
import torch

from powerband.recipes.sketchnav.env.env import SketchNavEnv
from powerband.recipes.sketchnav.plans.episodes.episodes import EpisodeConfig
from powerband.recipes.sketchnav.plans.episodes.generation import generate_episodes

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
