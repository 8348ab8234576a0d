"""NanGuard: notices the first update whose losses are not finite, keeps its batch, and ends the run before it is saved.

On the CPU the losses of every update are checked as it ends. On CUDA they stay on the device. The host reads them every
CHECK_INTERVAL_S seconds, at the end of a rollout and before a checkpoint, so the first bad update is found exactly and
nothing waits for the device in between. All ranks end at the same iteration.
"""

from __future__ import annotations

import json
import math
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from powerband.core.ranks.ranks import Ranks

CHECK_INTERVAL_S = 0.5
"""Seconds between two looks at losses that are on a GPU."""
MAX_BATCH_BYTES = 64 * 2**20
"""Batches that are kept on a GPU until they are known to be good, and the most that is saved of a bad one."""
HISTORY_UPDATES = 256
"""Updates whose figures are kept, to tell how gradients grew."""
ENVIRONMENT = ("obs", "next_obs", "reward")
"""Leaves of a batch that an environment made; the others come from networks."""
HUGE = 1e18
"""The square of a larger value is no float32."""


class UpdateLosses(NamedTuple):
    """Figures of an update, or means over `count` of them where a graph made them together."""

    update: int
    count: int
    names: tuple[str, ...]
    values: Any
    """(n,) float64 on a GPU until the host has read them, then a list of floats."""


@dataclass
class NonFiniteFault:
    """What one rank saw first.

    Attributes:
        rank: Who saw it.
        update: Number of the update, from 1 on; 0 where no update was involved.
        count: Updates that were made together, of which `update` is the last.
        figures: Losses of that update.
        bad: Names of those that are not finite.
        leaves: Of the batch, and then of what it was drawn from: leaf -> what is wrong with it, in words.
        environment: Leaves among them that an environment made.
        batch_update: Update that the saved batch belongs to; another one where the first bad batch was gone already.
        trail: Gradient norm -> (update, value) before the fault, finite ones.
    """

    rank: int
    update: int = 0
    count: int = 1
    figures: dict[str, float] = field(default_factory=dict)
    bad: list[str] = field(default_factory=list)
    leaves: dict[str, str] = field(default_factory=dict)
    environment: list[str] = field(default_factory=list)
    batch_update: int = 0
    norm_history: dict[str, list[tuple[int, float]]] = field(default_factory=dict)


class NanGuard:
    """Looks at the losses of one rank.

    Attributes:
        fault: What was seen first; None while all is well.
        updates: Updates so far, over the whole run.

    Args:
        ranks: This process among the others.
        scaled: Losses are scaled (fp16): gradients that are not finite are then usual, and their steps are left out.
    """

    def __init__(self, ranks: Ranks, scaled: bool = False) -> None:
        self.ranks, self.scaled = ranks, scaled
        self.fault: NonFiniteFault | None = None
        self.updates = 0
        self.saved: Any = None
        self._cuda = ranks.device.type == "cuda"
        self._whole = self._batch = self._captured = None
        self._batches: deque[tuple[int, Any]] = deque(maxlen=1)
        self._fresh: list[UpdateLosses] = []
        self._trail: deque[UpdateLosses] = deque(maxlen=HISTORY_UPDATES)
        self._means: deque[tuple[int, dict[str, float]]] = deque(maxlen=8)
        self._looked = time.perf_counter()

    # -- while training ---------------------------------------------------------------------------------------------

    def set_batch(self, batch: Any, whole: Any = None) -> None:
        """Is handed the batch of the next update, and where that will be written over, all that it was drawn from."""
        if self._batch is None and self._cuda:
            size = sum(leaf.nbytes for _, leaf in leaves(batch))
            self._batches = deque(maxlen=max(1, min(HISTORY_UPDATES, MAX_BATCH_BYTES // max(size, 1))))
        self._batch, self._whole = batch, whole
        if self._cuda and torch.cuda.is_current_stream_capturing():
            self._captured = batch  # where each replay leaves the batch of its last update

    def record(self, names: tuple[str, ...], figures: Tensor, count: int = 1) -> None:
        """Takes in what an update returned.

        Args:
            names: Of the figures.
            figures: (n,) on the device; not changed later.
            count: Updates that they are the means of.
        """
        self.updates += count
        self._batches.append((self.updates, self._batch if count == 1 else self._captured))
        if self._cuda:
            self._fresh.append(UpdateLosses(self.updates, count, names, figures))
        elif self.fault is None:
            values = figures.tolist()
            seen = UpdateLosses(self.updates, count, names, values)
            self._trail.append(seen)
            if not math.isfinite(sum(values)):
                self._found(seen)

    def record_norms(self, line: dict[str, Any]) -> None:
        """Remembers the mean gradient norms of an interval."""
        norms = {name: value for name, value in line.items() if _is_norm(name) and isinstance(value, float)}
        if norms:
            self._means.append((self.updates, norms))

    def tick(self) -> None:
        """At the end of an iteration: on CUDA, looks where it is time, or where the rollout is about to go."""
        if self._fresh and (self._whole is not None or time.perf_counter() - self._looked >= CHECK_INTERVAL_S):
            self.check()

    def check(self) -> bool:
        """True once a loss was not finite. On CUDA this waits for the device."""
        fresh, self._fresh = self._fresh, []
        self._looked = time.perf_counter()
        if self.fault is not None or not fresh:
            return self.fault is not None
        table = torch.cat([seen.values for seen in fresh]).tolist()
        start = 0
        for seen in fresh:
            seen = seen._replace(values=table[start : start + len(seen.names)])
            start += len(seen.names)
            self._trail.append(seen)
            if not math.isfinite(sum(seen.values)) and self._found(seen):
                break
        return self.fault is not None

    def check_state(self, learner: dict[str, Any] | None, drawn_from: Any = None) -> bool:
        """Looks at what a checkpoint would hold: losses, weights, and the values that batches will be drawn from.

        Args:
            learner: State of the learner.
            drawn_from: Fields of the replay.
        """
        if self.check():
            return True
        weights = describe_bad_values(learner or {})
        if weights:
            self.fault = NonFiniteFault(
                self.ranks.rank, self.updates, leaves={f"learner/{k}": v for k, v in weights.items()}
            )
            self.fault.norm_history, self.fault.batch_update = self._norms(self.updates + 1), self.updates
            self.saved = self._batch
        elif drawn_from is not None and (wrong := describe_bad_values(drawn_from, ENVIRONMENT)):
            self.fault = NonFiniteFault(self.ranks.rank, leaves=wrong, environment=list(wrong))
            bad = torch.stack([_bad_rows(leaf) for _, leaf in leaves(drawn_from)]).any(0).nonzero().squeeze(1)
            self.saved = {path: leaf.index_select(0, bad[:HISTORY_UPDATES]) for path, leaf in leaves(drawn_from)}
        return self.fault is not None

    # -- once it is found -------------------------------------------------------------------------------------------

    def _found(self, seen: UpdateLosses) -> bool:
        """Records the first bad update; False where only scaled gradients are not finite."""
        figures = dict(zip(seen.names, seen.values, strict=True))
        bad = [name for name, value in figures.items() if not math.isfinite(value)]
        if self.scaled:
            bad = [name for name in bad if not _is_norm(name)]
        if not bad:
            return False
        newest = self._batches[-1]
        # A graph writes each batch over the one before: what is kept under an older number is the newest one, too.
        update, batch = next(((u, b) for u, b in self._batches if u >= seen.update and b is not newest[1]), newest)
        wrong = describe_bad_values(batch or {}, huge=HUGE)
        made = [path for path in wrong if path.split("/")[0] in ENVIRONMENT]
        if not made and self._whole is not None:
            beyond = describe_bad_values(self._whole, ENVIRONMENT, HUGE)
            wrong |= {f"{path} of the rollout": words for path, words in beyond.items()}
            made = [f"{path} of the rollout" for path in beyond]
        norm_history = self._norms(seen.update)
        self.fault = NonFiniteFault(
            self.ranks.rank, seen.update, seen.count, figures, bad, wrong, made, update, norm_history
        )
        self.saved = batch
        return True

    def _norms(self, before: int) -> dict[str, list[tuple[int, float]]]:
        """Finite gradient norms before an update: means of the last log intervals, then single updates."""
        first = self._trail[0].update if self._trail else before
        found: dict[str, list[tuple[int, float]]] = {}
        for update, means in self._means:
            for name, value in means.items() if update < first else ():
                found.setdefault(name, []).append((update, value))
        for seen in self._trail:
            for name, value in zip(seen.names, seen.values, strict=True) if seen.update < before else ():
                if _is_norm(name):
                    found.setdefault(name, []).append((seen.update, value))
        return {name: [pair for pair in pairs if math.isfinite(pair[1])] for name, pairs in found.items()}

    def save(self, folder: Path, env_steps: int, grad_steps: int) -> str:
        """Writes the batch and the facts of this rank's fault into `folder`; returns why that failed, "" where not."""
        if self.fault is None:
            return ""
        from safetensors.torch import save

        rows = truncate_batch(self.saved or {}, MAX_BATCH_BYTES)
        facts = {**asdict(self.fault), "env_steps": env_steps, "grad_steps": grad_steps}
        facts["rows"] = {path: [len(leaf), len(rows[path])] for path, leaf in leaves(self.saved or {}) if leaf.dim()}
        name = f"rank{self.ranks.rank}"
        try:
            folder.mkdir(exist_ok=True)
            (folder / f"{name}.safetensors").write_bytes(save(rows))
            (folder / f"{name}.json").write_text(json.dumps(_words(facts), indent=2), encoding="utf-8")
        except OSError as error:
            return error.strerror or str(error)
        return ""


# -- trees ------------------------------------------------------------------------------------------------------------


def leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """``("a/b", tensor)`` for every tensor in nested dicts and lists."""
    if isinstance(tree, Tensor):
        yield path, tree
    elif isinstance(tree, dict | list | tuple):
        for key, part in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from leaves(part, f"{path}/{key}" if path else str(key))


def describe_bad_values(tree: Any, names: tuple[str, ...] = (), huge: float = math.inf) -> dict[str, str]:
    """Leaf -> what is wrong with its values, in words.

    Args:
        tree: Of tensors.
        names: Only leaves under these roots, where some are given.
        huge: Finite values from here on are wrong too.
    """
    wrong = {}
    for path, leaf in leaves(tree):
        if not leaf.is_floating_point() or not leaf.numel() or (names and path.split("/")[0] not in names):
            continue
        low, high = (float(end) for end in torch.aminmax(leaf))  # a NaN among the values is both
        if not math.isfinite(low) or not math.isfinite(high):
            bad = int((~torch.isfinite(leaf)).sum())
            wrong[path] = f"{bad} of {leaf.numel()} values not finite"
        elif max(-low, high) >= huge:
            wrong[path] = f"values up to {max(-low, high):.2g}, whose squares are not finite"
    return wrong


def truncate_batch(tree: Any, limit: int) -> dict[str, Tensor]:
    """Copies of the leaves on the CPU, `limit` bytes at the most: the rows with bad values first, then the others."""
    found = dict(leaves(tree))
    size = sum(leaf.nbytes for leaf in found.values())
    if size > limit and len({len(leaf) for leaf in found.values() if leaf.dim()}) == 1:
        bad = torch.stack([_bad_rows(leaf) for leaf in found.values()]).any(0)
        kept = torch.argsort(~bad, stable=True)[: max(1, len(bad) * limit // size)]
        found = {path: leaf.index_select(0, kept) for path, leaf in found.items()}
    elif size > limit:  # sequences beside their first memory: rows of different meaning
        found = {path: leaf[: max(1, len(leaf) * limit // size)] for path, leaf in found.items() if leaf.dim()}
    return {path: leaf.detach().to("cpu", copy=True).contiguous() for path, leaf in found.items()}


def _bad_rows(leaf: Tensor) -> Tensor:
    """(n,) bool: rows of a leaf (n, ...) that hold a value that is not finite."""
    return ~torch.isfinite(leaf).flatten(1).all(1) if leaf.dim() > 1 else ~torch.isfinite(leaf)


def _is_norm(name: str) -> bool:
    return name.endswith("grad_norm")


def _words(value: Any) -> Any:
    """`value` with floats that JSON does not know as the texts nan, inf and -inf."""
    if isinstance(value, dict):
        return {key: _words(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_words(part) for part in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
