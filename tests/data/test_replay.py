"""Replay: comparison with a plain list of transitions."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from powerband.core.noise import NoiseSource
from powerband.data.replay import Replay
from powerband.data.types import TensorSpec, tree_map, tree_paths

FIELDS = {
    "obs": {"image": TensorSpec((3, 3), torch.uint8), "vector": TensorSpec((2,))},
    "action": TensorSpec((), torch.int64),
    "reward": TensorSpec((2,)),
    "terminated": TensorSpec((), torch.bool),
    "mask": TensorSpec((2, 3), torch.bool),
    "precise": TensorSpec((1,), torch.float64),
    "half": TensorSpec((3,), torch.bfloat16),
}


def transitions(n: int, seed: int) -> dict:
    draw = torch.Generator().manual_seed(seed)

    def leaf(spec: TensorSpec) -> torch.Tensor:
        if spec.dtype == torch.bool:
            return torch.rand(n, *spec.shape, generator=draw) < 0.5
        if spec.dtype.is_floating_point:
            return torch.randn(n, *spec.shape, generator=draw).to(spec.dtype)
        high = 255 if spec.dtype == torch.uint8 else 2**40
        return torch.randint(high, (n, *spec.shape), generator=draw, dtype=spec.dtype)

    return tree_map(leaf, FIELDS)


@settings(max_examples=40, deadline=None)
@given(capacity=st.integers(1, 23), num_envs=st.integers(1, 9), steps=st.integers(1, 12))
def test_ring_equals_a_list(capacity, num_envs, steps):
    if capacity < num_envs:
        return
    replay, plain = Replay(capacity, num_envs, "cpu", FIELDS), []
    for step in range(steps):
        batch = transitions(num_envs, step)
        replay.add(batch)
        plain += [tree_map(lambda leaf, i=i: leaf[i], batch) for i in range(num_envs)]
    expected = {}
    for index, row in enumerate(plain):
        expected[index % capacity] = row
    assert len(replay) == len(expected) == int(replay.filled)
    stored = replay._fields_of(replay.rows)
    for position, row in expected.items():
        for (path, found), (_, leaf) in zip(tree_paths(stored), tree_paths(row), strict=True):
            assert torch.equal(found[position], leaf), path


@pytest.mark.parametrize("kind", ["noise", "generator"])
def test_samples_are_stored_rows_and_cover_all_of_them(kind):
    replay = Replay(300, 4, "cpu", FIELDS)
    for step in range(2):
        replay.add(transitions(4, step))
    source = NoiseSource(0)("replay", 256) if kind == "noise" else torch.Generator().manual_seed(0)
    batch = replay.sample(256, source)
    stored = replay._fields_of(replay.rows)["precise"][:8, 0]
    assert set(batch["precise"][:, 0].tolist()) == set(stored.tolist())
    for (path, leaf), (_, spec) in zip(tree_paths(batch), tree_paths(FIELDS), strict=True):
        assert leaf.shape == (256, *spec.shape) and leaf.dtype == spec.dtype, path
    row = (stored == batch["precise"][0, 0]).nonzero()[0, 0]
    for (path, found), (_, leaf) in zip(tree_paths(batch), tree_paths(replay._fields_of(replay.rows)), strict=True):
        assert torch.equal(found[0], leaf[row]), path


def test_stored_contains_the_added_transitions_and_no_empty_rows():
    replay = Replay(10, 4, "cpu", FIELDS)
    replay.rows.fill_(float("nan"))
    replay.add(transitions(4, 0))
    for (path, leaf), (_, added) in zip(tree_paths(replay.stored), tree_paths(transitions(4, 0)), strict=True):
        assert torch.equal(leaf, added), path
    for step in (1, 2):
        replay.add(transitions(4, step))
    assert {len(leaf) for _, leaf in tree_paths(replay.stored)} == {10}


def test_state_round_trip_is_exact():
    replay = Replay(10, 4, "cpu", FIELDS)
    for step in range(4):
        replay.add(transitions(4, step))
    saved = copy.deepcopy(replay.state_dict())
    other = Replay(10, 4, "cpu", FIELDS)
    other.load_state_dict(saved)
    for ring in (replay, other):
        ring.add(transitions(4, 9))
    assert torch.equal(other.rows, replay.rows) and other.position == replay.position and len(other) == len(replay)


def test_errors_contain_value_limit_and_fix():
    with pytest.raises(ValueError, match="capacity 3 is below num_envs=4.*on one rank. Raise off_policy.replay_size"):
        Replay(3, 4, "cpu", FIELDS)
    replay = Replay(8, 4, "cpu", FIELDS)
    with pytest.raises(ValueError, match="empty"):
        replay.sample(4, torch.Generator())
    replay.add(transitions(4, 0))
    with pytest.raises(ValueError, match="batch of 9 transitions is larger than the replay of 8"):
        replay.sample(9, torch.Generator())
    with pytest.raises(ValueError, match="Resume with the off_policy.replay_size"):
        Replay(12, 4, "cpu", FIELDS).load_state_dict(replay.state_dict())
