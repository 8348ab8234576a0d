"""CoordinateRanges: collects the range of each coordinate of a search space, as Optuna stores it with a trial."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class CoordinateRanges:
    """Stands in for a trial of Optuna, and collects the range of each coordinate around a given point.

    Args:
        optuna: The package.
        params: The point, as coordinates.

    Attributes:
        found: Name of a coordinate -> its range, as a distribution of Optuna.
    """

    def __init__(self, optuna: Any, params: Mapping[str, Any]) -> None:
        self.distributions, self.params = optuna.distributions, params
        self.found: dict[str, Any] = {}

    def suggest_int(self, name: str, low: int, high: int) -> int:
        self.found[name] = self.distributions.IntDistribution(low, high)
        return self.params.get(name, low)

    def suggest_float(self, name: str, low: float, high: float, *, log: bool) -> float:
        self.found[name] = self.distributions.FloatDistribution(low, high, log=log)
        return self.params.get(name, low)

    def suggest_categorical(self, name: str, choices: list[Any]) -> Any:
        self.found[name] = self.distributions.CategoricalDistribution(choices)
        return self.params.get(name, choices[0])
