"""Configuration: variant, preset, YAML and command line become one frozen dataclass, by one path, strictly.

A schema is a frozen dataclass whose fields are values or sections (frozen dataclasses themselves). Sources are read in
the order variant, ``setup=`` preset, ``--config`` file, the configuration of a resumed run, command line; later wins.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from powerband.core.flags import (
    COMMAND_LINE,
    ConfigError,
    Flag,
    at_least,
    from_mapping,
    from_variant,
    from_words,
    from_yaml,
    parse_value,
)
from powerband.core.presets import TUNED, accept, presets, split, tuned_name
from powerband.core.run_folder import find_run
from powerband.core.schema import SOURCES, Names, fields_of

DEFAULT = "default"


@dataclass(frozen=True)
class RunConfig:
    """What every run has, whatever is trained. Sizes and counters are global: summed over ranks."""

    seed: int = 0
    """One seed for everything; streams of environments and purposes are derived from it."""
    gpus: str = "auto"
    """GPUs by index inside CUDA_VISIBLE_DEVICES, such as 0,2; all; none or cpu; cuda is the first one; auto is one GPU
    where there is one."""
    nproc: int = 1
    """Ranks on this machine; with gpus=none they are CPU ranks. Several GPUs are one rank each without this word."""
    nnodes: str = "1"
    """Machines, as torchrun counts them: 2, or 1:4 for an elastic range. More than one needs rdzv_endpoint."""
    rdzv_endpoint: str = ""
    """host:port where the machines of one run meet."""
    precision: Literal["fp32", "bf16", "fp16", "auto"] = "fp32"
    """Arithmetic of forward and backward passes; parameters stay fp32. auto is the faster of fp32 and bf16 here, by a
    measurement when a new run starts; a resume keeps what that found."""
    threads: int = 0
    """CPU threads of each rank; 0 shares all cores among the ranks of this machine."""
    overlap: bool = False
    """Run due updates while simulators in worker processes step: same updates, one step of policy lag."""
    run_dir: str = ""
    """Run folder; empty means runs/<recipe>-<variant>-<time>."""
    resume: str = ""
    """Go on with a run: its folder, a checkpoint, any file in either, or last."""
    env_steps: int = 1_000_000
    """Budget in environment steps over all ranks; 0 leaves it to the stage, where a recipe has several."""
    time_limit_s: float = 0.0
    """Seconds after which the run saves and ends; 0 is no limit."""
    log_interval: int = 0
    """Environment steps between two log lines; 0 leaves it to log_interval_s."""
    log_interval_s: float = 10.0
    """Seconds between two log lines."""
    eval_interval: int = 0
    """Environment steps between two evaluations; 0 is none."""
    save_interval: int = 0
    """Environment steps between two checkpoints; 0 saves at the end only."""
    keep_checkpoints: int = 2
    """Newest checkpoints that are kept."""
    tensorboard: bool = True
    """Write TensorBoard events beside metrics.jsonl."""
    tf32: bool = True
    """Let CUDA compute fp32 products and convolutions in TF32."""
    cudnn_benchmark: bool = True
    """Let cuDNN try its convolution algorithms on the first batch of every shape and keep the fastest."""
    cudnn_deterministic: bool = False
    """Only cuDNN algorithms that give the same bits each time; slower, and it overrules cudnn_benchmark."""
    detect_anomaly: bool = False
    """Name the operation whose gradient is not finite; slow, for looking for a fault."""
    lr_scale: Literal["none", "sqrt", "linear"] = "none"
    """Multiply learning rates by the square root of the number of ranks, by the number, or not at all; printed."""

    def __post_init__(self) -> None:
        at_least(self, threads=0, time_limit_s=0, log_interval=0, log_interval_s=0, eval_interval=0, save_interval=0)
        at_least(self, nproc=1, env_steps=0, keep_checkpoints=1)
        if not re.fullmatch(r"auto|all|none|cpu|cuda(:\d+)?|\d+(,\d+)*,?", self.gpus.replace(" ", "")):
            raise ConfigError(f"gpus={self.gpus} names no GPUs. Write gpus=0,2, gpus=all, gpus=none or gpus=auto.")
        nodes = re.fullmatch(r"(\d+)(?::(\d+))?", self.nnodes)
        if not nodes or not 1 <= int(nodes[1]) <= int(nodes[2] or nodes[1]):
            raise ConfigError(f"nnodes={self.nnodes} is no number of machines. Write nnodes=2, or nnodes=1:4.")


@dataclass(frozen=True)
class Resolved:
    """A configuration and where each of its values comes from.

    Attributes:
        config: Instance of the schema.
        sources: Source of each qualified name; "default" where nobody spoke.
        notices: What the user should be told: renamed words, words without effect.
        variant: Name of the variant, empty for none.
    """

    config: Any
    sources: dict[str, str]
    notices: tuple[str, ...] = ()
    variant: str = ""


def resolve(
    schema: type,
    words: Iterable[str] = (),
    *,
    variants: Mapping[str, Any] | None = None,
    renamed: Mapping[str, Any] | None = None,
    sections: Mapping[str, tuple[str, ...]] | None = None,
    help_with: str = "powerband list",
    recipe: str = "",
) -> Resolved:
    """Reads every source and returns the configuration.

    Args:
        schema: Frozen dataclass; every field has a default.
        words: The command line after the recipe and stage.
        variants: Variant name -> list of flags, or mapping of name to value.
        renamed: Old name -> new name, or (new name, note); (None, note) refuses the old name with the note.
        sections: Value of ``algo`` -> the sections it reads; without an entry, the section of its own name.
        help_with: Command that lists all names, for messages.
        recipe: Name of the recipe, by which ``setup=tuned`` finds its preset.

    Raises:
        ConfigError: Anything unknown, misspelt, doubled, ambiguous, of a wrong type or out of range.
    """
    given = [Flag("setup", TUNED, flag.source) if _asks_tuned(flag) else flag for flag in from_words(words)]
    named: dict[str, Flag] = {}
    for flag in given:
        if flag.name in SOURCES:
            if flag.name in named:
                raise _doubled(flag, flag.name, named[flag.name])
            named[flag.name] = flag
    text = {name: parse_value(flag, str, "...") for name, flag in named.items()}
    own = [flag for flag in given if flag.name not in SOURCES]
    names = Names(fields_of(schema), renamed, sections, help_with)

    variant = from_variant(*_variant(named["variant"], variants or {})) if "variant" in text else []
    file = from_yaml(Path(text["config"]).expanduser()) if "config" in text else []
    sources: list[list[Flag]] = [variant]
    if "setup" in text:
        names.choose_algo([*variant, *file, *own])
        setup, notice = _preset(named["setup"], recipe, names.algo)
        sources.append(setup)
        names.notices += [notice] * bool(notice)
    sources.append(file)
    targets = {old: new if isinstance(new, str) else new[0] for old, new in (renamed or {}).items()}
    resume = [flag for flag in own if targets.get(flag.name, flag.name) in ("resume", "run.resume") and flag.value]
    if resume and "run.resume" in names.fields:
        if named:
            names.notices.append(f"{', '.join(named)}: no effect beside resume, which keeps the settings of its run.")
        sources.append(_saved_flags(find_run(parse_value(resume[-1], str, "last"))))
    sources.append(own)
    config, origin = _read(schema(), names, sources)
    idle = [path for path, source in origin.items() if source == COMMAND_LINE and names.idle(path)]
    names.notices.extend(f"{path}: no effect with algo={config.algo}, which does not read it." for path in idle)
    return Resolved(config, origin, tuple(names.notices), text.get("variant", ""))


def _read(default: Any, names: Names, sources: list[list[Flag]]) -> tuple[Any, dict[str, str]]:
    """(configuration, source of each qualified name): `default` overwritten by each source in turn."""
    names.choose_algo([flag for source in sources for flag in source])
    values: dict[str, Any] = {}
    origin = dict.fromkeys(names.fields, DEFAULT)
    for source in sources:
        seen: dict[str, Flag] = {}
        for written in source:
            field, flag = names.find(written)
            if field.path in seen:
                raise _doubled(written, field.path, seen[field.path])
            seen[field.path] = written
            values[field.path] = parse_value(flag, field.kind, field.default)
            origin[field.path] = written.source
    return _replace(default, "", values, origin), origin


def _doubled(flag: Flag, path: str, before: Flag) -> ConfigError:
    return ConfigError(f"{flag}: {path} was given already, as {before}. Keep one of the two.")


def _replace(section: Any, prefix: str, values: dict[str, Any], origin: dict[str, str]) -> Any:
    """`section` with new values in it and in the sections inside it; each is built once, with all of them."""
    changes = {}
    for field in dataclasses.fields(section):
        path, old = f"{prefix}{field.name}", getattr(section, field.name)
        if dataclasses.is_dataclass(old):
            changes[field.name] = _replace(old, f"{path}.", values, origin)
        elif path in values:
            changes[field.name] = values[path]
    try:
        return dataclasses.replace(section, **changes)
    except ValueError as error:
        where = ", ".join(f"{prefix}{name}: {origin[prefix + name]}" for name in changes if prefix + name in origin)
        raise ConfigError(f"{error} ({where})" if where else str(error)) from error


def _member(flag: Flag, known: list[str], what: str) -> str:
    if flag.value not in known:
        near = get_close_matches(str(flag.value), known, n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise ConfigError(f"{flag}: there is no such name.{hint} The {what} are: {', '.join(known) or 'none'}.")
    return str(flag.value)


def _preset(flag: Flag, recipe: str, algo: str) -> tuple[list[Flag], str]:
    """Settings of the preset that ``setup=`` names, and what to tell the user about it."""
    known = presets()
    if flag.value == TUNED:
        flag = dataclasses.replace(flag, value=tuned_name(recipe, algo))
        if flag.value not in known:
            words = " ".join(filter(None, (recipe, f"algo={algo}" * bool(algo))))
            raise ConfigError(
                f"setup=tuned ({flag.source}): {words} was not tuned for this user. Write powerband tune {words} first."
            )
    path = known[_member(flag, list(known), "presets")]
    settings, header = split(from_yaml(path))
    return settings, accept(header, path, recipe, algo) if header else ""


def _asks_tuned(flag: Flag) -> bool:
    """True for ``--tuned`` and ``tuned=true``."""
    return flag.name == TUNED and (flag.value is None or parse_value(flag, bool, True))


def _variant(flag: Flag, known: Mapping[str, Any]) -> tuple[Any, str]:
    name = _member(flag, list(known), "variants")
    return known[name], name


# -- saved configurations -----------------------------------------------------------------------------------------


def _saved_flags(folder: Path) -> list[Flag]:
    """Flags of a saved configuration; where it lies and what it was resumed from are not its own to say."""
    path = folder / "config.json"
    flags = from_mapping(_mapping(path.read_text(encoding="utf-8"), str(path)), str(path))
    return [flag for flag in flags if flag.name not in ("run.resume", "run.run_dir")]


def _mapping(text: str, source: str) -> dict[str, Any]:
    try:
        saved = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{source} is not valid JSON ({error}). Name another run or checkpoint.") from error
    if not isinstance(saved, dict):
        raise ConfigError(f"{source} holds no mapping of settings. Name another run or checkpoint.")
    return saved


def to_json(config: Any) -> str:
    """`config` as JSON text that `from_json` reads back to an equal one."""
    return json.dumps(to_dict(config), indent=2, allow_nan=False)


def to_dict(value: Any) -> Any:
    """`value` as JSON knows it: sections are objects, tuples lists, infinities the texts inf and -inf."""
    if dataclasses.is_dataclass(value):
        return {field.name: to_dict(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, (tuple, list)):
        return [to_dict(part) for part in value]
    return str(value) if isinstance(value, float) and math.isinf(value) else value


def from_json(schema: type, text: str, source: str = "config.json") -> Any:
    """An instance of `schema` from what `to_json` wrote; settings that the text lacks keep their defaults.

    Raises:
        ConfigError: As `resolve`.
    """
    names = Names(fields_of(schema))
    return _read(schema(), names, [from_mapping(_mapping(text, source), source)])[0]
