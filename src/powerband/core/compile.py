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

Losses = dict[str, Tensor]


def compiled(fn: Callable[..., Any], enabled: bool, mode: str = "default") -> Callable[..., Any]:
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
        check_interval: int = 2000,
        tolerance: float = 1e-2,
    ):
        """
        Args:
            update: One update with its sampling: no arguments, fixed shapes, no host synchronisation.
            device: Where it runs.
            state: All tensors that `update` changes, such as ``tensors_in([learner.state_dict(), noise.state_dict()])``
                (replay rows need not be among them: an update only reads them). Needed for a capture.
            k: Updates in a graph; 0 never captures.
            check_interval: Replays between two checks against eager; a check costs about 1 + 1 / speed-up replays.
            tolerance: Largest distance between replay and eager, relative to the distance that eager moved.

        Raises:
            ValueError: k is above 0 on CUDA, and `state` is missing.
        """
        self.device = torch.device(device)
        if k > 0 and self.device.type == "cuda" and state is None:
            raise ValueError(f"k={k} updates can be captured only when state= names the tensors they change.")
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
        while self.k and self.updated and count >= self.k:
            if self.graph is None:
                self._capture()
            elif self.replays and self.replays % self.check_interval == 0:
                self._check()
            if self.graph is None:  # the check failed: the rest is eager
                break
            self.graph.replay()
            self.replays += 1
            count -= self.k
            yield {key: loss.clone() for key, loss in self.losses.items()}, self.k
        for _ in range(count):
            losses = self.update()
            self.updated = True
            yield losses, 1

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
            for _ in range(3):
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


def tensors_in(tree: Any) -> list[Tensor]:
    """All tensors in nested dicts and lists, such as the state dicts of a learner and of its noise."""
    if isinstance(tree, Tensor):
        return [tree]
    parts = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list | tuple) else ()
    return [tensor for part in parts for tensor in tensors_in(part)]


def distance(left: Sequence[Tensor], right: Sequence[Tensor]) -> float:
    """2-norm of the difference over all tensors; infinite where integers differ or a difference is not finite."""
    total = 0.0
    for a, b in zip(left, right, strict=True):
        if a.is_floating_point():
            total += float((a.double() - b.double()).square().sum())
        elif not torch.equal(a, b):
            return math.inf
    return math.sqrt(total) if math.isfinite(total) else math.inf
