"""Missions on a GPU, on torch's current stream, against the same missions on the CPU."""

import pytest
import torch

from powerband.algos.team_settings import COMAConfig
from powerband.core.rank_context import RankContext
from powerband.recipes.uav.env.env import UavEnv, make_env_spec
from powerband.recipes.uav.env.planners import GreedyPlanner
from powerband.recipes.uav.images import film_mission
from powerband.recipes.uav.learner import make_learner
from powerband.recipes.uav.settings import World

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device: torch.cuda.is_available() is False"),
]


@pytest.mark.parametrize("world", [World(), World(n_agents=8, map_cells=121, failure_rate=0.2, truth="field")])
def test_missions_match_those_on_the_cpu(world):
    pytest.importorskip("powerband.envs.numba.numba_cuda", reason="numba-cuda is not installed")
    on_cpu, on_gpu = UavEnv(5, world, seed=3, threads=1), UavEnv(5, world, seed=3, device="cuda")
    generator = torch.Generator().manual_seed(0)
    for _ in range(world.num_steps + 3):
        probability = torch.rand(5, world.n_agents, 6, generator=generator)
        noise = torch.rand(5, world.n_agents, generator=generator)
        action, mask = on_cpu.masked_sample(probability, noise)
        gpu_action, gpu_mask = on_gpu.masked_sample(probability.cuda(), noise.cuda())
        assert torch.equal(gpu_action.cpu(), action) and torch.equal(gpu_mask.cpu(), mask)
        a, b = on_cpu.step(action), on_gpu.step(gpu_action)
        torch.testing.assert_close(b.reward.cpu(), a.reward, atol=1e-5, rtol=1e-5)
        for name, value in a.obs.items():
            torch.testing.assert_close(b.obs[name].cpu(), value, atol=1e-5, rtol=1e-5)
        for name, value in a.episode.items():
            torch.testing.assert_close(b.episode[name].cpu(), value, atol=1e-5, rtol=1e-5)
    for name, value in on_cpu.state_dict()["missions"].items():
        assert torch.equal(on_gpu.state_dict()["missions"][name].cpu(), value), name
    assert torch.equal(GreedyPlanner().act(on_gpu).cpu(), GreedyPlanner().act(on_cpu))


def test_a_learner_on_the_gpu_is_filmed():
    pytest.importorskip("powerband.envs.numba.numba_cuda", reason="numba-cuda is not installed")
    world, device = World(map_cells=121, budget=2), torch.device("cuda")
    learner = make_learner("coma", make_env_spec(world), COMAConfig(width=16), RankContext.single(device))
    frames = film_mission(learner, world, 10_000, device)
    assert [frame.shape for frame in frames] == [(450, 1200, 3)] * (world.num_steps + 1)
