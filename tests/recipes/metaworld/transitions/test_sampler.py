"""TransitionSampler: early stop of an expert, and the order of its rows."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from powerband.data.replay import Replay
from powerband.data.types import Step, TensorSpec
from powerband.recipes.metaworld.config import Config
from powerband.recipes.metaworld.settings import CollectConfig
from powerband.recipes.metaworld.transitions.sampler import TransitionSampler, order_by_env


class RunStub:
    """The parts of a run that the sampler uses."""

    def __init__(self, world_size: int = 1, rank: int = 0) -> None:
        self.ranks = SimpleNamespace(world_size=world_size, rank=rank)
        self.reasons: list[str] = []

    def stop(self, reason: str) -> None:
        self.reasons.append(reason)


def ended(successes: list[float]) -> Step:
    """A step at which the episodes of all rows ended."""
    rows = len(successes)
    return Step(
        obs=torch.zeros(rows, 1),
        reward=torch.zeros(rows),
        terminated=torch.zeros(rows, dtype=torch.bool),
        truncated=torch.ones(rows, dtype=torch.bool),
        final_obs=torch.zeros(rows, 1),
        episode={"success": torch.tensor(successes)},
    )


def empty_replay() -> Replay:
    return Replay(2, 2, "cpu", {"obs": TensorSpec((1,))})


def test_an_expert_stops_after_enough_successes_in_a_row():
    run = RunStub()
    config = Config(stop_after_successes=4, collect=CollectConfig(interval=0))
    sampler = TransitionSampler(run, config, 2)
    for successes in ([1.0, 1.0], [0.0, 1.0], [1.0, 1.0], [1.0, 0.0], [1.0, 1.0]):
        sampler.after_step(ended(successes), empty_replay())
        assert run.reasons == []
    sampler.after_step(ended([1.0, 1.0]), empty_replay())
    assert run.reasons == ["the last 4 episodes all succeeded"]


def test_rows_are_ordered_environment_by_environment():
    """Two environments count up from 0 and from 100; the second one starts a new episode at its last step."""
    obs = torch.tensor([[0.0], [100.0], [1.0], [101.0], [2.0], [500.0]])
    rows = {"obs": obs, "action": obs, "reward": obs[:, 0], "next_obs": obs + 1}
    ordered = order_by_env(rows, 2)
    assert ordered["obs"][:, 0].tolist() == [0, 1, 2, 100, 101, 500]
    assert ordered["start"].tolist() == [True, False, False, True, False, True]


def test_samples_continue_on_another_number_of_ranks():
    """Environment e counts from 100 e. Two ranks with two environments each save; four and one rank continue."""
    config = Config(stop_after_successes=2, collect=CollectConfig(interval=0, samples=12))

    def sampler(world_size: int, rank: int) -> TransitionSampler:
        return TransitionSampler(RunStub(world_size, rank), config, 4 // world_size)

    saved = []
    for rank in range(2):
        old = sampler(2, rank)
        obs = torch.tensor([[100.0 * (2 * rank + env) + step] for step in range(3) for env in range(2)])
        old.chunks.append({"obs": obs, "action": obs, "reward": obs[:, 0], "next_obs": obs + 1})
        old.seen = 12
        old.succeeded.extend([True, True])
        saved.append(old.state_dict())
    for world_size in (1, 4):
        envs = []
        for rank in range(world_size):
            new = sampler(world_size, rank)
            new.redistribute(saved)
            rows = new.rows()
            envs += rows["obs"][:, 0].split(3)
            assert new.seen == 12 and not new.succeeded and rows["start"].sum() == 4 // world_size
        assert [env.tolist() for env in envs] == [[100.0 * env + step for step in range(3)] for env in range(4)]
