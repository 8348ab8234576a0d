"""Snakes on a GPU: the same games as on the CPU, on torch's stream, inside a CUDA graph."""

import pytest
import torch

from powerband.recipes.snakes.env.env import SnakesEnv

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device: torch.cuda.is_available() is False"),
]


def pair(**options):
    """The same environment on CPU and on CUDA."""
    return SnakesEnv(300, threads=1, **options), SnakesEnv(300, device="cuda", **options)


@pytest.mark.parametrize(  # each of them compiles for a minute or a half, so not all combinations
    ("reward", "observation"),
    [("game", "features"), ("mixed", "features"), ("game", "baseline26"), ("shaped", "baseline26")],
)
def test_same_games_as_on_the_cpu(reward, observation):
    pytest.importorskip("powerband.envs.numba.numba_cuda", reason="numba-cuda is not installed")
    on_cpu, on_gpu = pair(seed=2**63 + 5, observation=observation, reward=reward)
    generator = torch.Generator().manual_seed(0)
    ended = 0
    for _ in range(230):
        action = torch.randint(0, on_cpu.spec.num_actions, (600, 3), generator=generator)
        a, b = on_cpu.step(action), on_gpu.step(action.cuda())
        torch.testing.assert_close(b.reward.cpu(), a.reward, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(b.obs.cpu(), a.obs, atol=1e-5, rtol=1e-5)
        assert torch.equal(b.terminated.cpu(), a.terminated) and torch.equal(b.truncated.cpu(), a.truncated)
        if a.final_obs is not None:
            rows = a.ended
            torch.testing.assert_close(b.final_obs.cpu()[rows], a.final_obs[rows], atol=1e-5, rtol=1e-5)
            for name, figure in a.episode.items():
                assert torch.equal(b.episode[name].cpu()[rows], figure[rows])
            ended += int(rows.sum())
    assert ended >= 600
    state = on_gpu.state_dict()
    for name, value in on_cpu.state_dict().items():
        assert value == state[name] if name == "seed" else torch.equal(state[name].cpu(), value), name


def test_moves_inside_a_graph_change_the_boards():
    pytest.importorskip("powerband.envs.numba.numba_cuda", reason="numba-cuda is not installed")
    eager, graphed = (SnakesEnv(64, device="cuda", seed=1, observation="baseline26") for _ in range(2))
    action = torch.zeros(128, 3, dtype=torch.int64, device="cuda")
    for env in (eager, graphed):
        for _ in range(4):  # kernels compile here
            env.step(action)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(2):
            last = graphed.step(action)
    before = graphed.state.tick.clone()
    assert torch.equal(before, eager.state.tick)  # a capture runs nothing
    for _ in range(3):
        graph.replay()
        for _ in range(2):
            expected = eager.step(action)
        torch.cuda.synchronize()
        assert torch.equal(graphed.state.grid, eager.state.grid)
        assert torch.equal(last.obs, expected.obs)
    assert torch.equal(graphed.state.tick, before + 6)
