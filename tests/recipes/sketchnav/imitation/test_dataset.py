"""Demonstrations: past images and future actions of each row never cross the ends of an episode."""

import pytest
import torch

from powerband.core.errors import ConfigError
from powerband.recipes.sketchnav.imitation.dataset import Demonstrations, DemonstrationSequences

LENGTHS = {7: 4, 2: 1, 5: 3}
FRAMES, HORIZON = 3, 4


def fields() -> dict[str, torch.Tensor]:
    rows = sum(LENGTHS.values())
    return {
        "depth": torch.arange(rows, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 2, 2, 2).clone(),
        "gps": torch.randn(rows, 2),
        "action": torch.arange(rows, dtype=torch.uint8),
        "episode": torch.cat([torch.full((steps,), number) for number, steps in LENGTHS.items()]),
    }


def test_every_row_against_a_plain_reference() -> None:
    own = fields()
    demonstrations = Demonstrations(own, ("depth",), FRAMES, HORIZON)
    assert demonstrations.rows == 8
    batch = demonstrations(torch.arange(8))
    bounds = [(0, 4), (4, 5), (5, 8)]
    for row in range(8):
        first, end = next(bound for bound in bounds if bound[0] <= row < bound[1])
        past = [max(first, row - back) for back in (2, 1, 0)]
        future = [min(end - 1, row + step) for step in range(HORIZON)]
        assert batch["obs"]["depth"][row, :, 0, 0].tolist() == [step for step in past for _ in range(2)]
        assert batch["action"][row].tolist() == future
        assert torch.equal(batch["obs"]["gps"][row], own["gps"][row])
        assert int(batch["obs"]["episode"][row]) == int(own["episode"][row])
        assert batch["valid"][row].tolist() == [own["action"][end - 1] == 0 or row + k < end for k in range(HORIZON)]
    assert set(batch["obs"]) == {"depth", "gps", "episode"} and batch["action"].dtype == torch.int64


def test_a_chunk_is_valid_up_to_the_first_action_that_a_random_move_replaced() -> None:
    own = fields()
    own["action"] = torch.tensor([1, 2, 3, 0, 0, 1, 1, 1], dtype=torch.uint8)
    own["replaced"] = torch.tensor([0, 1, 0, 0, 0, 0, 1, 0], dtype=torch.uint8)
    batch = Demonstrations(own, ("depth",), FRAMES, HORIZON)(torch.arange(8))
    assert batch["valid"].int().tolist() == [
        [1, 1, 0, 0],  # the action of the replaced step itself is the follower's
        [1, 0, 0, 0],
        [1, 1, 1, 1],  # STOP is repeated after the end
        [1, 1, 1, 1],
        [1, 1, 1, 1],
        [1, 1, 0, 0],
        [1, 0, 0, 0],
        [1, 0, 0, 0],  # the last episode does not end with STOP: it reached the limit of steps
    ]
    assert "replaced" not in batch["obs"]


def test_each_step_is_a_label_of_one_sequence_after_its_past() -> None:
    lengths = {3: 11, 0: 4, 8: 5, 1: 1, 6: 8}
    rows = sum(lengths.values())
    own = {
        "gps": torch.arange(rows).float().unsqueeze(1),
        "action": torch.zeros(rows, dtype=torch.uint8),
        "episode": torch.cat([torch.full((steps,), number) for number, steps in lengths.items()]),
    }
    sequences = DemonstrationSequences(Demonstrations(own, (), 1, HORIZON), 4, gru=7)
    assert sequences.rows == 5 + 1 + 2 + 1 + 3, "blocks of two steps, joined in pairs"
    batch = sequences(torch.arange(sequences.rows))
    assert batch["valid"].shape == (4, sequences.rows, HORIZON) and batch["carry"].shape == (sequences.rows, 7)
    row, valid = batch["obs"]["gps"][..., 0].long(), batch["valid"][..., 0]
    assert sorted(row[valid].tolist()) == list(range(rows))
    first = torch.cat([torch.tensor([0]), torch.tensor(list(lengths.values())).cumsum(0)[:-1]])
    for sequence in range(sequences.rows):
        steps, labels = row[:, sequence].tolist(), valid[:, sequence].tolist()
        start = int(first[first <= steps[0]].max())
        assert len(set(own["episode"][steps].tolist())) == 1, "no sequence crosses the end of an episode"
        assert batch["starts"][:, sequence].tolist() == [number == start and not k for k, number in enumerate(steps)]
        assert all(steps[0] == start or k >= 2 for k, label in enumerate(labels) if label), (
            "half a sequence comes first"
        )
        assert all(b - a == 1 for a, b in zip(steps, steps[1:], strict=False) if b != a)


def test_rows_that_are_not_contiguous_are_refused() -> None:
    own = fields()
    own["episode"][1] = 5
    with pytest.raises(ConfigError, match="not contiguous"):
        Demonstrations(own, ("depth",), FRAMES, HORIZON)
