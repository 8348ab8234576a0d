"""Fewer launches: torch.compile for one function, and k updates with their sampling as one CUDA graph.

A graph replays the very kernels that were captured, on the same addresses. So everything an update changes
(parameters, moments, targets, noise counters) is a tensor changed in place, and everything it returns is copied before
the next replay. A replay is compared with eager updates now and then: where the two disagree the run goes on in eager
mode, with a warning.
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
WARM_UP = 3
"""Least number of updates on a side stream before a capture, which libraries need to allocate their workspaces."""


def compile_if(fn: Callable[..., Any], enabled: bool, mode: str = "default") -> Callable[..., Any]:
    """`fn` through torch.compile where `enabled`, else `fn` itself.

    On CPUs small networks run slower compiled than not (`benchmarks/updates.py --compile`): measure before enabling.
    """
    return torch.compile(fn, mode=mode, fullgraph=True, dynamic=False) if enabled else fn


class GraphedUpdates:
    """Runs updates: one after the other, or on CUDA k at a time by replaying a graph of them.

    Attributes:
        graph: The captured graph; None on CPUs, in the first call, and after a failed check.
        replays: Replays so far.
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
    ):
        """
        Args:
            update: One update with its sampling: no arguments, fixed shapes, no host synchronisation.
            device: Device of the updates.
            state: Function that returns all tensors that `update` changes, such as those of the state dicts of the
                learner and the noise. Rows of the replay buffer need not be among them. Required for a capture.
            k: Updates in a graph; 0 never captures.
            cycle: Sequence of updates that repeats; a graph holds whole cycles. None repeats at every update.
            check_interval: Replays between two checks against eager; a check costs about 1 + 1 / speed-up replays.
            tolerance: Largest distance between replay and eager, relative to the distance that eager moved.

        Raises:
            ConfigError: k updates are not a whole number of cycles.
        """
        self.device = torch.device(device)
        self.cycle = cycle or UpdateCycle(1)
        if k % self.cycle.period:
            whole = -(-k // self.cycle.period) * self.cycle.period
            raise ConfigError(
                f"graph_updates={k} is not a multiple of {self.cycle.period}, the number of updates after which this "
                f"algorithm's sequence of updates repeats. Write graph_updates={whole}, or 0."
            )
        if k > 0 and self.device.type == "cuda" and state is None:
            raise ValueError(f"graph_updates={k}: `state` must name the tensors that an update changes.")
        self.update, self.state = update, state
        self.k = k if self.device.type == "cuda" else 0
        self.check_interval, self.tolerance = check_interval, tolerance
        self.graph: torch.cuda.CUDAGraph | None = None
        self.losses: Losses = {}
        self.replays = 0
        self.updated = False

    def run(self, count: int) -> Iterator[tuple[Losses, int]]:
        """Makes `count` updates, each when the one before was taken. The first are eager: they create what stays.

        Yields:
            Losses of an eager update, and 1; means over the updates of a replay (copies), and k.
        """
        while count:
            if self._replays_next(count):
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
        """Captures or checks the graph if that is due; False if the next update is eager."""
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
        return [tensor.detach().clone() for tensor in self.state()]

    def _restore(self, snapshot: list[Tensor]) -> None:
        for tensor, saved in zip(self.state(), snapshot, strict=True):
            tensor.detach().copy_(saved)

    def _capture(self) -> None:
        """Warms up on a side stream, captures, and leaves the state as it was before."""
        snapshot = self._snapshot()
        stream = torch.cuda.Stream(self.device)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            for _ in range(-(-WARM_UP // self.cycle.period) * self.cycle.period):  # whole cycles
                self.update()
        torch.cuda.current_stream(self.device).wait_stream(stream)
        self._restore(snapshot)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            self.losses = self._k_updates()
        self.graph = graph
        self._check()  # the first replay is always checked: an empty graph would be silent

    def _check(self) -> None:
        """One replay and k eager updates from one state must end in one state, which is then put back.

        One host synchronisation. The decision is each rank's own, but ranks replay the same kernels on averaged
        gradients: an eager rank and a replaying rank still meet in the same collectives.
        """
        before = self._snapshot()
        self.graph.replay()
        replayed = self._snapshot()
        self._restore(before)
        self._k_updates()
        eager = self._snapshot()
        self._restore(before)
        error, moved = distance(replayed, eager), distance(before, eager)
        if not (moved > 0 and error <= self.tolerance * moved):
            self.graph, self.k = None, 0
            warnings.warn(
                f"a graph replay moved the state {error:.3g} away from where eager updates moved it by {moved:.3g} "
                f"(limit {self.tolerance:g} of that): updates go on without a graph.",
                stacklevel=2,
            )


def all_tensors(tree: Any) -> list[Tensor]:
    """All tensors in nested dicts and lists, such as the state dicts of a learner and of its noise."""
    if isinstance(tree, Tensor):
        return [tree]
    parts = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list | tuple) else ()
    return [tensor for part in parts for tensor in all_tensors(part)]


def distance(left: Sequence[Tensor], right: Sequence[Tensor]) -> float:
    """2-norm of the difference over all tensors; infinite where integers differ or a difference is not finite."""
    total = 0.0
    for a, b in zip(left, right, strict=True):
        if a.is_floating_point():
            total += float((a.double() - b.double()).square().sum())
        elif not torch.equal(a, b):
            return math.inf
    return math.sqrt(total) if math.isfinite(total) else math.inf
