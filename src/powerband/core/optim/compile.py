"""Compiled and captured updates: torch.compile for one function, and k updates with their sampling as one CUDA graph.

A graph replays the captured kernels on the same addresses. Every value that an update changes (parameters, moments,
targets, noise counters) is therefore a tensor changed in place, and returned values are copied before the next replay.
Replays are regularly compared with eager updates. If the two differ, the run continues in eager mode with a warning.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from powerband.core.errors import ConfigError
from powerband.core.schedule import UpdateCycle

Losses = dict[str, Tensor]
MIN_WARMUP_UPDATES = 3
"""Least number of updates on a side stream before a capture; libraries allocate their workspaces in them."""


def compile_if(fn: Callable[..., Any], enabled: bool, mode: str = "default") -> Callable[..., Any]:
    """`fn` compiled with torch.compile if `enabled`, otherwise `fn` itself.

    On CPUs, compiled small networks are slower than eager ones (`benchmarks/updates/updates.py --compile`). Measure
    first.
    """
    return torch.compile(fn, mode=mode, fullgraph=True, dynamic=False) if enabled else fn


class GraphedUpdates:
    """Runs updates (optimiser steps) one by one, or on CUDA k at a time by replaying a CUDA graph.

    Attributes:
        graph: The captured graph of k updates. None on CPUs, before the first capture, and after a replay differed
            from eager updates.
        replays: Number of replays so far.
    """

    def __init__(
        self,
        update: Callable[[], Losses],
        device: torch.device | str,
        state: Callable[[], Sequence[Tensor]] | None = None,
        k: int = 0,
        cycle: UpdateCycle | None = None,
        check_interval: int = 2000,
        tolerance: float = 1e-2,
        any_rank: Callable[[bool], bool] = bool,
    ):
        """
        Args:
            update: Function without arguments that samples a batch, runs one update and returns its losses (name ->
                0-d tensor). It must use fixed shapes and no host-device synchronisation.
            device: Device of the updates.
            state: Function that returns all tensors that `update` changes, such as those in the state dicts of the
                learner and the noise. Rows of the replay buffer may be omitted. Required for a capture.
            k: Updates per graph; 0 disables captures.
            cycle: Repeating sequence of updates, such as an actor update after every second critic update. A graph
                contains complete cycles. None means that all updates are alike.
            check_interval: Replays between two comparisons with eager updates. A check costs as much as k eager updates
                and one replay.
            tolerance: Largest accepted distance between the states after replay and eager updates, relative to the
                distance that the eager updates moved the state.
            any_rank: Function that returns True on all ranks if its argument is True on any of them. The ranks drop
                their graphs together: a later check on some of them would pair its collectives with other updates.

        Raises:
            ConfigError: k is not a multiple of the length of the cycle.
            ValueError: k is above 0 on CUDA, but `state` is missing.
        """
        self.device = torch.device(device)
        self.cycle = cycle or UpdateCycle(1)
        if k % self.cycle.period:
            multiple = -(-k // self.cycle.period) * self.cycle.period
            raise ConfigError(
                f"graph_updates={k} is not a multiple of {self.cycle.period}, but this algorithm repeats its updates "
                f"in cycles of {self.cycle.period}. Write graph_updates={multiple}, or graph_updates=0 for no CUDA "
                f"graph."
            )
        if k > 0 and self.device.type == "cuda" and state is None:
            raise ValueError(
                f"graph_updates={k} needs `state`, a function that returns the tensors that an update changes."
            )
        self.update, self.state = update, state
        self.k = k if self.device.type == "cuda" else 0
        self.check_interval, self.tolerance = check_interval, tolerance
        self._any_rank = any_rank
        self.graph: torch.cuda.CUDAGraph | None = None
        self.losses: Losses = {}
        self.replays = 0
        self.updated = False

    def run(self, count: int) -> Iterator[tuple[Losses, int]]:
        """Runs `count` updates, each when the caller asks for the next item.

        The first updates are eager, because they allocate persistent tensors.

        Yields:
            (losses, 1) for an eager update, or (mean losses, k) for a replay of k updates. The losses are a dict of
            0-d tensors; those of a replay are copies.
        """
        while count:
            if self._replays_next(count):
                assert self.graph is not None
                self.graph.replay()
                self.replays += 1
                count -= self.k
                yield {key: loss.clone() for key, loss in self.losses.items()}, self.k
            else:
                losses = self.update()
                self.updated = True
                count -= 1
                yield losses, 1

    def _replays_next(self, count: int) -> bool:
        """Captures or checks the graph if due. Returns True if a replay is next, False if an eager update is."""
        if not self.k or not self.updated or count < self.k or self.cycle.phase:
            return False
        if self.graph is None:
            self._capture()
        elif self.replays and self.replays % self.check_interval == 0:
            self._check()
        return self.graph is not None  # a failed check ends all captures

    def _k_updates(self) -> Losses:
        series: dict[str, list[Tensor]] = {}
        for _ in range(self.k):
            for key, loss in self.update().items():
                series.setdefault(key, []).append(loss)
        return {key: torch.stack(losses).mean(0) for key, losses in series.items()}

    def _snapshot(self) -> list[Tensor]:
        assert self.state is not None
        return [tensor.detach().clone() for tensor in self.state()]

    def _restore(self, snapshot: list[Tensor]) -> None:
        assert self.state is not None
        for tensor, saved in zip(self.state(), snapshot, strict=True):
            tensor.detach().copy_(saved)

    def _capture(self) -> None:
        """Warms up on a side stream, restores the state and captures the graph."""
        snapshot = self._snapshot()
        stream = torch.cuda.Stream(self.device)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            for _ in range(-(-MIN_WARMUP_UPDATES // self.cycle.period) * self.cycle.period):  # complete cycles
                self.update()
        torch.cuda.current_stream(self.device).wait_stream(stream)
        self._restore(snapshot)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            self.losses = self._k_updates()
        self.graph = graph
        self._check()  # always check the first replay: the replay of an empty graph raises no error

    def _check(self) -> None:
        """Compares one replay with k eager updates from the same state, then restores that state.

        Needs a few host-device synchronisations. All ranks check at the same replay, and drop their graphs if one of
        them finds a difference.
        """
        assert self.graph is not None
        before = self._snapshot()
        self.graph.replay()
        replayed = self._snapshot()
        self._restore(before)
        self._k_updates()
        eager = self._snapshot()
        self._restore(before)
        error, moved = distance(replayed, eager), distance(before, eager)
        differs = not (moved > 0 and error <= self.tolerance * moved)
        if self._any_rank(differs):
            self.graph, self.k = None, 0
            reason = (
                f"A CUDA graph and the same updates without it led to states that differ by {error:.3g}. Allowed is "
                f"{self.tolerance:g} times the change by these updates, which is {moved:.3g}."
                if differs
                else "On another rank, a CUDA graph and the same updates without it led to different states."
            )
            warnings.warn(f"{reason} Updates continue without a graph.", stacklevel=2)


def all_tensors(tree: Any) -> list[Tensor]:
    """All tensors in nested dicts and lists, for example in state dicts."""
    if isinstance(tree, Tensor):
        return [tree]
    parts = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list | tuple) else ()
    return [tensor for part in parts for tensor in all_tensors(part)]


def distance(left: Sequence[Tensor], right: Sequence[Tensor]) -> float:
    """2-norm of the difference between two lists of tensors with the same shapes, over all tensors together.

    Infinite if integer tensors differ or a difference is not finite.
    """
    total = 0.0
    for a, b in zip(left, right, strict=True):
        if a.is_floating_point():
            total += float((a.double() - b.double()).square().sum())
        elif not torch.equal(a, b):
            return math.inf
    return math.sqrt(total) if math.isfinite(total) else math.inf
