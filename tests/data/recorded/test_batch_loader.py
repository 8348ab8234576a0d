"""BatchLoader: every row once per epoch, with several ranks, with threads and after a resume."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from powerband.data.recorded.batch_loader import BatchLoader
from powerband.loops.config import OfflineConfig
from powerband.loops.offline import _BatchSizes


def drawn(loader: BatchLoader, batches: int) -> list[int]:
    return [row for _ in range(batches) for row in loader.next().tolist()]


def index_loader(rows: int, batch: int, **options) -> BatchLoader:
    """Creates a loader whose batches are the indices of their rows."""
    return BatchLoader(rows, batch, lambda index: index.clone(), **options)


@settings(max_examples=40, deadline=None)
@given(rows=st.integers(1, 50), batch=st.integers(1, 13), world=st.integers(1, 3), seed=st.integers(0, 5))
def test_every_row_once_per_epoch_over_all_ranks(rows, batch, world, seed):
    loaders = [index_loader(rows, batch, seed=seed, rank=rank, world_size=world) for rank in range(world)]
    stream: list[int] = []
    while len(stream) < 3 * rows:
        for loader in loaders:
            stream += drawn(loader, 1)
    epochs = [stream[first : first + rows] for first in range(0, 3 * rows, rows)]
    assert all(sorted(epoch) == list(range(rows)) for epoch in epochs)
    assert rows < 8 or epochs[0] != epochs[1]
    assert loaders[0].epoch == pytest.approx(len(stream) / rows)


def test_the_joint_batches_of_two_ranks_equal_those_of_one():
    one = index_loader(37, 10, seed=3)
    two = [index_loader(37, 5, seed=3, rank=rank, world_size=2) for rank in range(2)]
    for _ in range(12):
        assert drawn(one, 1) == [row for loader in two for row in drawn(loader, 1)]


@pytest.mark.parametrize("threads", [0, 3])
def test_a_resume_within_an_epoch_repeats_and_skips_no_row(threads):
    expected = drawn(index_loader(29, 4, seed=1), 20)
    first = index_loader(29, 4, seed=1, threads=threads)
    before = drawn(first, 9)
    second = index_loader(29, 4, seed=99, threads=threads)
    second.load_state_dict(first.state_dict())
    assert before + drawn(second, 11) == expected
    first.close()
    second.close()


def test_errors_in_threads_are_raised_and_other_data_are_refused():
    def broken(index: torch.Tensor) -> torch.Tensor:
        raise OSError("disk not found")

    loader = BatchLoader(10, 2, broken, threads=1)
    with pytest.raises(OSError, match="disk not found"):
        loader.next()
    loader.close()
    with pytest.raises(ValueError, match="12 recorded rows, but the data has 10"):
        index_loader(10, 2).load_state_dict({"drawn": 3, "rows": 12, "seed": 0})
    with pytest.raises(ValueError, match="at least one row"):
        index_loader(0, 2)


def test_another_batch_size_is_refused_with_the_setting_of_the_loop():
    """Batches of 4 rows are two accumulated parts of 2 rows: the size per rank has precedence over the global one."""
    loader = index_loader(24, 8)
    loader.batch_size_setting = _BatchSizes(OfflineConfig(batch_size_per_rank=4), 1, parts=2).batch_size_setting
    with pytest.raises(ValueError, match="Write offline.batch_size_per_rank=2[.]"):
        loader.load_state_dict(index_loader(24, 4).state_dict())
    saved = [index_loader(24, 6, rank=rank, world_size=2).state_dict() for rank in range(2)]
    with pytest.raises(ValueError, match="Write offline.batch_size_per_rank=6[.]"):
        loader.load_position(saved)
    many = index_loader(24, 8, world_size=5)
    with pytest.raises(ValueError, match="a number of ranks that divides 12"):
        many.load_position(saved)


def test_another_batch_size_is_refused():
    state = index_loader(10, 2).state_dict()
    with pytest.raises(ValueError, match="batches of 2 rows on each rank, but this run has 5.*global_batch_size=2"):
        index_loader(10, 5).load_state_dict(state)
