"""Two gloo ranks on half a batch each are one rank on the joint batch."""

from __future__ import annotations

import pytest
import torch

from distributed.ranks import on_ranks
from powerband.algos.coma import COMA, COMAConfig
from powerband.algos.ddpg import DDPG, DDPGConfig
from powerband.algos.ppo import PPO, PPOConfig
from powerband.algos.sac import SAC, SACConfig
from powerband.core.distributed import Ranks
from powerband.core.noise import NoiseSource
from powerband.core.precision import Precision
from powerband.data.types import EnvSpec, TensorSpec
from powerband.envs.uav.env import spec_of as uav_spec
from powerband.envs.uav.world import World

BATCH, UPDATES = 64, 5


def spec_of(name: str) -> EnvSpec:
    if name == "coma":
        return uav_spec(World())
    if name == "sac":
        low, high = torch.tensor([-2.0, -1.0]), torch.tensor([2.0, 1.0])
        return EnvSpec(TensorSpec((7,)), TensorSpec((2,)), low=low, high=high)
    return EnvSpec(TensorSpec((3, 7)), TensorSpec((3,), torch.int64), num_actions=4, num_agents=3)


def joint_batch(name: str, index: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(index)
    if name == "coma":
        inputs = torch.rand(BATCH, 12, 11, 11, generator=generator)
        action = torch.randint(6, (BATCH,), generator=generator)
        mask = (torch.rand(BATCH, 6, generator=generator) < 0.7).scatter(1, action.unsqueeze(1), True)
        return {"inputs": inputs, "action": action, "mask": mask, "returns": torch.randn(BATCH, generator=generator)}
    agents = () if name == "sac" else (3,)

    def normal(*tail: int) -> torch.Tensor:
        return torch.randn(BATCH, *agents, *tail, generator=generator)

    batch = {"obs": normal(7), "next_obs": normal(7), "reward": normal()}
    batch["terminated"] = torch.rand(BATCH, generator=generator) < 0.1
    if name == "sac":
        return batch | {"action": normal(2).clamp(-1, 1)}
    if name == "ddpg":
        return batch | {"action_probs": normal(4).softmax(-1)}
    action = torch.randint(4, (BATCH, 3), generator=generator)
    return batch | {
        "action": action,
        "log_prob": -normal().abs(),
        "value": normal(),
        "advantages": normal(),
        "returns": normal(),
    }


def train(ranks: Ranks, name: str) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    kinds = {
        "coma": (COMA, COMAConfig(width=16, actor_lr=1e-3, critic_lr=1e-3)),
        "sac": (SAC, SACConfig(hidden=(32, 32))),
        "ddpg": (DDPG, DDPGConfig(hidden=32)),
        "ppo": (PPO, PPOConfig(hidden=(32,))),
    }
    kind, config = kinds[name]
    learner = kind(
        spec_of(name),
        config,
        "cpu",
        Precision("fp32", "cpu"),
        NoiseSource(0, "cpu", ranks.rank),
        ranks.average_,
        ranks.world_size,
    )
    part = BATCH // ranks.world_size
    rows = slice(ranks.rank * part, (ranks.rank + 1) * part)
    for index in range(UPDATES):
        learner.update({key: value[rows] for key, value in joint_batch(name, index).items()})
    parameters = dict(learner.policy_state())
    assert ranks.same_everywhere(list(parameters.values()))
    return {key: value.clone() for key, value in parameters.items()}


@pytest.mark.parametrize("name", ["sac", "ddpg", "ppo", "coma"])
def test_two_ranks_equal_one_rank_on_the_joint_batch(name, tmp_path):
    alone = train(Ranks(), name)
    first, second = on_ranks(train, 2, tmp_path, name)
    for key, value in alone.items():
        assert torch.equal(first[key], second[key]), f"{key} differs between the ranks"
        torch.testing.assert_close(first[key], value, rtol=1e-4, atol=1e-5)


def noises(ranks: Ranks) -> dict[str, torch.Tensor]:
    return {"noise": NoiseSource(0, "cpu", ranks.rank)("exploration", 8).uniform(4)}


def test_no_two_ranks_draw_the_same_noise_and_world_size_changes_nothing(tmp_path):
    first, second = on_ranks(noises, 2, tmp_path)
    assert not torch.isin(first["noise"], second["noise"]).any()
    whole = NoiseSource(0)("exploration", 16).uniform(4)
    assert torch.equal(torch.cat([first["noise"], second["noise"]]), whole)


def collectives(ranks: Ranks) -> dict[str, torch.Tensor]:
    values = ranks.gather({"rank": ranks.rank, "text": "x" * (1 + 5 * ranks.rank)})
    same = ranks.same_everywhere([torch.ones(3)])
    different = ranks.same_everywhere([torch.full((3,), float(ranks.rank))])
    texts = [len(value["text"]) for value in values]
    mean = ranks.average_(torch.tensor([float(ranks.rank)]))
    return {"texts": torch.tensor(texts), "same": torch.tensor([same, different]), "mean": mean}


def test_collectives(tmp_path):
    for result in on_ranks(collectives, 2, tmp_path):
        assert result["texts"].tolist() == [1, 6]
        assert result["same"].tolist() == [True, False]
        assert result["mean"].item() == 0.5
