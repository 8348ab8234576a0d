"""Rewards for the learner: clipped, or divided by the running deviation of the discounted return."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from powerband.core.ranks.ranks import Ranks
from powerband.data.types import Step
from powerband.loops.support.reward_scale import MAX_SCALED, RewardScale

GAMMA, ENVS = 0.9, 3


def step(reward: torch.Tensor, ended: torch.Tensor) -> Step:
    return Step(torch.zeros(ENVS), reward, ended, torch.zeros_like(ended))


def scale(**settings) -> RewardScale:
    ranks = Ranks(rank=0, world_size=1, device=torch.device("cpu"))
    return RewardScale(ranks, torch.zeros(ENVS), GAMMA, settings.get("normalize", True), settings.get("clip", 0.0))


def play(part: RewardScale, rollouts: int, seed: int = 0, steps: int = 20) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Returns (scaled rewards, discounted returns of a plain loop), one array (steps, N) per rollout."""
    draw = np.random.default_rng(seed)
    running, scaled, returns = np.zeros(ENVS), [], []
    for _ in range(rollouts):
        rows, sums = [], []
        for _ in range(steps):
            reward = draw.normal(2.0, 3.0, ENVS).astype(np.float32)
            ended = draw.random(ENVS) < 0.2
            running = running * GAMMA + reward
            sums.append(running.copy())
            running[ended] = 0.0
            rows.append((reward, part(step(torch.from_numpy(reward), torch.from_numpy(ended))).numpy()))
        part.after_rollout()
        scaled.append(np.array(rows))
        returns.append(np.array(sums))
    return scaled, returns


def test_the_deviation_is_that_of_all_discounted_returns_so_far():
    rows, returns = play(scale(), 3)
    first, _, third = rows
    assert np.allclose(first[:, 1], np.clip(first[:, 0], -MAX_SCALED, MAX_SCALED)), "no statistics in the first rollout"
    deviation = np.concatenate(returns[:2]).std()
    assert np.allclose(third[:, 1], third[:, 0] / deviation, rtol=1e-4)


def test_clipping_comes_first():
    rows, _ = play(scale(normalize=False, clip=1.5), 1)
    assert np.array_equal(rows[0][:, 1], rows[0][:, 0].clip(-1.5, 1.5))


def test_two_ranks_share_the_deviation():
    class Half(Ranks):
        """One of two ranks; the mean over ranks is computed by the test."""

        def average_(self, flat: torch.Tensor) -> torch.Tensor:
            sent.append(flat.clone())
            return flat.copy_(torch.stack([sent[-1], other.pop(0)]).mean(0)) if other else flat

    device, sent, other = torch.device("cpu"), [], []
    for rank in (1, 0, 1, 0):  # in turn; each averages with what the other sent, and deviations follow means
        other, sent = [moments.clone() for moments in sent], []
        part = RewardScale(Half(rank=rank, world_size=2, device=device), torch.zeros(ENVS), GAMMA, True, 0.0)
        _, returns = play(part, 1, seed=rank)
        if rank:
            first = returns[0]
    joint = np.concatenate([first, returns[0]])
    assert float(part.norm.var) == pytest.approx(joint.var(), rel=1e-4)
    assert float(part.norm.count) == joint.size


def test_a_restored_scale_continues_equally():
    one = scale()
    play(one, 2)
    other = scale()
    other.load_state_dict({name: value.clone() for name, value in one.state_dict().items()})
    (ours, _), (theirs, _) = play(one, 2, seed=9), play(other, 2, seed=9)
    assert np.array_equal(ours, theirs)


def test_the_returns_of_new_episodes_start_at_0():
    one = scale()
    play(one, 1)
    kept = one.returns.clone()
    lost = torch.arange(ENVS) == 1
    one.discard(lost)
    assert one.returns[1] == 0 and torch.equal(one.returns[~lost], kept[~lost])
