"""Trajectories: windows compared with a plain loop, and the start of trajectories."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from powerband.recipes.metaworld.transitions.dataset import TransitionDataset
from powerband.recipes.metaworld.transitions.trajectories import Trajectories, trajectory_starts


@settings(max_examples=60, deadline=None)
@given(starts=st.lists(st.booleans(), min_size=1, max_size=30), length=st.integers(2, 7), data=st.data())
def test_windows_end_at_their_row_and_stay_in_its_trajectory(starts, length, data):
    starts[0] = True
    n = len(starts)
    row = torch.arange(n)
    past = Trajectories(row.float().unsqueeze(1), 100.0 + row.unsqueeze(1), 200.0 + row, torch.tensor(starts))
    last = torch.tensor(data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=8)))
    longest = torch.tensor(data.draw(st.lists(st.integers(1, length), min_size=len(last), max_size=len(last))))
    batch = past.windows(last, length, longest)
    for index, end in enumerate(last.tolist()):
        rows = [end]
        while not starts[rows[0]] and len(rows) < min(length, int(longest[index])):
            rows.insert(0, rows[0] - 1)
        states = len(rows)
        assert int(batch["length"][index]) == states
        assert batch["state"][index, :states, 0].tolist() == rows
        assert batch["action"][index, : states - 1, 0].tolist() == [100 + each for each in rows[:-1]]
        assert batch["reward"][index, : states - 1, 0].tolist() == [200 + each for each in rows[:-1]]
    assert batch["state"].shape == (len(last), length, 1) and batch["action"].shape == (len(last), length - 1, 1)


def test_a_row_starts_a_trajectory_if_it_does_not_continue_the_row_before():
    obs = torch.tensor([[0.0], [1.0], [2.0], [7.0], [8.0]])
    next_obs = torch.tensor([[1.0], [2.0], [3.0], [8.0], [9.0]])
    assert trajectory_starts(obs, next_obs).tolist() == [True, False, False, True, False]


@given(pieces=st.integers(1, 40))
def test_at_least_one_of_several_trajectories_is_held_out(pieces):
    recorded = object.__new__(TransitionDataset)
    recorded.fields = dict.fromkeys(("start", "state", "task"), torch.tensor([True, False] * pieces))
    train, held_out = recorded.split()
    assert sorted([*train.tolist(), *held_out.tolist()]) == list(range(2 * pieces))
    assert len(held_out) == 2 * (pieces // 10 if pieces >= 10 else pieces > 1)
