"""`powerband bench num-envs | batch | precision | scaling`: one knob of a recipe, its values beside each other.

    powerband bench num-envs snakes algo=ddpg values=1,4,16 seconds=5 rounds=3 plot=num_envs.png

What is no option of the benchmark goes to the recipe, as after ``powerband train``. Sizes are over all ranks, so
`scaling` is strong scaling: the same work shared by more ranks; ``weak=true`` gives every rank the whole size.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from powerband.bench.harness import Configure, header, interleaved, measure, options, result, setting
from powerband.bench.plot import save_plot
from powerband.core.config import ConfigError
from powerband.core.device import cores


@dataclass(frozen=True)
class Options:
    values: tuple[str, ...] = ()
    """Values of the knob; by default a quarter, a half, once, twice and four times what the recipe has."""
    seconds: float = 5.0
    """Seconds of a measurement, after the first updates."""
    rounds: int = 3
    """Measurements of each value."""
    plot: str = ""
    """PNG to draw into."""

    def __post_init__(self) -> None:
        if self.seconds <= 0 or self.rounds < 1:
            raise ConfigError(
                f"seconds={self.seconds}, rounds={self.rounds}: write seconds above 0 and rounds=1 or more."
            )


@dataclass(frozen=True)
class ScalingOptions(Options):
    weak: bool = False
    """Every rank has the recipe's whole num_envs and batch, instead of its share of them."""


def num_envs(words: list[str], configure: Configure) -> dict[str, Any]:
    """Environments stepped together."""
    return _turn("num-envs", "num_envs", words or ["gym"], configure, _around)


def batch(words: list[str], configure: Configure) -> dict[str, Any]:
    """Transitions of an update: of algorithms with a replay, and of mini-batches that are said in rows."""
    words = words or ["gym"]
    rest = _with_recipe(options(Options, words, "powerband bench batch")[1])
    in_rows = _size(configure, rest, "minibatch_rows")
    return _turn("batch", "minibatch_rows" if in_rows else "global_batch_size", words, configure, _around)


def precision(words: list[str], configure: Configure) -> dict[str, Any]:
    """Arithmetic of the networks."""
    return _turn("precision", "precision", words or ["gym"], configure, lambda _: _precisions())


def scaling(words: list[str], configure: Configure) -> dict[str, Any]:
    """Ranks of one machine: GPUs where there are some, else processes."""
    config, rest = options(ScalingOptions, words, "powerband bench scaling")
    rest = _with_recipe(rest)
    gpus = _gpus()
    ranks = [int(value) for value in config.values] or list(range(1, (gpus or cores()) + 1))
    where = [] if gpus else ["gpus=none"]
    sizes = {knob: _size(configure, rest, knob) for knob in ("num_envs", "global_batch_size")} if config.weak else {}
    cases = {}
    for count in ranks:
        grown = [f"{knob}={size * count}" for knob, size in sizes.items() if size]
        case = [*rest, *where, f"nproc={count}", *grown]
        recipe, _, resolved = configure(case[0], case[1:])
        if hasattr(recipe, "check"):
            recipe.check(resolved.config, count)
        cases[f"{count} rank{'s' if count > 1 else ''}"] = partial(measure, case, config.seconds)
    header("scaling", rest, config.rounds, config.seconds)
    rows = interleaved(cases, config.rounds)
    for row, count in zip(rows, ranks, strict=True):
        row["ranks"] = count
        row["seconds_per_million_steps"] = 1e6 / row["steps_per_s"]
        row["efficiency"] = row["steps_per_s"] / rows[0]["steps_per_s"] * ranks[0] / count
        print(f"{row['case']}: {row['efficiency']:.0%} of what {ranks[0]} would be, times {count / ranks[0]:g}")
    return _done("scaling", config, rest, rows)


def _turn(bench: str, knob: str, words: list[str], configure: Configure, values: Any) -> dict[str, Any]:
    """Measures the values of one knob of a recipe; every value is checked before the first is run."""
    config, rest = options(Options, words, f"powerband bench {bench}")
    rest = _with_recipe(rest)
    trial = config.values[0] if config.values else _trial(knob)
    path, own = setting(configure, rest, knob, trial)
    chosen = list(config.values) or [str(value) for value in values(own)]
    for value in chosen:
        configure(rest[0], [*rest[1:], f"{path}={value}"])
    header(bench, rest, config.rounds, config.seconds)
    cases = {value: partial(measure, [*rest, f"{path}={value}"], config.seconds) for value in chosen}
    rows = interleaved(cases, config.rounds)
    return _done(bench, config, rest, [{**row, path: row["case"]} for row in rows])


def _done(bench: str, config: Any, words: list[str], rows: list[dict[str, Any]]) -> dict[str, Any]:
    found = result(bench, config, words, rows)
    if config.plot:
        print(f"plot: {save_plot(found, Path(config.plot))}")
    return found


def _with_recipe(words: list[str]) -> list[str]:
    """The recipe is gym where none is named."""
    return words if words and "=" not in words[0] and not words[0].startswith("-") else ["gym", *words]


def _around(value: int) -> list[int]:
    return sorted({max(1, int(value * factor)) for factor in (0.25, 0.5, 1, 2, 4)})


def _trial(knob: str) -> str:
    return "fp32" if knob == "precision" else "1"


def _precisions() -> list[str]:
    return ["fp32", "bf16", "fp16"] if _gpus() else ["fp32", "bf16"]


def _size(configure: Configure, words: list[str], knob: str) -> int:
    """What a recipe's own size is; 0 where its algorithm has no such size."""
    try:
        return int(setting(configure, words, knob, "1")[1])
    except ConfigError:
        return 0


def _gpus() -> int:
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0
