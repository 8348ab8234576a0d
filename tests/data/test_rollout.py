"""Rollout: returns compared with slow references, and mini-batches that cover every sample once."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from powerband.core.noise import NoiseSource
from powerband.data.rollout import Rollout, episode_starts, gae, lambda_returns


def test_gae_by_hand():
    # gamma = lambda = 0.5; three steps; step 1 is terminated in column 0, truncated in column 1, and continues in 2.
    reward = torch.tensor([[1.0] * 3, [2.0] * 3, [3.0] * 3])
    value = torch.tensor([[0.5] * 3, [1.0] * 3, [1.5] * 3])
    next_value = torch.tensor([[1.0] * 3, [4.0, 4.0, 1.5], [2.0] * 3])
    terminated = torch.tensor([[False] * 3, [True, False, False], [False] * 3])
    truncated = torch.tensor([[False] * 3, [False, True, False], [False] * 3])
    advantages, returns = gae(reward, value, next_value, terminated, truncated, 0.5, 0.5)
    last = 3 + 0.5 * 2 - 1.5  # 2.5
    middle = [2 - 1, 2 + 0.5 * 4 - 1, 2 + 0.5 * 1.5 - 1 + 0.25 * last]  # 1, 3, 2.375
    first = [1 + 0.5 * 1 - 0.5 + 0.25 * m for m in middle]
    torch.testing.assert_close(advantages, torch.tensor([first, middle, [last] * 3]))
    torch.testing.assert_close(returns, advantages + value)


def draw_case(steps, envs, agents, seed):
    draw = torch.Generator().manual_seed(seed)
    shape = (steps, envs) if agents == 0 else (steps, envs, agents)
    reward, value, next_value = (torch.randn(shape, generator=draw, dtype=torch.float64) for _ in range(3))
    ends = torch.rand(steps, envs, generator=draw)
    return reward, value, next_value, ends < 0.2, (ends > 0.8)


CASES = {
    "steps": st.integers(1, 9),
    "envs": st.integers(1, 4),
    "agents": st.integers(0, 3),
    "seed": st.integers(0, 10_000),
    "decay": st.sampled_from([0.0, 0.5, 0.95, 1.0]),
}


@settings(max_examples=40, deadline=None)
@given(**CASES)
def test_gae_equals_the_sum_of_its_definition(steps, envs, agents, seed, decay):
    reward, value, next_value, terminated, truncated = draw_case(steps, envs, agents, seed)
    advantages, _ = gae(reward, value, next_value, terminated, truncated, 0.9, decay)
    for n in range(envs):
        for t in range(steps):
            total, weight = 0.0, 1.0
            for k in range(t, steps):
                bootstrap = 0.0 if terminated[k, n] else 0.9 * next_value[k, n]
                total = total + weight * (reward[k, n] + bootstrap - value[k, n])
                if terminated[k, n] or truncated[k, n]:
                    break
                weight *= 0.9 * decay
            torch.testing.assert_close(advantages[t, n], torch.as_tensor(total))


@settings(max_examples=40, deadline=None)
@given(**CASES)
def test_lambda_returns_equal_the_mixture_of_n_step_returns(steps, envs, agents, seed, decay):
    reward, _, next_value, terminated, truncated = draw_case(steps, envs, agents, seed)
    returns = lambda_returns(reward, next_value, terminated, truncated, 0.9, decay)
    for n in range(envs):
        for t in range(steps):
            mixture, weight, collected, discount = 0.0, 1.0, 0.0, 1.0
            for k in range(t, steps):
                collected = collected + discount * reward[k, n]
                discount *= 0.9
                n_step = collected + (0.0 if terminated[k, n] else discount * next_value[k, n])
                if terminated[k, n] or truncated[k, n] or k == steps - 1:
                    mixture = mixture + weight * n_step
                    break
                mixture = mixture + weight * (1 - decay) * n_step
                weight *= decay
            torch.testing.assert_close(returns[t, n], torch.as_tensor(mixture))


def filled(steps: int = 6, envs: int = 4) -> Rollout:
    rollout = Rollout(steps, envs, "cpu")
    for t in range(steps):
        index = t * envs + torch.arange(envs)
        rollout.store(
            t,
            {
                "obs": {"a": index.float().unsqueeze(1)},
                "index": index,
                "terminated": index % 5 == 0,
                "truncated": index % 7 == 6,
            },
        )
    return rollout


@pytest.mark.parametrize("kind", ["noise", "generator"])
def test_minibatches_cover_every_sample_once(kind):
    source = NoiseSource(0)("shuffle", 24) if kind == "noise" else torch.Generator().manual_seed(0)
    parts = list(filled().minibatches(3, source))
    assert [part["index"].shape for part in parts] == [(8,)] * 3
    order = torch.cat([part["index"] for part in parts])
    assert sorted(order.tolist()) == list(range(24)) and order.tolist() != list(range(24))
    for part in parts:
        assert torch.equal(part["obs"]["a"][:, 0], part["index"].float())


def test_sequences_are_complete_environments_with_their_carry():
    carry = torch.arange(4.0).unsqueeze(1)
    parts = list(filled().minibatches(2, torch.Generator().manual_seed(0), sequences=True, carry=carry))
    environments = []
    for part in parts:
        assert part["index"].shape == (6, 2)
        columns = part["index"][0]
        environments += columns.tolist()
        assert torch.equal(part["index"], torch.arange(6).unsqueeze(1) * 4 + columns)
        assert torch.equal(part["carry"][:, 0], columns.float())
        assert torch.equal(part["starts"], episode_starts(part["terminated"] | part["truncated"]))
        assert not part["starts"][0].any()
    assert sorted(environments) == [0, 1, 2, 3]


def test_numbers_of_minibatches_that_do_not_divide_are_refused():
    with pytest.raises(ValueError, match="24 samples of the rollout cannot be split into 5 equal"):
        list(filled().minibatches(5, torch.Generator()))
    with pytest.raises(ValueError, match="4 environments .* cannot be split into 3 equal"):
        list(filled().minibatches(3, torch.Generator(), sequences=True))


def test_the_step_after_an_end_starts_an_episode():
    ended = torch.tensor([[True, False], [False, True], [False, True]])
    assert episode_starts(ended).tolist() == [[False, False], [True, False], [False, True]]
