"""Recipe: the definition of one task, as one frozen value.

A recipe package exports ``RECIPE``. Functions and classes that need torch are named by strings, ``module:name``, and
are imported when they are used, so that listing recipes and printing their help stays fast.
"""

from __future__ import annotations

import dataclasses
import importlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from powerband.core.config.old_options import OldOptions
from powerband.core.errors import ConfigError

Loop = Literal["off_policy", "on_policy", "offline"]
Reference = str | Callable[..., Any]
"""A callable, or the string ``module:name`` that imports it."""


def load_object(reference: Reference) -> Any:
    """The object that `reference` names: imports a string ``module:name``, and returns a callable unchanged."""
    if not isinstance(reference, str):
        return reference
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)


@dataclass(frozen=True)
class Algorithm:
    """One algorithm of a recipe: learner, settings and training loop. `Recipe.algorithms` lists them by name.

    Attributes:
        learner: Class of the learner as ``module:Class``.
        settings: Default settings of the algorithm, a frozen dataclass.
        loop: Name of the training loop; the configuration section of the same name holds the sizes of the loop.
        section: Name of the configuration section of `settings`; empty means the name of the algorithm.
        also: Names of other sections that the algorithm reads.
    """

    learner: str
    settings: Any
    loop: Loop
    section: str = ""
    also: tuple[str, ...] = ()


@dataclass(frozen=True)
class Recipe:
    """One task: its configuration, stages, algorithms and evaluation.

    Functions may be given as strings ``module:name``. Optional functions are None if the recipe has none.

    Attributes:
        name: Name on the command line.
        summary: One line for ``powerband list``.
        Config: Frozen dataclass of all settings, with a field ``run`` of type `RunConfig`. The field ``algo`` and
            the sections of `algorithms` are added if they are missing.
        stages: Name of a stage, such as train -> function ``(config, run) -> dict of results or None``.
        interactive: Names of stages that a person uses, such as a page in the browser, and that train nothing. Their
            function is ``(config) -> None``: they have no `Run`, and leave no run folder.
        algorithms: Name -> `Algorithm`, the choices of ``algo``; the first is the default. Empty if the recipe has one
            algorithm only.
        default_stage: Stage that runs if the command line names no stage; empty means the first.
        variants: Name of a variant, which is a named group of settings -> settings by qualified name.
        old_names: Old setting -> new setting, or (new setting, note); (None, note) rejects it with the note, ("", note)
            drops it with a notice.
        old_arguments: Old ``name=value`` -> new ``name=value``, a stage, or "" if it is obsolete; or (one of these,
            note).
        combined_options: ``(flags) -> (flags, notices)`` for old options that have a meaning only together. None if the
            recipe has none.
        implied_algo: Option of the guide, as the user writes it -> algorithm that it implies if the user names none.
        task_settings: ``(config) -> settings by qualified name`` that suit the task and the algorithm of a
            configuration; every other source overrides them. None if the recipe has none.
        config_variable: Environment variable with the path of a configuration file; empty if the recipe reads none.
        finalize: ``(config, stage) -> config`` that resolves every automatic choice.
        notices: ``(config) -> list of messages`` for the user, called before `finalize`.
        imports: ``(config) -> qualified option -> names``: the names ``module:Name`` in a configuration whose use
            imports a module. A stored run needs ``--trust`` for them. None if no option names a module.
        check: ``(config, world_size) -> None``; raises ConfigError for invalid sizes.
        task: Option that names the task, such as ``env_id``; tuned presets are valid for its value only. Empty for a
            recipe with one task.
        score: Name of the result of the evaluation during training (`RunHooks.evaluate`) that measures the policy;
            larger is better. ``powerband tune objective=score`` needs it, and ``checkpoints/best`` is the checkpoint
            with its largest value. Empty without such a result.
        held_out_seeds: Seeds of the episodes of evaluations, with which no run may train. `refuse_held_out` compares
            them with the seed of a run. Empty if an evaluation has episodes of its own for every seed.
        Evaluation: Frozen dataclass of the options of ``powerband eval``, or a reference to it.
        old_evaluation_names: As `old_names`, for the options of ``powerband eval``.
        finalize_evaluation: ``(config of the run, options) -> (options, messages for the user)``; None changes nothing.
        evaluate: ``(config, run_folder, options) -> list of result rows``; None if the recipe has no evaluation.
        build_learner: ``(config, context) -> (learner, env_spec, loop_settings)`` without environments. ``powerband
            doctor`` and the contract tests use it.
    """

    name: str
    summary: str
    Config: type
    stages: Mapping[str, Reference]
    interactive: tuple[str, ...] = ()
    algorithms: Mapping[str, Algorithm] = field(default_factory=dict)
    default_stage: str = ""
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    old_names: Mapping[str, Any] = field(default_factory=dict)
    old_arguments: Mapping[str, Any] = field(default_factory=dict)
    combined_options: Reference | None = None
    implied_algo: Mapping[str, str] = field(default_factory=dict)
    config_variable: str = ""
    task_settings: Reference | None = None
    finalize: Reference | None = None
    notices: Reference | None = None
    imports: Reference | None = None
    check: Reference | None = None
    task: str = ""
    score: str = ""
    held_out_seeds: tuple[int, ...] = ()
    Evaluation: Reference | None = None
    old_evaluation_names: Mapping[str, Any] = field(default_factory=dict)
    finalize_evaluation: Reference | None = None
    evaluate: Reference | None = None
    build_learner: Reference | None = None

    def __post_init__(self) -> None:
        assert self.stages, f"recipe {self.name} has no stage"
        object.__setattr__(self, "default_stage", self.default_stage or next(iter(self.stages)))
        assert self.default_stage in self.stages, self.default_stage
        assert set(self.interactive) <= {*self.stages} - {self.default_stage}, self.interactive
        object.__setattr__(self, "Config", with_algorithms(self.Config, self.algorithms))
        assert not self.task or self.task in {each.name for each in dataclasses.fields(self.Config)}, self.task

    @property
    def sections(self) -> dict[str, tuple[str, ...]]:
        """Algorithm -> names of the configuration sections that it reads."""
        return {name: (row.section or name, row.loop, *row.also) for name, row in self.algorithms.items()}

    @property
    def old_options(self) -> OldOptions:
        """Options of earlier versions and of the guide, for `resolve`."""
        combined = None if self.combined_options is None else load_object(self.combined_options)
        return OldOptions(self.old_names, self.old_arguments, combined, self.implied_algo)

    def algorithm_of(self, config: Any) -> str:
        """Name of the algorithm that a configuration chooses; empty if the recipe has one algorithm only."""
        return config.algo if self.algorithms else ""

    def task_of(self, config: Any) -> str:
        """Name of the task that a configuration chooses; empty for a recipe with one task."""
        return str(getattr(config, self.task)) if self.task else ""

    def choices_of(self, config: Any) -> str:
        """The recipe with the task and the algorithm that a configuration chooses, for the start banner."""
        task, algorithm = self.task_of(config), self.algorithm_of(config)
        parts = [self.name, f"{self.task}={task}" if task else "", f"algo={algorithm}" if algorithm else ""]
        return ", ".join(filter(None, parts))

    def run_stage(self, stage: str, config: Any, run: Any) -> dict[str, Any]:
        """Runs the function of one stage, such as train.

        Args:
            stage: Name of the stage.
            config: Configuration of the recipe.
            run: The training run, a `Run`.

        Returns:
            Results of the stage by name; empty if the stage returns none.

        Raises:
            ConfigError: The stage is interactive, so that it has no run.
        """
        if stage in self.interactive:
            raise ConfigError(
                f"Stage {stage} of {self.name} trains nothing, so there is nothing to measure. Use it with powerband "
                f"train {self.name} {stage}, or name another stage."
            )
        return load_object(self.stages[stage])(config, run) or {}

    def finalized(self, config: Any, stage: str) -> Any:
        """Returns the configuration for `stage` with every automatic choice, such as auto, replaced by a value."""
        return config if self.finalize is None else load_object(self.finalize)(config, stage)

    def notices_about(self, config: Any) -> list[str]:
        """Messages for the user about a configuration, before `finalized` resolves its automatic choices."""
        return [] if self.notices is None else load_object(self.notices)(config)

    def imports_of(self, config: Any) -> dict[str, tuple[str, ...]]:
        """Qualified option -> the names ``module:Name`` in it that the use of a configuration imports."""
        return {} if self.imports is None else load_object(self.imports)(config)

    def check_sizes(self, config: Any, world_size: int) -> None:
        """Checks the sizes of a configuration, such as batch sizes, for `world_size` ranks.

        Raises:
            ConfigError: A size is invalid.
        """
        if self.check is not None:
            load_object(self.check)(config, world_size)

    def training_seeds(self, first: int) -> Iterator[int]:
        """Yields `first` and all later seeds with which a run may train, without `held_out_seeds`."""
        return (seed for seed in itertools.count(first) if seed not in self.held_out_seeds)

    def refuse_held_out(self, seed: int, evaluated: int | None = None) -> None:
        """Refuses to train and to evaluate on the same episodes.

        Args:
            seed: Seed of the training.
            evaluated: Seed of the evaluation; None compares with `held_out_seeds`.

        Raises:
            ConfigError: The seeds are equal.
        """
        if evaluated is None and seed in self.held_out_seeds:
            seeds = ", ".join(map(str, self.held_out_seeds))
            raise ConfigError(
                f"seed={seed}: evaluations of {self.name} use the seeds {seeds}, so the run would train on their "
                f"episodes. Write another seed."
            )
        if self.held_out_seeds and seed == evaluated:
            raise ConfigError(
                f"seed={evaluated} is the seed of this run's training, so the evaluation would repeat its episodes. "
                f"Write another seed, or leave seed out."
            )


def _constant(value: Any) -> Callable[[], Any]:
    return lambda: value


def with_algorithms(config: type, algorithms: Mapping[str, Algorithm]) -> type:
    """Returns the dataclass `config` with the field ``algo`` and with the sections of `algorithms` that it lacks."""
    if not algorithms:
        return config
    declared = {each.name: each for each in dataclasses.fields(config)}
    names = tuple(algorithms)
    if "algo" in declared and declared["algo"].type == Literal[names]:
        return config  # completed already
    default = declared["algo"].default if "algo" in declared else names[0]
    assert default in names, default
    help_text = {"help": f"Algorithm: {', '.join(names)}."}
    added: list[Any] = [("algo", Literal[names], field(default=default, metadata=help_text))]
    for name, row in algorithms.items():
        section = row.section or name
        if section not in declared:
            added.append((section, type(row.settings), field(default_factory=_constant(row.settings))))
            declared[section] = added[-1][2]
    namespace = {"__module__": config.__module__, "__doc__": config.__doc__}
    return dataclasses.make_dataclass(config.__name__, added, bases=(config,), frozen=True, namespace=namespace)
