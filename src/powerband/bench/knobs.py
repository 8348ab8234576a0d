"""Benchmarks num-envs, batch, precision and scaling: compare several values of one setting of a recipe.

    powerband bench num-envs snakes algo=ddpg values=1,4,16 seconds=5 rounds=3 plot=num_envs.png

Arguments that are not options of the benchmark go to the recipe, as after ``powerband train``. Sizes are totals over
all ranks, so `scaling` measures strong scaling: more ranks share the same work. ``weak=true`` gives each rank the full
size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from powerband.bench.harness import (
    Configure,
    Measurement,
    interleaved,
    measure,
    options,
    print_header,
    resolve_knob,
    result,
)
from powerband.bench.plot import save_plot, try_plot
from powerband.core.config.ranges import FilePath, Range, check_ranges
from powerband.core.config.texts import shortened
from powerband.core.errors import ConfigError
from powerband.core.machine.device import cores


@dataclass(frozen=True)
@check_ranges
class Options:
    """Options of the benchmarks num-envs, batch and precision."""

    values: tuple[str, ...] = ()
    """Values of the setting; by default a quarter, half, once, twice and four times the recipe's value."""
    seconds: Annotated[float, Range(above=0, at_most=86_400)] = 5.0
    """Seconds per measurement, after the first updates."""
    rounds: Annotated[int, Range(at_least=1, at_most=10000)] = 3
    """Measurements per value."""
    plot: FilePath = ""
    """PNG file for a plot; empty for none."""


@dataclass(frozen=True)
class ScalingOptions(Options):
    """Options of the benchmark scaling."""

    weak: bool = False
    """Weak scaling: num_envs and batch of the recipe are sizes per rank instead of totals. The values are numbers of
    ranks; by default all numbers up to the number of GPUs or cores."""


OPTIONS = {"scaling": ScalingOptions}
"""Benchmark -> its options, if they are not `Options`."""


def num_envs(arguments: list[str], configure: Configure) -> dict[str, Any]:
    """Compares the throughput of several numbers of environments; returns the JSON result of `harness.result`.

    Args:
        arguments: Command line after ``powerband bench num-envs``.
        configure: Function (recipe name, arguments) -> (recipe, stage, configuration).
    """
    return _compare_values("num-envs", "num_envs", arguments or ["gym"], configure, _multiples)


def batch(arguments: list[str], configure: Configure) -> dict[str, Any]:
    """Compares the throughput of several batch sizes; returns the JSON result of `harness.result`.

    The benchmark varies the setting ``minibatch_rows`` if the recipe sets it, otherwise ``global_batch_size``.

    Args:
        arguments: Command line after ``powerband bench batch``.
        configure: Function (recipe name, arguments) -> (recipe, stage, configuration).
    """
    arguments = arguments or ["gym"]
    recipe_arguments = _with_recipe(options(Options, arguments, "powerband bench batch")[1])
    in_rows = _size(configure, recipe_arguments, "minibatch_rows")
    knob = "minibatch_rows" if in_rows else "global_batch_size"
    return _compare_values("batch", knob, arguments, configure, _multiples)


def precision(arguments: list[str], configure: Configure) -> dict[str, Any]:
    """Compares the throughput of floating point precisions; returns the JSON result of `harness.result`.

    Args:
        arguments: Command line after ``powerband bench precision``.
        configure: Function (recipe name, arguments) -> (recipe, stage, configuration).
    """
    return _compare_values("precision", "precision", arguments or ["gym"], configure, lambda _: _precisions())


def scaling(arguments: list[str], configure: Configure) -> dict[str, Any]:
    """Compares the throughput of several numbers of ranks; returns the JSON result of `harness.result`.

    Each rank has its own GPU; without a GPU, the ranks are processes on the CPU.

    Args:
        arguments: Command line after ``powerband bench scaling``.
        configure: Function (recipe name, arguments) -> (recipe, stage, configuration).
    """
    config, rest = options(ScalingOptions, arguments, "powerband bench scaling")
    rest = _with_recipe(rest)
    gpus = _gpus()
    ranks = _counts(config.values) or list(range(1, (gpus or cores()) + 1))
    device = [] if gpus else ["gpus=none"]
    sizes = {knob: _size(configure, rest, knob) for knob in ("num_envs", "global_batch_size")} if config.weak else {}
    cases: dict[str, Measurement] = {}
    for count in ranks:
        scaled_sizes = [f"{knob}={size * count}" for knob, size in sizes.items() if size]
        case = [*rest, *device, f"nproc={count}", *scaled_sizes]
        # Configured for one rank, whose sizes are not rounded: all cases must have the same sizes.
        recipe, _, resolved = configure(rest[0], [*rest[1:], *device, *scaled_sizes])
        recipe.check_sizes(resolved.config, count)
        cases[f"{count} rank{'s' if count > 1 else ''}"] = partial(measure, case, config.seconds)
    print_header("scaling", rest, config.rounds, config.seconds)
    rows = interleaved(cases, config.rounds)
    for row, count in zip(rows, ranks, strict=True):
        row["ranks"] = count
        row["seconds_per_million_steps"] = 1e6 / row["steps_per_s"]
        row["efficiency"] = row["steps_per_s"] / rows[0]["steps_per_s"] * ranks[0] / count
        print(f"{row['case']}: scaling efficiency {row['efficiency']:.0%}, compared with {ranks[0]} rank(s)")
    return _finish("scaling", config, rest, rows)


def _compare_values(
    bench: str, knob: str, arguments: list[str], configure: Configure, default_values: Callable[[Any], list[Any]]
) -> dict[str, Any]:
    """Measures several values of one setting and returns the result of `harness.result`. Invalid values fail first.

    Args:
        bench: Name of the benchmark.
        knob: Name of the setting.
        arguments: Command line after the name of the benchmark.
        configure: Function that reads the configuration of a recipe, see `harness.Configure`.
        default_values: Function from the recipe's value to the values to compare if the user names none.
    """
    config, rest = options(Options, arguments, f"powerband bench {bench}")
    rest = _with_recipe(rest)
    trial = config.values[0] if config.values else _trial(knob)
    path, recipe_value = resolve_knob(configure, rest, knob, trial)
    values = list(config.values) or [str(value) for value in default_values(recipe_value)]
    for value in values:
        configure(rest[0], [*rest[1:], f"{path}={value}"])
    print_header(bench, rest, config.rounds, config.seconds)
    cases: dict[str, Measurement] = {
        value: partial(measure, [*rest, f"{path}={value}"], config.seconds) for value in values
    }
    rows = interleaved(cases, config.rounds)
    return _finish(bench, config, rest, [{**row, path: row["case"]} for row in rows])


def _finish(bench: str, config: Any, arguments: list[str], rows: list[dict[str, Any]]) -> dict[str, Any]:
    report = result(bench, config, arguments, rows)
    try_plot(lambda: save_plot(report, Path(config.plot)), config.plot)
    return report


def _counts(values: tuple[str, ...]) -> list[int]:
    """Returns numbers of ranks, each once.

    Raises:
        ConfigError: A value is not a whole number from 1.
    """
    for value in values:
        if not value.isdecimal() or int(value) < 1:
            raise ConfigError(
                f"values={shortened(value)} is not a number of ranks. Write whole numbers from 1, as in values=1,2,4."
            )
    return list(dict.fromkeys(map(int, values)))


def _with_recipe(arguments: list[str]) -> list[str]:
    """Puts the recipe gym in front of arguments that do not begin with the name of a recipe."""
    has_recipe = arguments and "=" not in arguments[0] and not arguments[0].startswith("-")
    return arguments if has_recipe else ["gym", *arguments]


def _multiples(value: int) -> list[int]:
    return sorted({max(1, int(value * factor)) for factor in (0.25, 0.5, 1, 2, 4)})


def _trial(knob: str) -> str:
    return "fp32" if knob == "precision" else "1"


def _precisions() -> list[str]:
    return ["fp32", "bf16", "fp16"] if _gpus() else ["fp32", "bf16"]


def _size(configure: Configure, arguments: list[str], knob: str) -> int:
    """Returns a size of a recipe; 0 if its algorithm has no such size."""
    try:
        return int(resolve_knob(configure, arguments, knob, "1")[1])
    except ConfigError:
        return 0


def _gpus() -> int:
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0
