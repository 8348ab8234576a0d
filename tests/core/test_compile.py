"""Graphed updates without a GPU are a plain loop; the pieces of the shadow check."""

import math

import pytest
import torch

from powerband.core.compile import GraphedUpdates, compiled, distance, tensors_in


def test_on_the_cpu_it_is_a_loop():
    counter = torch.zeros(())

    def update():
        counter.add_(1)
        return {"losses/x": counter.clone()}

    updates = GraphedUpdates(update, "cpu", k=4)
    assert [(float(loss["losses/x"]), made) for loss, made in updates.run(3)] == [(1, 1), (2, 1), (3, 1)]
    assert list(updates.run(0)) == [] and len(list(updates.run(9))) == 9 and updates.graph is None


def test_capture_needs_to_know_the_state():
    with pytest.raises(ValueError, match="state="):
        GraphedUpdates(dict, "cuda", k=2)


def test_distance():
    a, b = [torch.zeros(3), torch.tensor(1)], [torch.tensor([3.0, 4.0, 0.0]), torch.tensor(1)]
    assert distance(a, b) == 5.0
    assert distance(a, [torch.zeros(3), torch.tensor(2)]) == math.inf
    assert distance([torch.tensor([math.nan])], [torch.zeros(1)]) == math.inf


def test_tensors_in_nested_state():
    x, y = torch.zeros(1), torch.ones(2)
    found = tensors_in({"a": {"b": x, "n": 3}, "c": [y, None, "text"]})
    assert found[0] is x and found[1] is y and len(found) == 2


def test_disabled_compile_is_the_function_itself():
    assert compiled(distance, False) is distance
