"""Statistics: mean, standard deviation, range and quantiles of recorded states or actions, per dimension."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from powerband.core.errors import ConfigError

MIN_RELATIVE_STD = 1e-4
"""Standard deviation, as a share of the mean's magnitude (at least 1), below which a dimension counts as constant.
Division by it would amplify noise, for example in the cosine of an angle that hardly changes."""
STATISTIC_NAMES = ("mean", "std", "min", "max", "q01", "q99")


@dataclass(frozen=True, eq=False)
class Statistics:
    """Statistics of recorded states or actions, for their normalisation; tensors (D,) float32 for D dimensions.

    Attributes:
        task_set: Name of the set of tasks, such as ``libero_single_task`` or ``libero_90``.
        names: Names of the D dimensions.
        count: Number of recorded rows.
        mean: Mean of each dimension.
        std: Standard deviation.
        min: Smallest value.
        max: Largest value.
        q01: Quantile of 1 %.
        q99: Quantile of 99 %.
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
        """Finds dimensions that are constant, or nearly so, and must not be divided by their standard deviation.

        Returns:
            Names of the constant dimensions; the divisors (D,) for normalisation, which are the standard deviations, or
            1 for constant dimensions; and a summary of one line for the log.
        """
        constant = self.std <= MIN_RELATIVE_STD * self.mean.abs().clamp(min=1.0)
        names = tuple(name for name, is_constant in zip(self.names, constant.tolist(), strict=True) if is_constant)
        head = f"{self.task_set}, {len(self.names)} dimensions over {self.count:,} rows"
        tail = f"; constant, and therefore shifted but not scaled: {', '.join(names)}" if names else ""
        return names, torch.where(constant, torch.ones_like(self.std), self.std), head + tail

    def difference_from(self, other: Statistics) -> str | None:
        """Returns a phrase, for messages, that describes the first difference from `other`; None if both are equal."""
        if self.task_set != other.task_set:
            return f"these are statistics of {self.task_set}, those of {other.task_set}"
        if self.names != other.names:
            different = sorted({*self.names} ^ {*other.names}) or [
                name for name, other_name in zip(self.names, other.names, strict=True) if name != other_name
            ]
            return (
                f"these have {len(self.names)} dimensions, those have {len(other.names)}; {', '.join(different)} differ"
            )
        if self.count != other.count:
            return f"these are of {self.count:,} rows of {self.task_set}, those of {other.count:,}"
        for statistic in STATISTIC_NAMES:
            values, other_values = getattr(self, statistic), getattr(other, statistic)
            indices = (values != other_values).nonzero()[:, 0].tolist()
            if indices:
                index = indices[0]
                return (
                    f"{statistic} of {self.names[index]} is {values[index]:.6g} in these statistics and "
                    f"{other_values[index]:.6g} in those"
                )
        return None

    def to_dict(self) -> dict[str, Any]:
        """Returns the attributes as JSON values, tensors as lists."""
        head = {"task_set": self.task_set, "names": list(self.names), "count": self.count}
        return head | {name: getattr(self, name).tolist() for name in STATISTIC_NAMES}

    @staticmethod
    def from_dict(values: dict[str, Any], source: str) -> Statistics:
        """Restores the result of `to_dict`. `source` names the file of the values in error messages.

        Raises:
            ConfigError: A statistic is missing, or does not have one value per dimension.
        """
        if missing := [field.name for field in fields(Statistics) if field.name not in values]:
            raise ConfigError(f"{source} has no {missing[0]}. Start a new run, which computes the statistics again.")
        names = tuple(values["names"])
        if invalid := [name for name in STATISTIC_NAMES if len(values[name]) != len(names)]:
            raise ConfigError(
                f"{source} has {len(values[invalid[0]])} values of {invalid[0]} for {len(names)} dimensions. Start a "
                f"new run, which computes the statistics again."
            )
        tensors = {name: torch.tensor(values[name], dtype=torch.float32) for name in STATISTIC_NAMES}
        return Statistics(str(values["task_set"]), names, int(values["count"]), **tensors)


def statistics_of(values: Tensor, names: Sequence[str], task_set: str) -> Statistics:
    """Computes the statistics of recorded rows.

    Args:
        values: Rows (N, D) of N steps and D dimensions.
        names: Names of the D dimensions.
        task_set: Name of the set of tasks, such as ``libero_90``.

    Raises:
        ConfigError: The data have no row, or a value is not finite.
    """
    if len(values) == 0:
        raise ConfigError(f"The demonstrations of {task_set} have no rows. Record at least one episode.")
    rows = values.double().numpy()
    invalid = ~np.isfinite(rows).all(0)
    if invalid.any():
        index = int(invalid.argmax())
        row = int((~np.isfinite(rows[:, index])).argmax())
        raise ConfigError(
            f"The demonstrations of {task_set} have {rows[row, index]} as {names[index]} in row {row}. Remove its "
            f"episode from the data."
        )
    arrays = {
        "mean": rows.mean(0),
        "std": rows.std(0),
        "min": rows.min(0),
        "max": rows.max(0),
        "q01": np.quantile(rows, 0.01, axis=0),
        "q99": np.quantile(rows, 0.99, axis=0),
    }
    tensors = {name: torch.from_numpy(value).float() for name, value in arrays.items()}
    return Statistics(task_set, tuple(names), len(rows), **tensors)
