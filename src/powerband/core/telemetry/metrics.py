"""Metrics: accumulates figures on the device and writes their means once per log interval.

A figure is a named scalar, such as a loss. A sink is an output that receives the means, such as ``metrics.jsonl``.

Tags are ``charts/*``, ``losses/*``, ``eval/*`` and ``perf/*``. The x axis is always global environment steps.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from powerband.core.ranks.ranks import Ranks
from powerband.core.telemetry.metrics_file import MetricsReader


class Sink(Protocol):
    """Output that receives the metrics of each log interval, such as a file."""

    def write(self, line: dict[str, Any]) -> None: ...
    def rewind(self, env_steps: int, evaluated_to: int) -> str: ...
    def close(self) -> None: ...


class Metrics:
    """Accumulates figures (named scalars such as a loss) and writes their means at the end of each log interval.

    Args:
        sinks: Outputs that receive the means, such as a file; empty on ranks other than rank 0.
        ranks: Ranks over which the means are computed.
    """

    def __init__(self, sinks: list[Sink], ranks: Ranks) -> None:
        self.sinks, self.ranks = sinks, ranks
        self._sums: dict[tuple[str, ...], Tensor] = {}
        self._counts: dict[tuple[str, ...], int] = {}
        self._masked: dict[str, Tensor] = {}
        self._scalars: dict[str, float] = {}
        self._totals: dict[str, int] = {}

    @torch.no_grad()
    def add(self, figures: dict[str, Tensor], weight: int = 1) -> Tensor:
        """Adds one value of each figure (named scalar) to its mean, without host-device synchronisation.

        Args:
            figures: Name -> 0-d tensor, n entries.
            weight: Weight of the values in the means, such as the number of updates over which each value is a mean.

        Returns:
            The values as one tensor (n,) float64.
        """
        names = tuple(figures)
        stacked = torch.stack(list(figures.values())).double()
        if names in self._sums:
            self._sums[names].add_(stacked, alpha=weight)
        else:
            self._sums[names] = stacked * weight
        self._counts[names] = self._counts.get(names, 0) + weight
        return stacked

    @torch.no_grad()
    def add_masked(self, name: str, values: Tensor, mask: Tensor) -> None:
        """Adds those `values` whose `mask` is True to the mean of the figure `name`, on the device.

        Args:
            name: Name of the figure, such as ``charts/episodic_return``.
            values: (N,) one value per environment, for N environments.
            mask: (N,) bool.
        """
        if mask.device.type == "cpu" and not mask.any():
            return
        sum_and_count = torch.stack([values.masked_fill(~mask, 0).sum(dtype=torch.float64), mask.sum().double()])
        if name in self._masked:
            self._masked[name] += sum_and_count
        else:
            self._masked[name] = sum_and_count

    def set_scalar(self, name: str, value: float) -> None:
        """Sets a figure (named scalar) of the current log interval, without averaging.

        `value` must be equal on all ranks, or set on rank 0 only.
        """
        self._scalars[name] = float(value)

    def add_count(self, name: str, count: int = 1) -> None:
        """Adds to the total `name` of this process, which every later line contains as the sum over all ranks.

        Ranks may call it at different times. Checkpoints do not contain the total.
        """
        self._totals[name] = self._totals.get(name, 0) + count

    def flush(self, env_steps: int, grad_steps: int, extra: dict[str, float], time_s: float) -> dict[str, Any]:
        """Ends the log interval: writes means over interval and ranks to every output. All ranks must call it.

        Args:
            env_steps: Environment steps so far, over all ranks.
            grad_steps: Updates so far.
            extra: Further figures, name -> value, that are written without averaging.
            time_s: Seconds of training so far.

        Returns:
            The written line: name of a figure -> value, with ``env_steps``, ``grad_steps`` and ``time_s``.
        """
        sums: dict[str, Tensor] = dict(self._masked)
        for group, total in self._sums.items():
            count = torch.full_like(total, float(self._counts[group]))
            for name, row in zip(group, torch.stack([total, count], 1).unbind(), strict=True):
                sums[name] = sums[name] + row if name in sums else row  # a name may occur in several groups
        # Names can differ between ranks: a rank has no figures of episodes until one ends.
        gathered = self.ranks.gather([sorted(sums), self._totals])
        names = sorted({name for rank_names, _ in gathered for name in rank_names})
        totals: Counter[str] = Counter()
        for _, rank_totals in gathered:
            totals.update(rank_totals)
        means: dict[str, float] = {}
        if names:
            zeros = torch.zeros(2, dtype=torch.float64, device=self.ranks.device)
            table = self.ranks.sum_(torch.stack([sums.get(name, zeros).to(zeros.device) for name in names]))
            means = {name: total / n for name, (total, n) in zip(names, table.tolist(), strict=True) if n}
        line = {
            "env_steps": env_steps,
            "grad_steps": grad_steps,
            "time_s": time_s,
            **extra,
            **means,
            **self._scalars,
            **totals,
        }
        for store in (self._sums, self._counts, self._masked, self._scalars):
            store.clear()
        self.write(line)
        return line

    def write(self, line: dict[str, Any]) -> None:
        """Writes a complete line to every output. Its step may be smaller than that of the line before."""
        for sink in self.sinks:
            sink.write(line)

    def rewind(self, env_steps: int, evaluated_to: int) -> list[str]:
        """Removes lines from all outputs that a resumed run writes again.

        Args:
            env_steps: Step of the last line to keep.
            evaluated_to: Step up to which evaluations are kept too, because a resumed run does not repeat them.

        Returns:
            A note for the user for each output that had damaged lines.
        """
        return [note for sink in self.sinks if (note := sink.rewind(env_steps, evaluated_to))]

    def close(self) -> None:
        """Flushes and closes all outputs."""
        for sink in self.sinks:
            sink.close()

    def state_dict(self) -> dict:
        """Sums and counts of the current log interval, so that a resumed run logs the same means."""
        return {
            "groups": [
                {"names": list(names), "sums": total, "count": self._counts[names]}
                for names, total in self._sums.items()
            ],
            "masked": self._masked,
            "scalars": self._scalars,
        }

    def load_state_dict(self, state: dict) -> None:
        device = self.ranks.device
        self._sums = {tuple(group["names"]): group["sums"].to(device) for group in state["groups"]}
        self._counts = {tuple(group["names"]): group["count"] for group in state["groups"]}
        self._masked = {name: tensor.to(device) for name, tensor in state["masked"].items()}
        self._scalars = dict(state["scalars"])

    def load_sums(self, states: list[dict]) -> None:
        """Restores the current log interval of a run with another number of ranks.

        Rank 0 takes over the sums of all saved ranks, and the other ranks start with none.

        Args:
            states: Results of `state_dict` of the saved ranks.
        """
        self.load_state_dict({"groups": [], "masked": {}, "scalars": states[0]["scalars"]})
        for state in states if self.ranks.leads else []:
            for group in state["groups"]:
                names, total = tuple(group["names"]), group["sums"].to(self.ranks.device)
                self._sums[names] = self._sums.get(names, 0) + total
                self._counts[names] = self._counts.get(names, 0) + group["count"]
            for name, tensor in state["masked"].items():
                self._masked[name] = self._masked.get(name, 0) + tensor.to(self.ranks.device)


def is_evaluation(line: dict[str, Any]) -> bool:
    """True if a line has the results of an evaluation of a checkpoint alone, without the rates of a log interval."""
    return any(tag.startswith("eval/") for tag in line) and "charts/SPS" not in line


class JsonlSink:
    """Appends one JSON line per log interval to a file (``metrics.jsonl``) and flushes it immediately.

    Values that are not finite become null.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("a", encoding="utf-8")

    def write(self, line: dict[str, Any]) -> None:
        finite = {
            key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in line.items()
        }
        self._file.write(json.dumps(finite) + "\n")
        self._file.flush()

    def rewind(self, env_steps: int, evaluated_to: int) -> str:
        """Removes lines as `Metrics.rewind` does, and damaged ones, such as the last line of a killed run.

        Returns:
            A note about the damaged lines; "" without any.
        """
        self._file.close()
        reader = MetricsReader(self.path)
        lines = [
            json.dumps(line) + "\n"
            for line in reader.read(ended=True)
            if line["env_steps"] <= (evaluated_to if is_evaluation(line) else env_steps)
        ]
        kept = self.path.with_name(f".{self.path.name}")
        kept.write_text("".join(lines), encoding="utf-8")
        os.replace(kept, self.path)  # a kill in between loses no line
        self._file = self.path.open("a", encoding="utf-8")
        return reader.note

    def close(self) -> None:
        self._file.close()


class TensorBoardSink:
    """Writes the metrics of each log interval as TensorBoard events into `folder`, the run folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._writer: Any = None
        self._purge_step: int | None = None
        self._again: list[dict[str, Any]] = []

    def write(self, line: dict[str, Any]) -> None:
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(self.folder), purge_step=self._purge_step)
            for kept in self._again:
                self.write(kept)
        for tag, value in line.items():
            if "/" in tag and value is not None:  # a value that is not finite is null in metrics.jsonl
                self._writer.add_scalar(tag, value, line["env_steps"])

    def rewind(self, env_steps: int, evaluated_to: int) -> str:
        """Makes TensorBoard hide events after `env_steps`, from the next event on, which follows kept evaluations."""
        self._purge_step = env_steps + 1
        lines = MetricsReader(self.folder / "metrics.jsonl").read(ended=True)
        self._again = [line for line in lines if is_evaluation(line) and env_steps < line["env_steps"] <= evaluated_to]
        return ""

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
