"""Rewards for other goals: vectorised functions are used, others are refused."""

from __future__ import annotations

import gymnasium
import pytest
import torch

from contract import registered
from powerband.core.errors import ConfigError
from powerband.envs.adapters.goal_reward import EnvGoalReward


def test_rewards_and_ends_are_those_of_the_environment():
    goals = EnvGoalReward(registered.BitFlip())
    achieved = torch.rand(5, 8) < 0.5
    desired = achieved.clone()
    desired[2:, 3] ^= True
    reward, ends = goals(achieved, desired)
    assert reward.tolist() == [0.0, 0.0, -1.0, -1.0, -1.0] and reward.dtype == torch.float32
    assert ends.tolist() == [True, True, False, False, False]


def test_an_answer_for_all_goals_together_is_no_end():
    reward, ends = EnvGoalReward(registered.Reach())(torch.zeros(4, 2), torch.tensor([[0.0, 0.1]] * 4))
    assert reward.tolist() == [0.0] * 4 and ends is None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: gymnasium.make("CartPole-v1"), "without achieved_goal and desired_goal.*hindsight=0"),
        (registered.ReachOne, "compute_reward is not vectorised"),
        (lambda: gymnasium.wrappers.FrameStackObservation(registered.Reach(), 2), "compute_reward"),
        (
            lambda: gymnasium.wrappers.TransformReward(registered.Reach(), lambda reward: 2 * reward),
            "a step had the reward -2, but compute_reward returns -1.*Leave out the wrapper.*hindsight=0",
        ),
    ],
)
def test_environments_without_such_a_function_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        EnvGoalReward(make())
