"""Prioritised replay: sums, draws and weights equal those of a plain list of priorities."""

from __future__ import annotations

import pytest
import torch

from powerband.core.errors import ConfigError
from powerband.core.noise import NoiseSource
from powerband.data.priorities import CHILDREN, Priorities
from powerband.data.replay import Replay
from powerband.data.types import TensorSpec

FIELDS = {"obs": TensorSpec((), torch.int64), "reward": TensorSpec(()), "terminated": TensorSpec((), torch.bool)}
FIELDS |= {"next_obs": TensorSpec((), torch.int64)}


def priorities(capacity: int, exponent: float = 1.0, importance: float = 0.5, others: float = 0.0) -> Priorities:
    """`others` is the largest value on the other ranks."""
    return Priorities(capacity, "cpu", exponent, importance, lambda value: value.clamp_(min=others))


def replay(capacity: int = 10, num_envs: int = 2, **options) -> Replay:
    return Replay(capacity, num_envs, "cpu", FIELDS, priorities=priorities(capacity), **options)


def fill(part: Replay, steps: int, first: int = 0) -> None:
    for step in range(first, first + steps):
        obs = torch.arange(part.num_envs) + step * part.num_envs
        no = torch.zeros(part.num_envs, dtype=torch.bool)
        part.add({"obs": obs, "reward": obs.float(), "terminated": no, "next_obs": obs + 1}, ended=no)


@pytest.mark.parametrize("capacity", [1, 50, 64, 5_000, 300_000])
def test_sums_follow_random_updates(capacity):
    tree, plain = priorities(capacity, exponent=0.7), torch.zeros(capacity)
    draw = torch.Generator().manual_seed(0)
    for _ in range(20):
        rows = torch.randint(capacity, (33,), generator=draw)
        errors = 10 * torch.randn(33, generator=draw)
        tree.update(rows, errors)
        plain[rows] = 0.0
        for row, error in zip(rows.tolist(), errors.tolist(), strict=True):
            plain[row] = max(plain[row], (abs(error) + 1e-6) ** 0.7)
        torch.testing.assert_close(tree.levels[0][:capacity], plain)
        torch.testing.assert_close(tree.levels[-1].sum(), plain.sum())
        assert len(tree.levels[-1]) == CHILDREN
    assert float(tree.largest) >= float(plain.max())


def test_draws_follow_the_priorities():
    tree = priorities(300)
    rows = torch.arange(0, 300, 3)
    wanted = torch.zeros(300)
    wanted[rows] = torch.linspace(0.1, 5.0, len(rows))
    tree.update(rows, wanted[rows])
    noise = NoiseSource(0)("replay", 200_000)
    counts = torch.bincount(tree.sample(noise.uniform(len(tree.levels))), minlength=300) / 200_000
    assert (counts - wanted / wanted.sum()).abs().max() < 1.5e-3 and counts[wanted == 0].sum() == 0
    for edge in (0.0, 1 - 2.0**-24):
        assert wanted[tree.sample(torch.full((1, len(tree.levels)), edge))].item() > 0


def test_weights_are_those_of_the_source():
    tree = priorities(100, importance=0.5)
    errors = torch.tensor([1.0, 4.0, 9.0])
    tree.update(torch.tensor([10, 20, 30]), errors)
    rows = torch.tensor([20, 30, 20])
    expected = (3 * errors[[1, 2, 1]] / errors.sum()) ** -0.5
    torch.testing.assert_close(tree.weights(rows, torch.tensor(3)), expected / expected.max())
    elsewhere = priorities(100, importance=0.5, others=10.0)
    elsewhere.update(torch.tensor([10, 20, 30]), errors)
    torch.testing.assert_close(elsewhere.weights(rows, torch.tensor(3)), expected / 10.0)


def test_new_transitions_get_the_largest_priority_and_overwritten_ones_lose_theirs():
    part = replay()
    fill(part, 3)
    part.sample(4, torch.Generator().manual_seed(0))
    assert part.priorities.levels[0][:10].tolist() == [1.0] * 6 + [0.0] * 4
    part.set_errors(torch.tensor([7.0, 0.0, 0.5, 2.0]))
    assert float(part.priorities.largest) == pytest.approx(7.0)
    fill(part, 5, first=3)
    torch.testing.assert_close(part.priorities.levels[0][:10], torch.full((10,), 7.0))
    lost = torch.tensor([True, False])
    row = {"obs": torch.tensor([90, 91]), "reward": torch.zeros(2), "terminated": ~lost & lost}
    part.add({**row, "next_obs": row["obs"]}, lost, ended=lost)
    assert part.position == 7 and float(part.priorities.levels[0].count_nonzero()) == 10


def test_a_prioritised_batch_has_windows():
    part = replay(40, n_step=3, gamma=0.5)
    fill(part, 10)
    part.priorities.update(torch.arange(20), torch.where(torch.arange(20) == 4, 1e6, 0.0))
    batch = part.sample(8, torch.Generator().manual_seed(0))
    assert batch["obs"].tolist() == [4] * 8 and batch["steps"].tolist() == [3] * 8
    assert batch["reward"].tolist() == [4 + 0.5 * 6 + 0.25 * 8] * 8 and batch["next_obs"].tolist() == [9] * 8
    assert batch["weight"].tolist() == [1.0] * 8


def test_a_restored_replay_continues_bit_for_bit():
    ours, copy = replay(1000), replay(1000)

    def play(part: Replay, noise, steps: int, first: int) -> list[torch.Tensor]:
        found = []
        for step in range(first, first + steps):
            fill(part, 1, step)
            batch = part.sample(16, noise)
            part.set_errors(batch["obs"].float().sin())
            found += [batch["obs"], batch["weight"]]
        return found

    noise = NoiseSource(0)("replay", 16)
    play(ours, noise, 100, 0)
    copy.load_state_dict({key: value.clone() if isinstance(value, torch.Tensor) else value
                          for key, value in ours.state_dict().items()})  # fmt: skip
    other = NoiseSource(0)("replay", 16)
    other.load_state_dict(noise.state_dict())
    pairs = zip(play(ours, noise, 450, 100), play(copy, other, 450, 100), strict=True)
    assert all(torch.equal(one, two) for one, two in pairs)


def test_a_uniform_replay_is_refused_at_a_resume():
    uniform = Replay(10, 2, "cpu", FIELDS)
    fill(uniform, 2)
    with pytest.raises(ConfigError, match="filled with priority_exponent=0"):
        replay().load_state_dict(uniform.state_dict())
