"""Out of memory: bisection of sizes, recognition of errors, and free memory per rank."""

from __future__ import annotations

import pytest
import torch

from powerband.core.machine.out_of_memory import fits_in_memory, free_bytes, largest_that_fits, out_of_memory_message

CPU = torch.device("cpu")


@pytest.mark.parametrize("step", [1, 3, 8])
@pytest.mark.parametrize("low", [1, 5])
def test_bisection_agrees_with_a_search_through_all_sizes(low, step):
    for high in range(low, 70):
        for edge in range(0, high + 3):
            tried: list[int] = []

            def fits(size: int, edge: int = edge, tried: list[int] = tried) -> bool:
                tried.append(size)
                return size <= edge

            sizes = [size for size in range(low, high + 1) if size % step == 0]
            assert largest_that_fits(fits, low, high, step) == max((s for s in sizes if s <= edge), default=0)
            assert set(tried) <= set(sizes) and len(tried) == len(set(tried)) <= 2 + len(sizes).bit_length()


def test_a_size_below_one_is_refused():
    with pytest.raises(ValueError, match="low=0"):
        largest_that_fits(lambda size: True, 0, 4)


def test_out_of_memory_errors_are_distinguished_from_other_errors():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60, dtype=torch.uint8)
    assert out_of_memory_message(caught.value).startswith(
        "DefaultCPUAllocator: can't allocate memory: you tried to allocate"
    )
    assert out_of_memory_message(
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a lot. And more.")
    )
    assert out_of_memory_message(MemoryError()) == "MemoryError"
    assert out_of_memory_message(RuntimeError("mat1 and mat2 shapes cannot be multiplied")) == ""
    assert out_of_memory_message(ValueError("out of memory")) == ""


def test_only_out_of_memory_errors_mean_that_a_call_does_not_fit():
    assert fits_in_memory(lambda: torch.zeros(3), CPU)
    assert not fits_in_memory(lambda: torch.empty(2**60, dtype=torch.uint8), CPU)
    with pytest.raises(RuntimeError, match="shapes"):
        fits_in_memory(lambda: torch.ones(2, 3) @ torch.ones(2, 3), CPU)


def test_free_memory_is_shared_by_the_ranks_of_a_machine(monkeypatch):
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    alone = free_bytes(CPU)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert alone > 2**28 and free_bytes(CPU) == pytest.approx(alone / 4, rel=0.2)
