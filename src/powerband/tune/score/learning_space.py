"""Learning space: the settings that a search for the time to a score may change, as factors on their present values.

Whole numbers change by powers of two, so that mini-batches keep dividing the rollout. A setting that the user wrote on
the command line is fixed. This file knows the settings by their plain names, for any recipe with the usual loops.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from powerband.core.errors import ConfigError
from powerband.core.recipe import Recipe
from powerband.tune.knobs import Knobs, replaced

Params = Mapping[str, Any]
"""Name of a dimension -> its coordinate: an exponent of two, a factor, or a choice."""
Values = dict[str, Any]
"""Plain name of a setting -> its value."""
FINEST_HORIZON = 0.9999
"""Largest discount factor."""


class Suggests(Protocol):
    """Interface of an Optuna trial, with the methods that let the sampler choose the values of a trial."""

    def suggest_int(self, name: str, low: int, high: int) -> int: ...
    def suggest_float(self, name: str, low: float, high: float, *, log: bool) -> float: ...
    def suggest_categorical(self, name: str, choices: list[Any]) -> Any: ...


@dataclass(frozen=True)
class Dimension:
    """One dimension of the learning space: a setting, or a group of settings, that is scaled by a common factor.

    The coordinate in this dimension is the factor itself if `continuous`; otherwise it is the exponent of a power of
    two.

    Attributes:
        name: Name of the dimension.
        needs: Plain names of the scaled settings, such as ``num_envs``. At least one of them must exist.
        values: Function ``(knobs, factor) -> {plain name: new value}``; empty if the factor has no effect.
        low, high: Range of the coordinate.
        promising: Coordinate that a search tries early; None if there is none.
        continuous: Whether the factor may be any number between `low` and `high`, on a logarithmic scale.
    """

    name: str
    needs: tuple[str, ...]
    values: Callable[[Knobs, float], Values]
    low: float
    high: float
    promising: float | None = None
    continuous: bool = False

    @property
    def present(self) -> float:
        """Coordinate of the present value: factor 1 or exponent 0."""
        return 1.0 if self.continuous else 0

    def factor(self, coordinate: float) -> float:
        """Returns the factor on the present value that belongs to a coordinate."""
        return coordinate if self.continuous else 2.0**coordinate


def _whole(name: str) -> Callable[[Knobs, float], Values]:
    """Multiplies a whole number; a result below 1 has no effect."""

    def values(knobs: Knobs, factor: float) -> Values:
        value = knobs.get(name) * factor
        return {name: round(value)} if value >= 1 else {}

    return values


def _update_ratio(knobs: Knobs, factor: float) -> Values:
    """Multiplies the updates per transition; whole numbers of updates per interval stay whole."""
    interval = knobs.get("update_interval")
    updates = (knobs.get("updates_per_interval") or interval) * factor
    if updates < 1:
        return {"update_interval": round(interval / updates), "updates_per_interval": 1}
    return {"update_interval": interval, "updates_per_interval": round(updates)}


def _learning_rates(knobs: Knobs, factor: float) -> Values:
    """Multiplies all learning rates of one section; sections of other stages may have rates too."""
    rates = {
        name: knobs.get(name)
        for name in knobs.paths
        if (name == "lr" or name.endswith("_lr")) and isinstance(knobs.get(name), float)
    }
    first = min(rates, key=lambda name: name == "lr", default="")  # actor_lr and critic_lr before lr
    section = knobs.paths[first].rpartition(".")[0] if rates else ""
    own = {name: rate for name, rate in rates.items() if knobs.paths[name].rpartition(".")[0] == section}
    return {name: float(f"{rate * factor:.4g}") for name, rate in own.items()}


def _widths(knobs: Knobs, factor: float) -> Values:
    """Multiplies the widths of the hidden layers."""
    name = "hidden" if "hidden" in knobs else "width"
    width = knobs.get(name)
    if isinstance(width, tuple):
        return {name: tuple(max(1, round(each * factor)) for each in width)}
    return {name: max(1, round(width * factor))}


def _discount(knobs: Knobs, factor: float) -> Values:
    """Multiplies the horizon 1 / (1 - gamma)."""
    gamma = 1 - (1 - knobs.get("gamma")) / factor
    return {"gamma": round(gamma, 5)} if 0 < gamma <= FINEST_HORIZON else {}


def _switch(name: str) -> Callable[[Knobs, float], Values]:
    """Switches a setting on or off; the coordinate 1 means the opposite of the present value."""

    def values(knobs: Knobs, factor: float) -> Values:
        return {name: not knobs.get(name)} if factor == 2 else {}

    return values


def _action_noise(knobs: Knobs, factor: float) -> Values:
    """Switches the exploration noise; the coordinate 1 means the other one of white and pink.

    PPO is left out, because it has no such noise with discrete actions, which the configuration does not show.
    """
    if factor != 2 or knobs.paths["action_noise"].startswith("ppo."):
        return {}
    return {"action_noise": "white" if knobs.get("action_noise") == "pink" else "pink"}


DIMENSIONS = (
    Dimension("learning_rate", ("actor_lr", "lr", "critic_lr"), _learning_rates, 0.25, 4.0, 2.0, continuous=True),
    Dimension("num_envs", ("num_envs",), _whole("num_envs"), -2, 2, 1),
    Dimension("num_steps", ("num_steps",), _whole("num_steps"), -2, 2, -1),
    Dimension("epochs", ("epochs",), _whole("epochs"), -1, 1, -1),
    Dimension("minibatches", ("minibatches",), _whole("minibatches"), -2, 2, -1),
    Dimension("minibatch_rows", ("minibatch_rows",), _whole("minibatch_rows"), -2, 2, 1),
    Dimension("update_ratio", ("update_interval", "updates_per_interval"), _update_ratio, -3, 1, -1),
    Dimension("batch", ("global_batch_size",), _whole("global_batch_size"), -1, 2),
    Dimension("width", ("hidden", "width"), _widths, -2, 1, -1),
    Dimension("horizon", ("gamma",), _discount, -1, 1),
    Dimension("annealing", ("anneal_lr",), _switch("anneal_lr"), 0, 1),
    Dimension("action_noise", ("action_noise",), _action_noise, 0, 1, 1),
    Dimension("layer_norm", ("layer_norm",), _switch("layer_norm"), 0, 1, 1),
)
"""All dimensions; a configuration has those whose settings it has and whose values the user has not fixed."""
NARROW: Params = {"batch": -1, "update_ratio": 1}
"""Changes that go with narrower layers: half of the batch and twice the updates."""
COMBINATIONS: tuple[Params, ...] = (
    {"width": -2, **NARROW},
    {"width": -1, **NARROW, "action_noise": 1, "layer_norm": 1},
    {"width": -2, **NARROW, "action_noise": 1},
)
"""Changes of several dimensions that a search tries early. An update of narrow layers with half of the batch takes a
fraction of the time on a CPU, so that twice as many updates are still cheap. Layer norms in the critics keep such
frequent updates stable, and pink noise explores farther."""


class LearningSpace:
    """Search space over the settings of one algorithm that change learning, such as learning rate and batch size.

    A point is a dict of coordinates: name of a dimension -> exponent of two or factor, relative to the present value.

    Args:
        recipe: Recipe of the configuration.
        stage: Name of the stage (function of the recipe) to tune, such as ``train``.
        config: Present configuration; it chooses the algorithm.
        fixed: Qualified names of the settings that must not change, such as ``run.seed``.
    """

    def __init__(self, recipe: Recipe, stage: str, config: Any, fixed: Collection[str]) -> None:
        self.recipe, self.stage, self.knobs, self.fixed = recipe, stage, Knobs(recipe, config), frozenset(fixed)
        self.dimensions: dict[str, tuple[Dimension, float, float]] = {}
        for each in DIMENSIONS:
            if not any(name in self.knobs for name in each.needs) or any(
                self.knobs.paths[name] in fixed for name in each.needs if name in self.knobs
            ):
                continue
            if self.knobs.get("graph_updates") and each.name == "update_ratio":
                continue  # a captured graph has a fixed number of updates
            low, high = self._range(each)
            if low < high:
                self.dimensions[each.name] = each, low, high

    def suggest(self, trial: Suggests, prefix: str = "") -> None:
        """Lets a trial choose a coordinate for each dimension; `prefix` is put before the names of the dimensions."""
        for name, (dimension, low, high) in self.dimensions.items():
            if dimension.continuous:
                trial.suggest_float(prefix + name, low, high, log=True)
            else:
                trial.suggest_int(prefix + name, int(low), int(high))

    def present(self) -> dict[str, Any]:
        """Returns the coordinates of the present configuration: factors 1 and exponents 0."""
        return {name: dimension.present for name, (dimension, _, _) in self.dimensions.items()}

    def promising(self) -> list[dict[str, Any]]:
        """Returns the points that a search tries early: `COMBINATIONS`, then changes of one dimension each."""
        single: list[Params] = [
            {name: dimension.promising}
            for name, (dimension, _, _) in self.dimensions.items()
            if dimension.promising is not None
        ]
        return [{**self.present(), **change} for change in (*COMBINATIONS, *single) if self._is_in_range(change)]

    def _is_in_range(self, change: Params) -> bool:
        """Returns whether the space has all dimensions of a change, and the coordinates are within their ranges."""
        ranges = {name: (low, high) for name, (_, low, high) in self.dimensions.items()}
        return all(name in ranges and ranges[name][0] <= at <= ranges[name][1] for name, at in change.items())

    def settings(self, params: Params, only: Dimension | None = None) -> dict[str, Any]:
        """Converts coordinates to the settings that they change: qualified name (``off_policy.num_envs``) -> value.

        The number of mini-batches is adjusted so that it divides the rollout, unless the user has fixed it (`check`).

        Args:
            params: Coordinates: name of a dimension, without a prefix, -> exponent of two or factor.
            only: Dimension to apply; None applies all dimensions of the space.
        """
        values: Values = {}
        for dimension in [only] if only else [each for each, _, _ in self.dimensions.values()]:
            if params.get(dimension.name, dimension.present) != dimension.present:
                values |= dimension.values(self.knobs, dimension.factor(params[dimension.name]))
        if "minibatches" in self.knobs and self.knobs.paths["minibatches"] not in self.fixed:
            wanted = values.get("minibatches", self.knobs.get("minibatches"))
            values["minibatches"] = nearest_divisor(self._rows(values), wanted)
        return {
            self.knobs.paths[name]: value
            for name, value in values.items()
            if value != self.knobs.get(name) and not (name == "updates_per_interval" and self._is_same_ratio(values))
        }

    def check(self, settings: Mapping[str, Any]) -> None:
        """Refuses settings (qualified name -> value) whose rollout the user's mini-batches do not divide.

        Raises:
            ConfigError: The user has fixed the number of mini-batches, and it does not divide the rollout.
        """
        path = self.knobs.paths.get("minibatches")
        if path is None or path not in self.fixed:
            return
        values = {name: settings[own] for name, own in self.knobs.paths.items() if own in settings}
        rows, count = self._rows(values), self.knobs.get("minibatches")
        if rows % count:
            raise ConfigError(f"minibatches={count}, which you fixed, does not divide the {rows} rows of this rollout.")

    def _rows(self, values: Values) -> int:
        """Returns the rows of a rollout that mini-batches divide, with changed settings; whole sequences with a GRU."""
        envs = values.get("num_envs", self.knobs.get("num_envs"))
        return envs * (1 if self.knobs.get("gru") else values.get("num_steps", self.knobs.get("num_steps")))

    def _is_same_ratio(self, values: Values) -> bool:
        interval, updates = self.knobs.get("update_interval"), self.knobs.get("updates_per_interval")
        return (values["update_interval"], values["updates_per_interval"]) == (interval, updates or interval)

    def _range(self, dimension: Dimension) -> tuple[float, float]:
        """Returns the largest range of coordinates around the present one that the recipe accepts."""
        if dimension.continuous:
            has_effect = bool(dimension.values(self.knobs, 2.0))
            return (dimension.low, dimension.high) if has_effect else (1.0, 1.0)
        low = high = 0
        while low > dimension.low and self._is_valid(dimension, low - 1):
            low -= 1
        while high < dimension.high and self._is_valid(dimension, high + 1):
            high += 1
        return low, high

    def _is_valid(self, dimension: Dimension, exponent: int) -> bool:
        if not dimension.values(self.knobs, dimension.factor(exponent)):
            return False
        config = self.knobs.config
        try:
            settings = self.settings({dimension.name: exponent}, dimension)
            self.check(settings)
            for path, value in settings.items():
                config = replaced(config, path, value)
            self.recipe.check_sizes(self.recipe.finalized(config, self.stage), config.run.nproc)
        except (ConfigError, ValueError):
            return False
        return True


def nearest_divisor(rows: int, wanted: int) -> int:
    """Returns the divisor of `rows` whose ratio to `wanted` is closest to 1."""
    small = [count for count in range(1, math.isqrt(rows) + 1) if rows % count == 0]
    divisors = [*small, *(rows // count for count in reversed(small))]
    return min(divisors, key=lambda count: abs(math.log(count / wanted)))
