"""EpisodeTracker: comparison with a plain loop, and resumes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from powerband.data.episode_tracker import EpisodeTracker
from powerband.data.types import Step


def random_steps(num_agents: int | None, seed: int = 0) -> list[Step]:
    generator = torch.Generator().manual_seed(seed)
    shape = (5,) if num_agents is None else (5, num_agents)

    def step() -> Step:
        reward = torch.randint(-3, 4, shape, generator=generator).float()
        terminated, truncated = (torch.rand(5, generator=generator) < 0.1 for _ in range(2))
        return Step(
            torch.zeros(5, 1), reward, terminated, truncated, None, {"success": torch.rand(5, generator=generator)}
        )

    return [step() for _ in range(60)]


class Recorder:
    """Records the masked values of each metric."""

    def __init__(self) -> None:
        self.rows: dict[str, list[float]] = {}

    def add_masked(self, name: str, values: Tensor, mask: Tensor) -> None:
        self.rows.setdefault(name, []).extend(values[mask].tolist())


@pytest.mark.parametrize("num_agents", [None, 3])
def test_returns_lengths_and_metrics_equal_those_of_a_plain_loop(num_agents: int | None) -> None:
    tracker, recorder = EpisodeTracker(5, num_agents, "cpu"), Recorder()
    expected: dict[str, list[float]] = {"return": [], "length": [], "success": []}
    current = [[0.0, 0.0] for _ in range(5)]
    for step in random_steps(num_agents):
        tracker.add(step, recorder)
        for row in range(5):
            current[row][0] += float(step.reward[row].mean())
            current[row][1] += 1
            if step.terminated[row] or step.truncated[row]:
                expected["return"].append(current[row][0])
                expected["length"].append(current[row][1])
                expected["success"].append(float(step.episode["success"][row]))
                current[row] = [0.0, 0.0]
    assert recorder.rows["charts/episodic_return"] == pytest.approx(expected["return"], abs=1e-4)
    assert recorder.rows["charts/episodic_length"] == expected["length"]
    assert recorder.rows["charts/success"] == pytest.approx(expected["success"])
    assert tracker.ended.dtype == torch.int64 and int(tracker.ended) == len(expected["length"]) > 20


def test_a_resume_continues_the_state_and_discarded_rows_restart() -> None:
    steps = random_steps(None)
    uninterrupted, saved, resumed = (EpisodeTracker(5, None, "cpu") for _ in range(3))
    for step in steps[:30]:
        uninterrupted.add(step)
        saved.add(step)
    resumed.load_state_dict(saved.state_dict())
    saved.add(steps[0])  # the loaded state is a copy, so this changes nothing
    for step in steps[30:]:
        expected, found = uninterrupted.add(step), resumed.add(step)
        for name, values in expected.items():
            assert torch.equal(values, found[name])
    rows = torch.tensor([True, False, True, False, False])
    before = uninterrupted.returns.clone()
    uninterrupted.discard(rows)
    assert torch.equal(uninterrupted.returns, before * ~rows) and not uninterrupted.lengths[rows].any()


def test_an_episode_whose_simulator_failed_is_no_metric():
    rows: dict[str, list[float]] = {}

    def add_masked(name, values, mask):
        rows.setdefault(name, []).extend(values[mask].tolist())

    tracker, ends = EpisodeTracker(2, None, "cpu"), torch.ones(2, dtype=torch.bool)
    step = Step(torch.zeros(2, 1), torch.tensor([1.0, 5.0]), ~ends, ends, None, lost=torch.tensor([False, True]))
    tracker.add(step, SimpleNamespace(add_masked=add_masked))
    assert rows["charts/episodic_return"] == [1.0] and int(tracker.ended) == 1
    assert tracker.returns.tolist() == [0.0, 0.0]
