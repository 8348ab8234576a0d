"""Setting space: search space of ``tune objective=score``, over the algorithm and the settings of each algorithm.

A point is a dict of coordinates, which Optuna calls "params": name of a dimension -> value. A setting is qualified
name -> value, in addition to what the user wrote. The layout is a group of settings that change only the speed, such as
threads and workers. The precision is a dimension of its own, because narrow networks are faster in fp32 and wide ones
in bf16 on many CPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from powerband.core.config.flags import COMMAND_LINE
from powerband.core.config.resolve import ResolvedConfig
from powerband.core.errors import ConfigError
from powerband.core.rank_context import RankContext
from powerband.core.recipe import Recipe, load_object
from powerband.tune.knobs import replaced
from powerband.tune.score.learning_space import LearningSpace, Params, Suggests

Configure = Callable[[str, list[str]], tuple[Recipe, str, ResolvedConfig]]
"""``(recipe name, arguments) -> (recipe, stage, configuration)``, as the command line resolves them."""
ALGO, LAYOUT, PRECISION = "algo", "layout", "precision"
"""Dimensions besides those of the algorithms."""
PRESENT, FASTER = "present", "faster"
"""Values of the dimensions `LAYOUT` and `PRECISION`."""


class SettingSpace:
    """Search space over algorithms, the settings of each algorithm, and a group of settings that change only the speed.

    A point is a dict of coordinates, which Optuna calls params: name of a dimension -> value.

    Args:
        recipe: Recipe to tune.
        stage: Name of the stage (function of the recipe) to tune, such as ``train``.
        configs: Algorithm -> configuration that chooses it and is otherwise as the user wrote it; the present algorithm
            first. The only key is "" for a recipe with one algorithm.
        fixed: Qualified names of the settings that must not change, such as ``run.seed``.
        layout: Qualified name -> value of settings, such as threads, that make training faster on this machine and
            leave learning unchanged. A trial uses all of them or none, and the precision or not.
    """

    def __init__(
        self,
        recipe: Recipe,
        stage: str,
        configs: Mapping[str, Any],
        fixed: Sequence[str],
        layout: Mapping[str, Any] | None = None,
    ) -> None:
        self.recipe, self.stage, self.configs = recipe, stage, dict(configs)
        self.faster: dict[str, dict[str, Any]] = {}
        for name, value in (layout or {}).items():
            if name not in fixed:
                dimension = PRECISION if name.rpartition(".")[2] == "precision" else LAYOUT
                self.faster.setdefault(dimension, {})[name] = value
        self.spaces = {algo: LearningSpace(recipe, stage, config, fixed) for algo, config in configs.items()}
        self.algorithms = list(self.configs)

    def suggest(self, trial: Suggests) -> None:
        """Lets a trial choose all coordinates: algorithm, layout, precision, and the dimensions of the algorithm."""
        algo = self.algorithms[0]
        if len(self.algorithms) > 1:
            algo = trial.suggest_categorical(ALGO, self.algorithms)
        for dimension in self.faster:
            trial.suggest_categorical(dimension, [PRESENT, FASTER])
        self.spaces[algo].suggest(trial, self._prefix(algo))

    def present(self) -> dict[str, Any]:
        """Returns the coordinates of the settings that the user wrote."""
        return self._params(self.algorithms[0], self.spaces[self.algorithms[0]].present(), faster=())

    def first(self) -> list[dict[str, Any]]:
        """Returns the points to try before the sampler chooses any.

        They are the present settings with the faster layout and precision, the other algorithms, and then promising
        changes (`LearningSpace.promising`). Another width is tried with the present precision, too.
        """
        own, *others = self.algorithms
        present = self.spaces[own].present()
        firsts = [self._params(own, present, self.faster)] if self.faster else []
        firsts += [self._params(algo, self.spaces[algo].present(), self.faster) for algo in others]
        for params in self.spaces[own].promising():
            firsts.append(self._params(own, params, self.faster))
            if PRECISION in self.faster and params.get("width") != present.get("width"):
                firsts.append(self._params(own, params, self.faster.keys() - {PRECISION}))
        return firsts

    def settings(self, params: Params) -> dict[str, Any]:
        """Converts coordinates to the settings that they change: qualified name, such as ``run.threads``, -> value.

        The faster layout and precision are left out if the recipe refuses them together with the other settings.
        """
        algo = params.get(ALGO, self.algorithms[0])
        prefix = self._prefix(algo)
        own = {name.removeprefix(prefix): value for name, value in params.items() if name.startswith(prefix)}
        chosen = self.spaces[algo].settings(own)
        for dimension, faster in self.faster.items():
            if params.get(dimension) == FASTER and self._is_valid(algo, {**chosen, **faster}):
                chosen |= faster
        return ({ALGO: algo} if algo != self.algorithms[0] else {}) | chosen

    def config(self, params: Params) -> Any:
        """Converts coordinates to a complete configuration.

        Raises:
            ConfigError, ValueError: The recipe refuses the settings.
        """
        algo = params.get(ALGO, self.algorithms[0])
        return self._config(algo, {k: v for k, v in self.settings(params).items() if k != ALGO})

    def _config(self, algo: str, settings: Mapping[str, Any]) -> Any:
        self.spaces[algo].check(settings)
        config = self.configs[algo]
        for path, value in settings.items():
            config = replaced(config, path, value)
        self.recipe.check_sizes(self.recipe.finalized(config, self.stage), config.run.nproc)
        return config

    def _is_valid(self, algo: str, settings: Mapping[str, Any]) -> bool:
        try:
            self._config(algo, settings)
        except (ConfigError, ValueError):
            return False
        return True

    def _params(self, algo: str, params: Mapping[str, Any], faster: Collection[str]) -> dict[str, Any]:
        """Returns all coordinates of a point: those of its algorithm, and the dimensions whose value is `FASTER`."""
        chosen: dict[str, Any] = {ALGO: algo} if len(self.algorithms) > 1 else {}
        chosen |= {dimension: FASTER if dimension in faster else PRESENT for dimension in self.faster}
        return chosen | {self._prefix(algo) + name: value for name, value in params.items()}

    def _prefix(self, algo: str) -> str:
        return f"{algo}." if len(self.algorithms) > 1 else ""


def fixed_settings(resolved: ResolvedConfig) -> list[str]:
    """Returns the qualified names of the settings that the user wrote on the command line."""
    return [path for path, source in resolved.sources.items() if source == COMMAND_LINE]


def usable_algorithms(
    recipe: Recipe, stage: str, resolved: ResolvedConfig, arguments: list[str], configure: Configure
) -> dict[str, Any]:
    """Finds the algorithms of a recipe that support the observation and action spaces of the task.

    An algorithm is supported if its learner can be built. If the user wrote ``algo=`` on the command line, only this
    algorithm is returned.

    Args:
        recipe: Recipe to tune.
        stage: Name of the stage (function of the recipe) to tune, such as ``train``.
        resolved: Present configuration.
        arguments: Command line arguments of the user after the recipe.
        configure: Function ``(recipe name, arguments) -> (recipe, stage, configuration)``, as the command line does it.

    Returns:
        Algorithm -> its configuration; the present algorithm first.
    """
    present = recipe.algorithm_of(resolved.config)
    configs = {present: resolved.config}
    if recipe.build_learner is None or resolved.sources.get(ALGO) == COMMAND_LINE:
        return configs
    for algo in recipe.algorithms:
        if algo == present:
            continue
        try:
            config = configure(recipe.name, [*arguments, f"algo={algo}"])[2].config
            load_object(recipe.build_learner)(config, RankContext.single())
        except (ConfigError, ValueError, TypeError, AttributeError, AssertionError):
            continue  # it does not support these spaces or settings
        configs[algo] = config
    return configs
