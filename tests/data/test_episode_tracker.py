"""EpisodeTracker against a plain reference."""

from __future__ import annotations

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
    def __init__(self) -> None:
        self.rows: dict[str, list[float]] = {}

    def add_masked(self, name: str, values: Tensor, mask: Tensor) -> None:
        self.rows.setdefault(name, []).extend(values[mask].tolist())


@pytest.mark.parametrize("num_agents", [None, 3])
def test_returns_lengths_and_figures_are_those_of_a_plain_loop(num_agents: int | None) -> None:
    tracker, recorder = EpisodeTracker(5, num_agents, "cpu"), Recorder()
    expected: dict[str, list[float]] = {"return": [], "length": [], "success": []}
    live = [[0.0, 0.0] for _ in range(5)]
    for step in random_steps(num_agents):
        tracker.add(step, recorder)
        for row in range(5):
            live[row][0] += float(step.reward[row].mean())
            live[row][1] += 1
            if step.terminated[row] or step.truncated[row]:
                expected["return"].append(live[row][0])
                expected["length"].append(live[row][1])
                expected["success"].append(float(step.episode["success"][row]))
                live[row] = [0.0, 0.0]
    assert recorder.rows["charts/episodic_return"] == pytest.approx(expected["return"], abs=1e-4)
    assert recorder.rows["charts/episodic_length"] == expected["length"]
    assert recorder.rows["charts/success"] == pytest.approx(expected["success"])
    assert tracker.ended.dtype == torch.int64 and int(tracker.ended) == len(expected["length"]) > 20


def test_state_goes_on_where_it_was_and_cut_rows_start_anew() -> None:
    steps = random_steps(None)
    whole, half, resumed = (EpisodeTracker(5, None, "cpu") for _ in range(3))
    for step in steps[:30]:
        whole.add(step)
        half.add(step)
    resumed.load_state_dict(half.state_dict())
    half.add(steps[0])  # the state is of its own: what goes on elsewhere changes nothing
    for step in steps[30:]:
        whole_figures, resumed_figures = whole.add(step), resumed.add(step)
        for name, values in whole_figures.items():
            assert torch.equal(values, resumed_figures[name])
    rows = torch.tensor([True, False, True, False, False])
    kept = whole.returns.clone()
    whole.discard(rows)
    assert torch.equal(whole.returns, kept * ~rows) and not whole.lengths[rows].any()
