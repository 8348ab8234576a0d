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

    def __init__(self) -> None:
        self.ranks = SimpleNamespace(world_size=1)
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
