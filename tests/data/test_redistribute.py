"""Redistribute: every rank gets the transitions of its environments, newest last, with their n-step links."""

from __future__ import annotations

import copy

import pytest
import torch

from powerband.data.hindsight import Hindsight
from powerband.data.priorities import CHILDREN, Priorities
from powerband.data.replay import Replay
from powerband.data.types import TensorSpec

FIELDS = {
    "reward": TensorSpec(()), "terminated": TensorSpec((), torch.bool), "next_obs": TensorSpec((2,))
}  # fmt: skip


def filled(rank: int, world_size: int, envs: int, capacity: int, steps: int, n_step: int) -> Replay:
    """The replay of a rank after `steps` steps; a transition contains its environment and its time."""
    each = envs // world_size
    replay = Replay(capacity // world_size, each, "cpu", FIELDS, n_step=n_step)
    ids = torch.arange(rank * each, (rank + 1) * each).float()
    for time in range(steps):
        obs = torch.stack([ids, torch.full_like(ids, time)], 1)
        ended = (time + ids) % 5 == 4  # episodes of five steps
        replay.add({"reward": ids * 100 + time, "terminated": ended, "next_obs": obs}, ended=ended)
    return replay


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("steps", [4, 31])
@pytest.mark.parametrize(("saved", "now"), [(2, 1), (1, 2), (2, 3), (3, 2)])
def test_a_rank_gets_the_newest_transitions_of_its_environments_in_order(saved, now, steps, n_step):
    envs, capacity = 6, 60
    states = [filled(rank, saved, envs, capacity, steps, n_step).state_dict() for rank in range(saved)]
    for rank in range(now):
        replay = Replay(capacity // now, envs // now, "cpu", FIELDS, n_step=n_step)
        replay.load_share(states, rank, now)
        kept = min(steps, capacity // envs)
        assert len(replay) == int(replay.filled) == kept * envs // now
        env, time = replay.newest(len(replay))["next_obs"].unbind(1)
        expected_time = torch.arange(steps - kept, steps).repeat_interleave(envs // now)
        expected_env = torch.arange(rank * envs // now, (rank + 1) * envs // now).repeat(kept)
        assert torch.equal(time, expected_time.float()) and torch.equal(env, expected_env.float())
        if n_step > 1:
            links_stay_within_episodes(replay)
        before = replay.stored["reward"].clone()
        replay.add(
            {
                "reward": torch.full((envs // now,), -1.0),
                "terminated": torch.zeros(envs // now, dtype=torch.bool),
                "next_obs": torch.zeros(envs // now, 2),
            },
            ended=torch.zeros(envs // now, dtype=torch.bool),
        )
        if kept == capacity // envs:  # the oldest transitions are overwritten first
            assert torch.equal(replay.stored["reward"][envs // now :], before[envs // now :])


@pytest.mark.parametrize("kind", ["n_step", "priorities", "hindsight"])
def test_a_replay_keeps_no_tensor_of_the_state_that_it_loads(kind):
    """The tensors of a checkpoint are mapped from its file, which may be deleted (`Replay.copies_state`)."""
    fields = {**FIELDS, "next_obs": {"achieved_goal": TensorSpec((2,))}, "obs": {"desired_goal": TensorSpec((2,))}}

    def new() -> Replay:
        parts = {
            "n_step": {"n_step": 3},
            "priorities": {"priorities": Priorities(12, "cpu", 0.6, 0.4, lambda _: None)},
            "hindsight": {"hindsight": Hindsight(12, 2, "cpu", 4, lambda achieved, desired: (achieved.sum(-1), None))},
        }
        return Replay(12, 2, "cpu", fields, **parts[kind])

    replay = new()
    for time in range(9):
        goals = torch.full((2, 2), float(time))
        ended = torch.tensor([time % 3 == 2, False])
        rows = {"reward": goals[:, 0], "terminated": ended, "next_obs": {"achieved_goal": goals}}
        replay.add({**rows, "obs": {"desired_goal": goals}}, ended=ended)
    expected = copy.deepcopy(replay.state_dict())
    for load in (lambda new, state: new.load_state_dict(state), lambda new, state: new.load_share([state], 0, 1)):
        state, restored = copy.deepcopy(expected), new()
        load(restored, state)
        before = copy.deepcopy(restored.state_dict())
        for value in state.values():
            if isinstance(value, torch.Tensor):
                value.fill_(True)
        after = restored.state_dict()
        assert before.keys() == after.keys()
        for name, value in before.items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(after[name])), name


def links_stay_within_episodes(replay: Replay) -> None:
    """Each link leads to the next step of the same environment, except at the end of an episode and at the newest."""
    obs, following = replay.stored["next_obs"], replay.windows.following[: len(replay)]
    ended, target = replay.stored["terminated"], obs[following]
    last = obs[:, 1] == obs[:, 1].max()
    stays = following == torch.arange(len(replay))
    assert torch.equal(stays, ended | last)
    assert torch.equal(target[~stays] - obs[~stays], torch.tensor([0.0, 1.0]).expand((~stays).sum(), 2))


def test_priorities_and_episodes_move_with_their_transitions():
    class Reward:
        def __call__(self, achieved, desired):
            return -(achieved - desired).abs().sum(1), None

    def replay(world_size: int) -> Replay:
        return Replay(
            60 // world_size,
            6 // world_size,
            "cpu",
            FIELDS,
            priorities=Priorities(60 // world_size, "cpu", 0.6, 0.4, lambda largest: largest),
            hindsight=Hindsight(60 // world_size, 6 // world_size, "cpu", 4, Reward()),
        )

    states = []
    for rank in range(2):
        saved, ids = replay(2), torch.arange(rank * 3, rank * 3 + 3).float()
        for time in range(31):
            obs = torch.stack([ids, torch.full_like(ids, time)], 1)
            ended = (time + ids) % 5 == 4
            saved.add({"reward": ids * 100 + time, "terminated": ended, "next_obs": obs}, ended=ended)
        saved.drawn = torch.arange(len(saved))
        saved.set_errors(saved.stored["reward"])
        states.append(saved.state_dict())
    for rank in range(3):
        moved = replay(3)
        moved.load_share(states, rank, 3)
        obs, episodes = moved.stored["next_obs"], moved.hindsight.episodes
        priority = moved.priorities.levels[0][: len(moved)]
        assert torch.allclose(priority ** (1 / 0.6), moved.stored["reward"], rtol=1e-3, atol=2e-3)
        assert torch.allclose(moved.priorities.levels[-1].sum(), priority.sum())
        assert torch.equal(episodes.env[: len(moved)], (obs[:, 0] - rank * 2).long())
        assert torch.equal(episodes.time[: len(moved)], obs[:, 1].long())
        later = episodes.later(torch.arange(len(moved)), torch.full((len(moved),), 0.999))
        end = torch.minimum(obs[:, 1] + (4 - obs[:, 1] - obs[:, 0]) % 5, torch.tensor(30.0))
        assert torch.equal(obs[later][:, 1], end) and torch.equal(obs[later][:, 0], obs[:, 0])
        assert episodes.next_time.tolist() == [31, 31]


@pytest.mark.parametrize("capacity", [200, 8192])
def test_sums_of_a_tree_of_several_levels_are_rebuilt(capacity):
    def new(rows, envs):
        return Replay(rows, envs, "cpu", FIELDS, priorities=Priorities(rows, "cpu", 0.6, 0.4, lambda largest: largest))

    saved, no = new(capacity, 2), torch.zeros(2, dtype=torch.bool)
    for time in range(80):
        saved.add({"reward": torch.zeros(2), "terminated": no, "next_obs": torch.full((2, 2), float(time))}, ended=no)
    saved.priorities.update(torch.arange(160), torch.arange(160).float())
    for rank in range(2):
        moved = new(capacity // 2, 1)
        moved.load_share([saved.state_dict()], rank, 2)
        levels = moved.priorities.levels
        assert len(levels) > 1
        for lower, upper in zip(levels, levels[1:], strict=False):
            sums = lower.view(-1, CHILDREN).sum(1)
            torch.testing.assert_close(upper[: len(sums)], sums)


def test_new_transitions_get_the_largest_priority_of_all_saved_ranks():
    def new(rows, envs):
        return Replay(rows, envs, "cpu", FIELDS, priorities=Priorities(rows, "cpu", 1.0, 0.4, lambda largest: largest))

    states, no = [], torch.zeros(2, dtype=torch.bool)
    for error in (3.0, 7.0):
        saved = new(20, 2)
        saved.add({"reward": torch.zeros(2), "terminated": no, "next_obs": torch.zeros(2, 2)}, ended=no)
        saved.priorities.update(torch.tensor([0]), torch.tensor([error]))
        states.append(saved.state_dict())
    moved = new(40, 4)
    moved.load_share(states, 0, 1)
    assert float(moved.priorities.largest) == pytest.approx(7.0)


def test_goals_of_new_episodes_relabel_no_transition_from_before_a_redistribution():
    def new():
        return Replay(40, 2, "cpu", FIELDS, hindsight=Hindsight(40, 2, "cpu", 4, lambda a, d: (a.sum(-1), None)))

    saved, moved, no = new(), new(), torch.zeros(2, dtype=torch.bool)
    row = {"reward": torch.zeros(2), "terminated": no, "next_obs": torch.zeros(2, 2)}
    for _ in range(5):
        saved.add(row, ended=no)
    moved.load_share([saved.state_dict()], 0, 1)
    for _ in range(5):
        moved.add(row, ended=no)
    later = moved.hindsight.episodes.later(torch.arange(10), torch.full((10,), 0.999))
    assert bool((later < 10).all())
