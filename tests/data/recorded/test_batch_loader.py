"""BatchLoader: every row once an epoch, over ranks, threads and a resume."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from powerband.data.recorded.batch_loader import BatchLoader


def drawn(feed: BatchLoader, batches: int) -> list[int]:
    return [row for _ in range(batches) for row in feed.next().tolist()]


def plain(rows: int, batch: int, **words) -> BatchLoader:
    return BatchLoader(rows, batch, lambda index: index.clone(), **words)


@settings(max_examples=40, deadline=None)
@given(rows=st.integers(1, 50), batch=st.integers(1, 13), world=st.integers(1, 3), seed=st.integers(0, 5))
def test_every_row_once_an_epoch_over_all_ranks(rows, batch, world, seed):
    feeds = [plain(rows, batch, seed=seed, rank=rank, world_size=world) for rank in range(world)]
    stream: list[int] = []
    while len(stream) < 3 * rows:
        for feed in feeds:
            stream += drawn(feed, 1)
    epochs = [stream[first : first + rows] for first in range(0, 3 * rows, rows)]
    assert all(sorted(epoch) == list(range(rows)) for epoch in epochs)
    assert rows < 8 or epochs[0] != epochs[1]
    assert feeds[0].epoch == pytest.approx(len(stream) / rows)


def test_the_joint_batches_of_two_ranks_are_those_of_one():
    one = plain(37, 10, seed=3)
    two = [plain(37, 5, seed=3, rank=rank, world_size=2) for rank in range(2)]
    for _ in range(12):
        assert drawn(one, 1) == [row for feed in two for row in drawn(feed, 1)]


@pytest.mark.parametrize("threads", [0, 3])
def test_a_resume_in_mid_epoch_repeats_and_skips_none(threads):
    whole = drawn(plain(29, 4, seed=1), 20)
    first = plain(29, 4, seed=1, threads=threads)
    begun = drawn(first, 9)
    second = plain(29, 4, seed=99, threads=threads)
    second.load_state_dict(first.state_dict())
    assert begun + drawn(second, 11) == whole
    first.close()
    second.close()


def test_a_thread_that_fails_says_so_and_other_data_are_refused():
    def broken(index: torch.Tensor) -> torch.Tensor:
        raise OSError("a disk is gone")

    feed = BatchLoader(10, 2, broken, threads=1)
    with pytest.raises(OSError, match="a disk is gone"):
        feed.next()
    feed.close()
    with pytest.raises(ValueError, match="12 rows, these data have 10"):
        plain(10, 2).load_state_dict({"drawn": 3, "rows": 12, "seed": 0})
    with pytest.raises(ValueError, match="at least one row"):
        plain(0, 2)
