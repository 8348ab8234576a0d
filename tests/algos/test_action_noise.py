"""Pink action noise: successive exploring actions are correlated, single actions keep their distribution."""

import pytest
import torch

from powerband.algos.ppo import PPO
from powerband.algos.sac import SAC
from powerband.algos.settings import PPOConfig, SACConfig, TD3Config
from powerband.algos.td3 import TD3
from powerband.core.errors import ConfigError
from powerband.core.rank_context import RankContext
from powerband.data.types import EnvSpec, TensorSpec

SPEC = EnvSpec(TensorSpec((3,)), TensorSpec((2,)), low=-torch.ones(2), high=torch.ones(2))
LEARNERS = {
    "ppo": lambda noise: PPO(
        SPEC, PPOConfig(action_noise=noise, shared_trunk=False, fused=True, log_std=-2.0), RankContext.single()
    ),
    "sac": lambda noise: SAC(SPEC, SACConfig(action_noise=noise, hidden=(8,)), RankContext.single()),
    "td3": lambda noise: TD3(SPEC, TD3Config(action_noise=noise, hidden=(8,)), RankContext.single()),
}


def actions(algo: str, noise: str) -> torch.Tensor:
    """Exploring actions (steps, environments) of one observation."""
    torch.manual_seed(0)
    learner = LEARNERS[algo](noise)
    return torch.stack([learner.act(torch.zeros(64, 3), None, True)[0][:, 0] for _ in range(200)])


@pytest.mark.parametrize("algo", LEARNERS)
def test_pink_actions_are_correlated_in_time_and_have_the_same_spread(algo):
    white, pink = actions(algo, "white"), actions(algo, "pink")

    def correlation(series: torch.Tensor) -> float:
        centred = series - series.mean()
        return ((centred[1:] * centred[:-1]).mean() / centred.square().mean()).item()

    assert abs(correlation(white)) < 0.05 and correlation(pink) > 0.5
    assert pink.std().item() == pytest.approx(white.std().item(), rel=0.1)


def test_pink_log_probabilities_are_those_of_single_actions():
    learner = LEARNERS["ppo"]("pink")
    obs = torch.zeros(4, 3)
    _, extras, _ = learner.act(obs, None, True)
    outputs = learner.net(obs)[0]
    normal = torch.distributions.Normal(outputs, learner.net.log_std.exp())
    torch.testing.assert_close(extras["log_prob"], normal.log_prob(extras["raw_action"]).sum(-1))


def test_pink_noise_of_discrete_actions_is_refused():
    spec = EnvSpec(TensorSpec((3,)), TensorSpec((), torch.int64), num_actions=2)
    with pytest.raises(ConfigError, match=r"Write ppo.action_noise=white"):
        PPO(spec, PPOConfig(action_noise="pink"), RankContext.single())
