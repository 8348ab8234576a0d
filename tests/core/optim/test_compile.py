"""Graphed updates: a plain loop without a GPU, cycles of updates, and the comparison of replays with eager updates."""

import contextlib
import math

import pytest
import torch

from powerband.core.errors import ConfigError
from powerband.core.optim.compile import GraphedUpdates, all_tensors, compile_if, distance
from powerband.core.schedule import UpdateCycle


def test_updates_on_a_cpu_are_a_loop():
    counter = torch.zeros(())

    def update():
        counter.add_(1)
        return {"losses/x": counter.clone()}

    updates = GraphedUpdates(update, "cpu", k=4)
    assert [(float(loss["losses/x"]), made) for loss, made in updates.run(3)] == [(1, 1), (2, 1), (3, 1)]
    assert list(updates.run(0)) == [] and len(list(updates.run(9))) == 9 and updates.graph is None


def test_a_capture_requires_the_state():
    with pytest.raises(ValueError, match="needs `state`"):
        GraphedUpdates(dict, "cuda", k=2)


class CountedGraph:
    """Fake CUDA graph: a replay repeats the tensor operations of k updates without their Python code."""

    def __init__(self, counter: torch.Tensor, k: int) -> None:
        self.counter, self.k = counter, k

    def replay(self) -> None:
        self.counter.add_(self.k)


def test_a_graph_contains_complete_cycles_of_updates():
    with pytest.raises(ConfigError, match="graph_updates=1 is not a multiple of 2.*Write graph_updates=2"):
        GraphedUpdates(dict, "cpu", k=1, cycle=UpdateCycle(2))
    GraphedUpdates(dict, "cpu", k=6, cycle=UpdateCycle(2, 3))


def test_replays_begin_at_the_start_of_a_cycle_only():
    """The actor is updated at every second update, so a graph of two updates must not start between them."""
    cycle, counter = UpdateCycle(2), torch.zeros(())
    eager: list[int] = []

    def update():
        eager.append(cycle.advance())
        counter.add_(1)
        return {"losses/x": counter.clone()}

    updates = GraphedUpdates(update, "cpu", cycle=cycle)
    updates.k, updates.graph, updates.losses = 2, CountedGraph(counter, 2), {"losses/x": counter}
    assert [made for _, made in updates.run(5)] == [1, 1, 2, 1], "an eager update creates the optimiser's state first"
    assert eager == [1, 2, 1] and cycle.phase == 1
    assert [made for _, made in updates.run(4)] == [1, 2, 1] and eager == [1, 2, 1, 2, 1]
    assert counter == 9 and updates.replays == 2


@pytest.mark.parametrize("difference", [0.0, 1.0])
def test_ranks_drop_their_graphs_together(difference: float) -> None:
    """Two ranks check the same replay; on one of them it may differ from eager updates."""
    verdicts: list[bool] = []

    def rank(wrong: float, others: list[bool]) -> GraphedUpdates:
        state = torch.zeros(())

        def any_rank(differs: bool) -> bool:
            verdicts.append(differs)
            return differs or any(others)

        def update():
            state.add_(1)
            return {"losses/x": state.clone()}

        updates = GraphedUpdates(update, "cpu", state=lambda: [state], any_rank=any_rank)
        updates.k, updates.graph = 2, CountedGraph(state, 2 + wrong)
        return updates

    failing, healthy = rank(difference, []), rank(0.0, verdicts)
    with contextlib.ExitStack() as stack:
        if difference:
            stack.enter_context(pytest.warns(UserWarning, match="without a graph"))
        failing._check()
        healthy._check()
    assert verdicts == [bool(difference), False]
    assert [each.graph is None for each in (failing, healthy)] == [bool(difference)] * 2


def test_a_cycle_continues_after_a_resume():
    cycle = UpdateCycle(2, 3)
    assert cycle.period == 6 and [cycle.advance() for _ in range(8)] == [1, 2, 3, 4, 5, 6, 1, 2]
    resumed = UpdateCycle(2, 3)
    resumed.restore(8)
    assert resumed.phase == cycle.phase == 2


def test_distance():
    a, b = [torch.zeros(3), torch.tensor(1)], [torch.tensor([3.0, 4.0, 0.0]), torch.tensor(1)]
    assert distance(a, b) == 5.0
    assert distance(a, [torch.zeros(3), torch.tensor(2)]) == math.inf
    assert distance([torch.tensor([math.nan])], [torch.zeros(1)]) == math.inf


def test_tensors_in_nested_state():
    x, y = torch.zeros(1), torch.ones(2)
    found = all_tensors({"a": {"b": x, "n": 3}, "c": [y, None, "text"]})
    assert found[0] is x and found[1] is y and len(found) == 2


def test_disabled_compile_returns_the_function_itself():
    assert compile_if(distance, False) is distance
