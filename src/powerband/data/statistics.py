"""Statistics: what is known of each dimension of recorded states or actions, and of which tasks it is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from powerband.core.flags import ConfigError

TINY = 1e-4
"""A deviation under this share of the values (or of 1, where they are less) tells nothing: to divide by it would make
much of a trifle, as of the cosine of an angle that hardly changes."""
FIGURES = ("mean", "std", "min", "max", "q01", "q99")


@dataclass(frozen=True, eq=False)
class Statistics:
    """Figures (D,) float32 of each dimension.

    Attributes:
        task_set: Which tasks they are of: ``libero_single_task``, ``libero_90``.
        names: D names.
        count: Rows they were taken over.
        q01, q99: Quantiles.
    """

    task_set: str
    names: tuple[str, ...]
    count: int
    mean: Tensor
    std: Tensor
    min: Tensor
    max: Tensor
    q01: Tensor
    q99: Tensor

    def check(self) -> tuple[tuple[str, ...], Tensor, str]:
        """Finds dimensions that do not vary.

        Returns:
            Their names; the deviation (D,) to divide by, 1 where there is none to speak of; a line for the banner.
        """
        still = self.std <= TINY * self.mean.abs().clamp(min=1.0)
        names = tuple(name for name, flat in zip(self.names, still.tolist(), strict=True) if flat)
        head = f"{self.task_set}, {len(self.names)} dimensions over {self.count:,} rows"
        said = f"; no deviation in {', '.join(names)}: these are shifted, not scaled" if names else ""
        return names, torch.where(still, torch.ones_like(self.std), self.std), head + said

    def differs_from(self, other: Statistics) -> str | None:
        """In words, what sets them apart from `other`; None where nothing does."""
        if self.task_set != other.task_set:
            return f"these are statistics of {self.task_set}, those of {other.task_set}"
        if self.names != other.names:
            apart = sorted({*self.names} ^ {*other.names}) or [
                mine for mine, theirs in zip(self.names, other.names, strict=True) if mine != theirs
            ]
            return f"these are of {len(self.names)} dimensions, those of {len(other.names)}: {', '.join(apart)} differ"
        if self.count != other.count:
            return f"these are of {self.count:,} rows of {self.task_set}, those of {other.count:,}"
        for figure in FIGURES:
            mine, theirs = getattr(self, figure), getattr(other, figure)
            apart = (mine != theirs).nonzero()[:, 0].tolist()
            if apart:
                where, name = apart[0], self.names[apart[0]]
                return f"{figure} of {name} is {mine[where]:.6g} here and {theirs[where]:.6g} there"
        return None

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        head = {"task_set": self.task_set, "names": list(self.names), "count": self.count}
        return head | {figure: getattr(self, figure).tolist() for figure in FIGURES}

    @staticmethod
    def from_dict(values: dict[str, Any]) -> Statistics:
        """What `to_dict` gave.

        Raises:
            ConfigError: A figure is missing, or is not one of each dimension.
        """
        if missing := [field.name for field in fields(Statistics) if field.name not in values]:
            raise ConfigError(f"these statistics have no {missing[0]}: take them from the recorded data again.")
        names = tuple(values["names"])
        if short := [figure for figure in FIGURES if len(values[figure]) != len(names)]:
            raise ConfigError(
                f"these statistics have {len(values[short[0]])} values of {short[0]} for {len(names)} dimensions: "
                "take them from the recorded data again."
            )
        figures = {figure: torch.tensor(values[figure], dtype=torch.float32) for figure in FIGURES}
        return Statistics(str(values["task_set"]), names, int(values["count"]), **figures)


def statistics_of(values: Tensor, names: Sequence[str], task_set: str) -> Statistics:
    """Statistics of recorded rows.

    Args:
        values: (N, D), N above 0.
        names: D names.
        task_set: Which tasks the rows are of.

    Raises:
        ConfigError: There is no row, or a value is not finite; its dimension is named.
    """
    if len(values) == 0:
        raise ConfigError(f"there are no rows of {task_set} to take statistics of.")
    rows = values.double().numpy()
    bad = ~np.isfinite(rows).all(0)
    if bad.any():
        where = int(bad.argmax())
        row = int((~np.isfinite(rows[:, where])).argmax())
        raise ConfigError(f"{names[where]} is {rows[row, where]} in row {row} of {task_set}: remove its episode.")
    found = {
        "mean": rows.mean(0),
        "std": rows.std(0),
        "min": rows.min(0),
        "max": rows.max(0),
        "q01": np.quantile(rows, 0.01, axis=0),
        "q99": np.quantile(rows, 0.99, axis=0),
    }
    figures = {name: torch.from_numpy(value).float() for name, value in found.items()}
    return Statistics(task_set, tuple(names), len(rows), **figures)
