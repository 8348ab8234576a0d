"""Evaluation loop: equal numbers of episodes per environment, progress reports, intervals."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from powerband.core.errors import ConfigError
from powerband.core.telemetry.console import count_progress_bar
from powerband.data.types import EnvSpec, Step, TensorSpec
from powerband.loops import evaluate as evaluation
from powerband.loops.evaluate import evaluate, mean_interval, wilson_interval

LENGTHS = torch.tensor([2, 3, 7])


class FixedLengths:
    """Episodes of row n last `LENGTHS[n]` steps of reward n + 1; the figure `carried` reports the carry."""

    num_envs = 3

    def __init__(self, limit: int | None = 10) -> None:
        self.spec = EnvSpec(TensorSpec((1,)), TensorSpec((), torch.int64), num_actions=2, max_episode_steps=limit)

    def reset(self, seed: int) -> torch.Tensor:
        self.steps = torch.zeros(3, dtype=torch.int64)
        return self.steps.float().unsqueeze(1)

    def step(self, action: torch.Tensor) -> Step:
        self.steps += 1
        ended = self.steps == LENGTHS
        self.steps[ended] = 0
        figures = {"carried": action.float()}
        obs = self.steps.float().unsqueeze(1)
        return Step(obs, torch.tensor([1.0, 2.0, 3.0]), ended, torch.zeros(3, dtype=torch.bool), None, figures)


def count(obs: torch.Tensor, carry: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Counts the steps of the episode with the carry."""
    return carry[:, 0].long() + 1, carry + 1


def test_environments_play_equally_many_episodes_and_carries_are_reset():
    found = evaluate(FixedLengths(), count, 5, 0, torch.zeros(3, 1))
    assert found["env"].bincount().tolist() == [2, 2, 2]  # 5 rounded up
    assert torch.equal(found["length"], LENGTHS[found["env"]].float())
    assert torch.equal(found["carried"], found["length"])
    assert torch.equal(found["return"], found["length"] * (found["env"] + 1))


@pytest.mark.parametrize("limit", [10, None])
def test_progress_is_reported_at_each_step(limit):
    reported: list[float] = []
    evaluate(FixedLengths(limit), count, 6, 0, torch.zeros(3, 1), reported.append)
    assert len(reported) == 14 and reported == sorted(reported) and reported[-1] == 6
    assert reported[0] == pytest.approx(0.3 if limit else 0)
    assert reported[1] == pytest.approx(1.4 if limit else 1)


def test_progress_is_printed_as_lines_and_not_without_a_name(capsys, monkeypatch):
    monkeypatch.setattr("powerband.core.telemetry.console.PLAIN_S", 0.0)
    for what in ("reach", ""):
        with count_progress_bar(what, 6, "episodes") as report:
            report(2.7)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("reach: 2 of 6, ") and lines[0].endswith("0:00 left")


def test_intervals_match_the_literature():
    assert wilson_interval(81, 263) == pytest.approx((0.2553, 0.3662), abs=1e-4)  # Newcombe 1998, table I, method 3
    assert wilson_interval(0, 0) == (0.0, 1.0)
    assert wilson_interval(0, 20)[0] == 0.0 and wilson_interval(20, 20)[1] == 1.0
    mean, low, high = mean_interval(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    assert (mean, high - mean) == (2.5, pytest.approx(1.96 * (5 / 3) ** 0.5 / 2)) and low == 5 - high


class Failing(FixedLengths):
    """The simulator of row 1 fails at its first `failures` episodes, after one step."""

    def __init__(self, failures: int) -> None:
        super().__init__()
        self.failures = failures

    def step(self, action: torch.Tensor) -> Step:
        step = super().step(action)
        if self.failures and self.steps[1] == 1:
            self.failures -= 1
            self.steps[1] = 0
            row = torch.tensor([False, True, False])
            return replace(step, truncated=row, lost=row)
        return step


def test_an_episode_whose_simulator_fails_is_no_result():
    found = evaluate(Failing(4), count, 6, 0, torch.zeros(3, 1))
    assert found["env"].bincount().tolist() == [2, 2, 2]
    assert torch.equal(found["length"], LENGTHS[found["env"]].float())
    assert torch.equal(found["carried"], found["length"])
    with pytest.raises(
        ConfigError,
        match="Environment 1 cannot be evaluated: its simulator failed in 10 episodes.*powerband.envs.workers.sup",
    ):
        evaluate(Failing(100), count, 6, 0, torch.zeros(3, 1))


def test_an_episode_without_an_end_is_refused(monkeypatch):
    monkeypatch.setattr(evaluation, "MAX_STEPS", 6)
    evaluate(FixedLengths(10), count, 3, 0, torch.zeros(3, 1))
    with pytest.raises(ConfigError, match="did not end within 6 steps.*Register the environment with max_episode_st"):
        evaluate(FixedLengths(None), count, 3, 0, torch.zeros(3, 1))


def test_failures_in_a_row_are_counted_anew_after_a_complete_episode():
    class Alternating(Failing):
        def step(self, action: torch.Tensor) -> Step:
            step = super().step(action)
            if step.lost is None and bool(step.terminated[1]):
                self.failures = 4
            return step

    found = evaluate(Alternating(4), count, 12, 0, torch.zeros(3, 1))
    assert found["env"].bincount().tolist() == [4, 4, 4]
