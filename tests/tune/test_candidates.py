"""Which of the settings that look alike to the model are run: those that are unlike each other."""

from __future__ import annotations

import pytest

from powerband.tune.candidates import Candidate, distance, unlike


@pytest.mark.parametrize(
    ("a", "b", "apart"),
    [
        ({}, {}, 0.0),
        ({"batch": 64}, {"batch": 256}, 2.0),
        ({"batch": 64}, {}, 1.0),
        ({"overlap": True}, {"overlap": False}, 1.0),
        ({"precision": "bf16", "batch": 128}, {"precision": "fp32", "batch": 64}, 2.0),
        ({"num_workers": 0}, {"num_workers": 8}, 1.0),
    ],
)
def test_distance(a: dict, b: dict, apart: float) -> None:
    assert distance(a, b) == distance(b, a) == apart


def test_the_best_go_first_and_then_the_farthest_of_those_that_look_as_fast() -> None:
    sizes = {256: 100.0, 512: 99.0, 1024: 98.0, 2048: 95.0, 4096: 93.0, 8192: 80.0}
    ranked = [Candidate({"batch": size}, predicted=rate) for size, rate in sizes.items()]
    assert [each.setting["batch"] for each in unlike(ranked, 2, 4)] == [256, 512, 4096, 1024]
    assert [each.setting["batch"] for each in unlike(ranked[:3], 3, 5)] == [256, 512, 1024]
    assert [each.setting["batch"] for each in unlike(ranked, 3, 8)][3:] == [4096, 2048]  # 8192 is predicted slower
