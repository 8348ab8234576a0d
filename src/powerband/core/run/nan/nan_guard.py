"""NanGuard: detects the first update whose losses are not finite and keeps its batch, before a checkpoint is saved.

On a CPU the guard checks the losses of every update at once. On CUDA the losses stay on the device. The host reads them
every CHECK_INTERVAL_S seconds, at the end of a rollout and before a checkpoint. The guard still finds the first bad
update, without further host-device synchronisation. All ranks end at the same iteration.
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
"""Seconds between two checks of losses on a GPU."""
MAX_BATCH_BYTES = 64 * 2**20
"""Limit for the batches kept on a GPU until their losses are checked, and for the saved part of a bad batch."""
HISTORY_UPDATES = 256
"""Updates whose figures are kept, to report the trend of the gradients."""
ENVIRONMENT_LEAVES = ("obs", "next_obs", "reward")
"""Leaves of a batch that come from an environment; the others come from networks."""
MAX_SQUARABLE = 1e18
"""The square of a larger value exceeds float32."""


class UpdateLosses(NamedTuple):
    """Losses and other scalars of an update, or their means over the updates of one CUDA graph replay.

    Attributes:
        update: Number of the update, from 1. For a replay, the number of its last update.
        count: Number of updates of the replay; 1 for a single update.
        names: Names of the n scalars.
        values: Values of the n scalars.
    """

    update: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nothing calls
    names: tuple[str, ...]
    values: Any
    """(n,) float64 tensor on a GPU until the host reads them, then a list of n floats."""


@dataclass
class NonFiniteFault:
    """The first values on one rank that are not finite (NaN or infinite).

    Attributes:
        rank: Number of the rank.
        update: Number of the update, from 1; 0 if no update was involved.
        count: Number of updates of one graph replay, of which `update` is the last.
        figures: Losses and other scalars of the update by name.
        bad: Names of those `figures` that are not finite.
        leaves: Path of a tensor in the batch, or in the rollout of the batch -> description of its bad values.
        environment: Names of those `leaves` that come from an environment.
        batch_update: Number of the update that used the saved batch. It differs from `update` if the first bad batch
            was already overwritten.
        norm_history: Name of a gradient norm -> finite (update, value) pairs before the fault.
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
    """Detects the first update of one rank whose losses are not finite, and keeps its batch.

    Attributes:
        fault: The first values that are not finite; None as long as all values are finite.
        updates: Number of updates since the start of the run, including those before a resume.
        saved: Batch of the fault, nested dicts of tensors; None without a fault.

    Args:
        ranks: Process group, with the rank and device of this process.
        scaled: True with loss scaling (fp16). Gradients that are not finite are then normal; the scaler skips the step.
    """

    def __init__(self, ranks: Ranks, scaled: bool = False) -> None:
        self.ranks, self.scaled = ranks, scaled
        self.fault: NonFiniteFault | None = None
        self.updates = 0
        self.saved: Any = None
        self._cuda = ranks.device.type == "cuda"
        self._source = self._batch = self._captured = None
        self._batches: deque[tuple[int, Any]] = deque(maxlen=1)
        self._fresh: list[UpdateLosses] = []
        self._trail: deque[UpdateLosses] = deque(maxlen=HISTORY_UPDATES)
        self._means: deque[tuple[int, dict[str, float]]] = deque(maxlen=8)
        self._checked_at = time.perf_counter()

    # -- while training ---------------------------------------------------------------------------------------------

    def set_batch(self, batch: Any, source: Any = None) -> None:
        """Sets the batch of the next update.

        Args:
            batch: Nested dicts and lists of tensors.
            source: Rollout from which the batch was taken, if its memory is overwritten soon; else None.
        """
        if self._batch is None and self._cuda:
            size = sum(leaf.nbytes for _, leaf in leaves(batch))
            self._batches = deque(maxlen=max(1, min(HISTORY_UPDATES, MAX_BATCH_BYTES // max(size, 1))))
        self._batch, self._source = batch, source
        if self._cuda and torch.cuda.is_current_stream_capturing():
            self._captured = batch  # each replay writes the batch of its last update into these tensors

    def record(self, names: tuple[str, ...], figures: Tensor, count: int = 1) -> None:
        """Records the losses and other scalars of an update, for the next check.

        Args:
            names: Names of the n scalars.
            figures: (n,) their values, on the device. The tensor must not change later.
            count: Number of updates over which the values are means.
        """
        self.updates += count
        self._batches.append((self.updates, self._batch if count == 1 or not self._cuda else self._captured))
        if self._cuda:
            self._fresh.append(UpdateLosses(self.updates, count, names, figures))
        elif self.fault is None:
            values = figures.tolist()
            losses = UpdateLosses(self.updates, count, names, values)
            self._trail.append(losses)
            if not math.isfinite(sum(values)):
                self._set_fault(losses)

    def record_norms(self, line: dict[str, Any]) -> None:
        """Stores the mean gradient norms of a log interval, to report their trend before a fault.

        `line` contains the metrics of the interval by name.
        """
        norms = {name: value for name, value in line.items() if _is_norm(name) and isinstance(value, float)}
        if norms:
            self._means.append((self.updates, norms))

    def tick(self) -> None:
        """Ends an iteration of the training loop. On CUDA, checks the losses if that is due.

        A check is due 0.5 s after the last one, or if the rollout of the batch will soon be overwritten.
        """
        if self._fresh and (self._source is not None or time.perf_counter() - self._checked_at >= CHECK_INTERVAL_S):
            self.check()

    def check(self) -> bool:
        """Checks all new losses. Returns True if any loss so far was not finite. On CUDA this waits for the device."""
        fresh, self._fresh = self._fresh, []
        self._checked_at = time.perf_counter()
        if self.fault is not None or not fresh:
            return self.fault is not None
        table = torch.cat([losses.values for losses in fresh]).tolist()
        start = 0
        for losses in fresh:
            losses = losses._replace(values=table[start : start + len(losses.names)])
            start += len(losses.names)
            self._trail.append(losses)
            if not math.isfinite(sum(losses.values)) and self._set_fault(losses):
                break
        return self.fault is not None

    def check_state(self, learner: dict[str, Any] | None, replay: Any = None) -> bool:
        """Checks the contents of the next checkpoint: losses, weights and replay buffer.

        Args:
            learner: State dict of the learner; None skips it.
            replay: Stored tensors of the replay buffer; None skips them.

        Returns:
            True if a value is not finite, now or in an earlier check.
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
        elif replay is not None and (problems := describe_bad_values(replay, ENVIRONMENT_LEAVES)):
            self.fault = NonFiniteFault(self.ranks.rank, leaves=problems, environment=list(problems))
            bad = torch.stack([_bad_rows(leaf) for _, leaf in leaves(replay)]).any(0).nonzero().squeeze(1)
            self.saved = {path: leaf.index_select(0, bad[:HISTORY_UPDATES]) for path, leaf in leaves(replay)}
        return self.fault is not None

    # -- after a fault ----------------------------------------------------------------------------------------------

    def _set_fault(self, losses: UpdateLosses) -> bool:
        """Records the first bad update and returns True; returns False if only scaled gradients are not finite."""
        figures = dict(zip(losses.names, losses.values, strict=True))
        bad = [name for name, value in figures.items() if not math.isfinite(value)]
        if self.scaled:
            bad = [name for name in bad if not _is_norm(name)]
        if not bad:
            return False
        newest = self._batches[-1]
        # A graph overwrites its batch at each replay, so entries with older numbers may also refer to the newest batch.
        update, batch = next(((u, b) for u, b in self._batches if u >= losses.update and b is not newest[1]), newest)
        problems = describe_bad_values(batch or {}, limit=MAX_SQUARABLE)
        from_environment = [path for path in problems if path.split("/")[0] in ENVIRONMENT_LEAVES]
        if not from_environment and self._source is not None:
            others = describe_bad_values(self._source, ENVIRONMENT_LEAVES, MAX_SQUARABLE)
            problems |= {f"{path} of the rollout": problem for path, problem in others.items()}
            from_environment = [f"{path} of the rollout" for path in others]
        self.fault = NonFiniteFault(
            self.ranks.rank,
            losses.update,
            losses.count,
            figures,
            bad,
            problems,
            from_environment,
            update,
            self._norms(losses.update),
        )
        self.saved = batch
        return True

    def _norms(self, before: int) -> dict[str, list[tuple[int, float]]]:
        """Name of a gradient norm -> its finite (update, value) pairs before the update `before`.

        Means of the last log intervals come first, then norms of single updates.
        """
        first = self._trail[0].update if self._trail else before
        norms: dict[str, list[tuple[int, float]]] = {}
        for update, means in self._means:
            for name, value in means.items() if update < first else ():
                norms.setdefault(name, []).append((update, value))
        for losses in self._trail:
            for name, value in zip(losses.names, losses.values, strict=True) if losses.update < before else ():
                if _is_norm(name):
                    norms.setdefault(name, []).append((losses.update, value))
        return {name: [pair for pair in pairs if math.isfinite(pair[1])] for name, pairs in norms.items()}

    def save(self, folder: Path, env_steps: int, grad_steps: int) -> str:
        """Writes the batch of this rank's fault, and a JSON file that describes the fault, into `folder`.

        Args:
            folder: Folder of the two files; it is created if needed.
            env_steps: Environment steps so far, over all ranks.
            grad_steps: Updates so far.

        Returns:
            An error message if the files cannot be written, or "" on success and without a fault.
        """
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
            (folder / f"{name}.json").write_text(json.dumps(_json_safe(facts), indent=2), encoding="utf-8")
        except OSError as error:
            return error.strerror or str(error)
        return ""


# -- trees ------------------------------------------------------------------------------------------------------------


def leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yields (path, tensor) for every tensor in nested dicts and lists. A path such as "a/b" begins with `path`."""
    if isinstance(tree, Tensor):
        yield path, tree
    elif isinstance(tree, dict | list | tuple):
        for key, part in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from leaves(part, f"{path}/{key}" if path else str(key))


def describe_bad_values(tree: Any, names: tuple[str, ...] = (), limit: float = math.inf) -> dict[str, str]:
    """Finds tensors with values that are not finite, or too large.

    Args:
        tree: Nested dicts and lists of tensors.
        names: Top-level entries of `tree` to check; empty checks all.
        limit: Finite values of at least this magnitude are reported too.

    Returns:
        Path of each such tensor, such as "a/b" -> description of its bad values.
    """
    problems = {}
    for path, leaf in leaves(tree):
        if not leaf.is_floating_point() or not leaf.numel() or (names and path.split("/")[0] not in names):
            continue
        low, high = (float(end) for end in torch.aminmax(leaf))  # both are NaN if a value is NaN
        if not math.isfinite(low) or not math.isfinite(high):
            bad = int((~torch.isfinite(leaf)).sum())
            problems[path] = f"{bad} of {leaf.numel()} values not finite"
        elif max(-low, high) >= limit:
            problems[path] = f"values up to {max(-low, high):.2g}, whose squares are not finite"
    return problems


def truncate_batch(tree: Any, limit: int) -> dict[str, Tensor]:
    """Copies the tensors of a batch to the CPU, truncated to about `limit` bytes.

    Args:
        tree: Nested dicts and lists of tensors (rows, ...); 0-d tensors are kept.
        limit: Largest size in bytes. Of a larger batch, rows with values that are not finite are kept first. If the
            tensors have different numbers of rows, the first rows of each tensor are kept.

    Returns:
        Path of each tensor, such as "a/b" -> copy.
    """
    parts = dict(leaves(tree))
    size = sum(leaf.nbytes for leaf in parts.values())
    long = {path: leaf for path, leaf in parts.items() if leaf.dim()}
    if size > limit and len({len(leaf) for leaf in long.values()}) == 1:
        bad = torch.stack([_bad_rows(leaf) for leaf in long.values()]).any(0)
        rows = torch.argsort(~bad, stable=True)[: max(1, len(bad) * limit // size)]
        parts |= {path: leaf.index_select(0, rows) for path, leaf in long.items()}
    elif size > limit:  # rows of sequences and rows of their first carry do not correspond
        parts |= {path: leaf[: max(1, len(leaf) * limit // size)] for path, leaf in long.items()}
    return {path: leaf.detach().to("cpu", copy=True).contiguous() for path, leaf in parts.items()}


def _bad_rows(leaf: Tensor) -> Tensor:
    """(n,) bool: True for the rows of a tensor (n, ...) with a value that is not finite."""
    return ~torch.isfinite(leaf).flatten(1).all(1) if leaf.dim() > 1 else ~torch.isfinite(leaf)


def _is_norm(name: str) -> bool:
    return name.endswith("grad_norm")


def _json_safe(value: Any) -> Any:
    """`value` with strings in place of floats that JSON cannot represent: nan, inf and -inf."""
    if isinstance(value, dict):
        return {key: _json_safe(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_json_safe(part) for part in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
