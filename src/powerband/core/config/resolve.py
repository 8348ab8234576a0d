"""Configuration: resolves variant, preset, YAML and command line into one frozen dataclass, refusing invalid options.

A schema is a frozen dataclass whose fields are values or sections, which are frozen dataclasses too. Sources are read
in the order settings of the task, variant, ``setup=`` preset, ``--config`` file, configuration of a resumed run,
command line. A later source overrides an earlier one.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from powerband.core.config.flags import (
    COMMAND_LINE,
    Flag,
    from_arguments,
    from_mapping,
    from_variant,
    from_yaml,
)
from powerband.core.config.old_options import SOURCES, OldOptions
from powerband.core.config.presets import (
    OBJECTIVES,
    TUNED,
    TunedKey,
    check_tuned_preset,
    presets,
    split_tuned_section,
    user_presets,
)
from powerband.core.config.saved import named_run, refuse_other_recipe, saved_flags, saved_mapping, saved_text
from powerband.core.config.schema import FieldLookup, fields_of
from powerband.core.config.texts import shortened, some_of
from powerband.core.config.values import parse_value
from powerband.core.errors import ConfigError

DEFAULT = "default"


@dataclass(frozen=True)
class ResolvedConfig:
    """A configuration and the source of each of its values.

    Attributes:
        config: Instance of the configuration dataclass.
        sources: Qualified name of a setting, such as ``run.seed`` -> its source, such as ``command line``; "default"
            if no source sets it.
        notices: Messages for the user: renamed options, options without effect.
        variant: Name of the variant (a named group of settings); empty if no variant was chosen.
        file: Path of the file of the option ``config``; empty without one.
        stage: Stage that an old option selects; empty if none does.
    """

    config: Any
    sources: dict[str, str]
    notices: tuple[str, ...] = ()
    variant: str = ""
    file: str = ""
    stage: str = ""


def resolve(
    schema: type,
    arguments: Iterable[str] = (),
    *,
    variants: Mapping[str, Any] | None = None,
    old: OldOptions | None = None,
    sections: Mapping[str, tuple[str, ...]] | None = None,
    help_command: str = "powerband list",
    recipe: str = "",
    task_settings: Callable[[Any], Mapping[str, Any]] | None = None,
    task: str = "",
    stage: str = "",
    resumed: Callable[[str], str] | None = None,
) -> ResolvedConfig:
    """Builds a configuration from a variant, a preset, a YAML file, a resumed run and the command line.

    A later source overrides an earlier one, in this order. The command line selects the variant, the preset, the YAML
    file and the resumed run.

    Args:
        schema: Frozen dataclass; every field has a default.
        arguments: The command line after the recipe and stage.
        variants: Name of a variant -> its settings: a list of command-line arguments, or a mapping of name to value.
        old: Options of earlier versions and of other code, which are translated.
        sections: Value of ``algo`` -> sections (nested dataclasses) that the algorithm reads; by default the section
            of the same name.
        help_command: Command that lists all names, for messages.
        recipe: Name of the recipe, for ``setup=tuned``.
        task_settings: Function ``(config) -> settings by qualified name`` for the task that the configuration selects.
            Every other source overrides them. An empty mapping changes nothing.
        task: Option that selects the task of the recipe, for ``setup=tuned``; "" for a recipe with one task.
        stage: Stage of the recipe, for ``setup=tuned``; "" for the default stage.
        resumed: Function ``(value of resume) -> value in its place``, for ranks that were restarted.

    Raises:
        ConfigError: An option is unknown, ambiguous or given twice, or its value has a wrong type or is out of range.
    """
    old = old or OldOptions()
    given, old_stage, notices = old.rewrite(from_arguments(arguments))
    given = [Flag("setup", TUNED, flag.source) if _is_tuned_flag(flag) else flag for flag in given]
    named: dict[str, Flag] = {}
    for flag in given:
        if flag.name in SOURCES:
            if flag.name in named:
                raise _given_twice(flag, flag.name, named[flag.name])
            named[flag.name] = flag
    text = {name: parse_value(flag, str, "...") for name, flag in named.items()}
    own = [flag for flag in given if flag.name not in SOURCES]
    names = FieldLookup(fields_of(schema), old.names, sections, help_command)

    variant = from_variant(*_variant(named["variant"], variants or {})) if "variant" in text else []
    file, file_stage, more = old.rewrite(from_yaml(Path(text["config"])) if "config" in text else [])
    names.notices += [*notices, *more]
    sources: list[list[Flag]] = [variant]
    setup: list[Flag] = []
    implied, implied_notices = old.implied([*own, *file])
    targets = {name: new if isinstance(new, str) else new[0] for name, new in names.old_names.items()}
    if "setup" in text:
        given = [replace(flag, name=targets.get(flag.name) or flag.name) for flag in (*variant, *implied, *file, *own)]
        names.choose_algo(given)
        chosen = [flag for flag in given if task and flag.name == task]
        here = str(parse_value(chosen[-1], str, "...") if chosen else names.fields[task].default) if task else ""
        key = TunedKey(recipe, here, names.algo, task, stage=stage)
        setup, notice = _preset(named["setup"], key, any(flag.name == "algo" for flag in given))
        sources.append(setup)
        names.notices += [notice] * bool(notice)
    # The config.json of a run that was resumed names this run; a new run with its settings must not continue it.
    ignored = _resume_flags(file, targets)
    names.notices += [
        f"{flag}: no effect in a file. To continue a run, write resume= on the command line." for flag in ignored
    ]
    file = [flag for flag in file if flag not in ignored]
    sources.append(file)
    resume = _resume_flags(own, targets)
    if resume and "run.resume" in names.fields:
        if named:
            names.notices.append(f"{', '.join(named)}: no effect with resume, which keeps the settings of its run.")
        target = parse_value(resume[-1], str, "last")
        meant = target if resumed is None else resumed(target)
        folder = named_run(meant, "resume")
        if meant == "last":  # from here on this run, even if another one starts meanwhile
            meant = str(folder.absolute())
        if meant != target:
            own = [replace(flag, value=meant) if flag in resume else flag for flag in own]
        refuse_other_recipe(folder, recipe)
        sources.append(saved_flags(folder))
    sources.append(own)
    if not any(flag.name == "algo" for source in sources for flag in source):
        sources.append(implied)
        names.notices += implied_notices
    config, origin = _read(schema(), names, sources)
    known = task_settings(config) if task_settings is not None else {}
    if known:
        config, origin = _read(schema(), names, [from_mapping(known, "hyper=tuned"), *sources])
    in_preset = {names.find(flag)[0].path: flag.source for flag in setup if file}
    names.notices += [
        f"{path}: {origin[path]} overrides setup={text['setup']}."
        for path, source in in_preset.items()
        if origin[path] not in (source, COMMAND_LINE)
    ]
    unused = [path for path, source in origin.items() if source == COMMAND_LINE and names.is_unused(path)]
    names.notices.extend(f"{path}: no effect with algo={config.algo}, which does not read it." for path in unused)
    messages = tuple(dict.fromkeys(names.notices))
    return ResolvedConfig(
        config, origin, messages, text.get("variant", ""), text.get("config", ""), old_stage or file_stage
    )


def _resume_flags(flags: list[Flag], targets: Mapping[str, str | None]) -> list[Flag]:
    """Returns the flags that name a run to resume. `targets` maps old names of options to present ones."""
    return [flag for flag in flags if targets.get(flag.name, flag.name) in ("resume", "run.resume") and flag.value]


def _read(default: Any, names: FieldLookup, sources: list[list[Flag]]) -> tuple[Any, dict[str, str]]:
    """(configuration, source of each qualified name): `default` overwritten by each source in turn."""
    names.choose_algo([flag for source in sources for flag in source])
    values: dict[str, Any] = {}
    origin = dict.fromkeys(names.fields, DEFAULT)
    for source in sources:
        seen: dict[str, Flag] = {}
        for written in source:
            field, flag = names.find(written)
            if field.path in seen:
                raise _given_twice(written, field.path, seen[field.path])
            seen[field.path] = written
            values[field.path] = parse_value(flag, field.kind, field.default)
            origin[field.path] = written.source
    return _replace(default, "", values, origin), origin


def _given_twice(flag: Flag, path: str, before: Flag) -> ConfigError:
    return ConfigError(f"{flag}: {path} was given already, as {before}. Remove one of the two.")


def _replace(section: Any, prefix: str, values: dict[str, Any], origin: dict[str, str]) -> Any:
    """A copy of `section` with those of `values` (qualified name -> value) that it has; `origin` names their sources.

    `prefix` precedes the names of its fields. Each section is built once, because its checks need all new values.
    """
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
        named = set(re.findall(r"\w+", str(error)))
        given = [name for name in changes if prefix + name in values]
        sources = [f"{prefix}{name}: {origin[prefix + name]}" for name in given if name in named or len(given) == 1]
        raise ConfigError(f"{error} ({some_of(sources, 3)})" if sources else str(error)) from error


def _checked_name(flag: Flag, known: list[str]) -> str:
    if flag.value not in known:
        written = shortened(flag.value)
        near = get_close_matches(written, known, n=1)
        hint = f" Did you mean '{near[0]}'?" if near else ""
        kind = "preset" if flag.name == "setup" else flag.name
        raise ConfigError(f"{flag}: unknown {kind} '{written}'.{hint} Available: {some_of(known) or 'none'}.")
    return str(flag.value)


def _preset(flag: Flag, key: TunedKey, algo_given: bool) -> tuple[list[Flag], str]:
    """Returns (settings, notice for the user) of the preset that ``setup=`` names; the notice may be "".

    Args:
        flag: The option ``setup=``.
        key: Recipe, stage, task and algorithm of this run.
        algo_given: Whether the user chose the algorithm; otherwise a preset for the time to a score chooses it.
    """
    known = presets()
    if flag.value in OBJECTIVES:
        key = replace(key, objective=OBJECTIVES[str(flag.value)])
        earlier = user_presets() / f"{replace(key, task='').name}.yaml"
        if key.name not in known and key.task and earlier.exists():  # its header explains why it is refused
            flag = replace(flag, value=earlier.stem)
        elif key.name not in known:
            raise ConfigError(
                f"setup={flag.value} ({flag.source}): {shortened(key.arguments, 120)} has no tuned preset yet. "
                f"Run powerband tune {shortened(key.arguments, 120)} first."
            )
        else:
            flag = replace(flag, value=key.name)
    path = known[_checked_name(flag, list(known))]
    settings, header = split_tuned_section(from_yaml(path))
    if header.get("objective") == "score":
        key = replace(key, objective="score", algo=key.algo if algo_given else "")
    return settings, check_tuned_preset(header, path, key) if header else ""


def _is_tuned_flag(flag: Flag) -> bool:
    """True for ``--tuned`` and ``tuned=true``."""
    return flag.name == TUNED and (flag.value is None or parse_value(flag, bool, True))


def _variant(flag: Flag, known: Mapping[str, Any]) -> tuple[Any, str]:
    name = _checked_name(flag, list(known))
    return known[name], name


def from_json(schema: type, text: str, source: str = "config.json", old_names: Mapping[str, Any] | None = None) -> Any:
    """Reads an instance of `schema` from the text of `to_json`. Missing settings keep their defaults.

    Args:
        schema: Configuration dataclass.
        text: JSON text.
        source: Path of the file that contains the text, for messages.
        old_names: Old setting -> new setting, for configurations of earlier versions.

    Raises:
        ConfigError: The text is not a JSON object, or a setting is unknown, has a wrong type or is out of range.
    """
    lookup = FieldLookup(fields_of(schema), old_names)
    return _read(schema(), lookup, [from_mapping(saved_mapping(text, source), source)])[0]


def stored_config(run_dir: Path, schema: type, old_names: Mapping[str, Any] | None = None) -> Any:
    """Reads the configuration of the run in the folder `run_dir` as an instance of `schema`.

    Args:
        run_dir: Folder with a file ``config.json``.
        schema: Configuration dataclass, with the sections of all algorithms.
        old_names: Old setting -> new setting, for runs of earlier versions.

    Raises:
        ConfigError: The file is missing or damaged, or a setting is unknown, has a wrong type or is out of range.
    """
    file = run_dir / "config.json"
    return from_json(schema, saved_text(file), str(file), old_names)
