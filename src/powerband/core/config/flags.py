"""Flags: options as the user wrote them, each with its source.

Variants, YAML files, saved configurations and the command line all become lists of `Flag`. The type of the field alone
decides how `values` reads a text, whatever its source: ``lr: 1e-4`` is a number and ``compile: on`` is the text "on".
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from powerband.core.config.texts import SHOWN_PATH, shortened
from powerband.core.errors import ConfigError

COMMAND_LINE = "command line"
ASSIGNMENT = re.compile(r"[A-Za-z_][\w.-]*=")
YAML_TAGS = {f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "timestamp", "seq", "map")}


@dataclass(frozen=True)
class Flag:
    """One option as the user wrote it, before its text is converted to a value.

    Attributes:
        name: Name of the option with underscores; ``section.name`` if the user wrote the section too, such as
            ``run.seed``.
        value: The text; a tuple of texts for a list; None for a name without a value (``--overlap``).
        source: Place of the text for messages: ``file:line``, ``variant demo`` or ``command line``.
    """

    name: str
    value: str | tuple[str, ...] | None
    source: str

    def __str__(self) -> str:
        name, source = shortened(self.name), shortened(self.source, SHOWN_PATH)
        if self.value is None:
            return f"--{name} ({source})"
        text = self.value if isinstance(self.value, str) else ",".join(self.value)
        return f"{name}={shortened(text)} ({source})"


def from_arguments(arguments: Iterable[str], source: str = COMMAND_LINE) -> list[Flag]:
    """Converts command-line arguments to flags, in the same order.

    The forms are ``a.b=c``, ``--a.b c``, ``--a.b=c``, ``--a-b c``, ``--list 1 2 3`` and bare ``--flag``.

    Raises:
        ConfigError: An argument has no name.
    """
    flags: list[Flag] = []
    value: str | tuple[str, ...] | None
    arguments = list(arguments)
    position = 0
    while position < len(arguments):
        argument = arguments[position]
        position += 1
        body = argument[2:] if argument.startswith("--") else argument
        if ASSIGNMENT.match(body):
            name, value = body.split("=", 1)
            flags.append(Flag(_with_underscores(name), value, source))
        elif argument.startswith("--") and body:
            values = []
            while position < len(arguments) and not starts_flag(arguments[position]):
                values.append(arguments[position])
                position += 1
            value = values[0] if len(values) == 1 else tuple(values) or None
            flags.append(Flag(_with_underscores(body), value, source))
        else:
            word = shortened(argument)
            if argument[:1].isalpha() and argument.replace(".", "_").replace("-", "_").isidentifier():
                raise ConfigError(f"'{word}' ({source}) has no value. Write {word}=VALUE.")
            raise ConfigError(f"'{word}' ({source}) names no option. Write name=value or --name value.")
    return flags


def starts_flag(argument: str) -> bool:
    """Returns whether an argument begins a new option, ``--name`` or ``name=value``."""
    return argument.startswith("--") or bool(ASSIGNMENT.match(argument))


def _with_underscores(name: str) -> str:
    return name.replace("-", "_")


def from_mapping(mapping: Mapping[str, Any], source: str, prefix: str = "") -> list[Flag]:
    """Converts a mapping of Python or JSON values to flags, in the same order.

    Args:
        mapping: Name -> value. The keys of nested mappings become dotted names.
        source: Place of the values for messages, such as a file.
        prefix: Start of every name, such as ``run.``.
    """
    flags = []
    for key, value in mapping.items():
        name = _with_underscores(f"{prefix}{key}")
        if isinstance(value, Mapping):
            flags += from_mapping(value, source, f"{name}.")
        elif isinstance(value, (list, tuple)):
            flags.append(Flag(name, tuple(str(part) for part in value), source))
        else:
            flags.append(Flag(name, str(value), source))
    return flags


def from_variant(variant: Mapping[str, Any] | Iterable[str], name: str) -> list[Flag]:
    """Converts a variant, a named group of settings, to flags.

    Args:
        variant: Name -> value, or a list of command-line arguments.
        name: Name of the variant, for messages.
    """
    if isinstance(variant, Mapping):
        return from_mapping(variant, f"variant {name}")
    return from_arguments([part for entry in variant for part in shlex.split(entry)], f"variant {name}")


def from_yaml(path: Path) -> list[Flag]:
    """Converts a YAML file to flags, each with its line number. Nothing in the file is executed or constructed.

    Raises:
        ConfigError: The file is unreadable, is not YAML or not a mapping, or has a duplicate key, an alias, a tag or a
            nested list.
    """
    import yaml

    from powerband.core.config.plain_yaml import SafeLoaderWithoutAliases

    shown = shortened(path, SHOWN_PATH)
    try:
        root = yaml.compose(path.expanduser().read_text(encoding="utf-8"), Loader=SafeLoaderWithoutAliases)
    except RecursionError as error:
        raise ConfigError(f"{shown} is nested too deeply. Write one 'name: value' per line.") from error
    except (OSError, RuntimeError, ValueError) as error:
        problem = getattr(error, "strerror", None) or shortened(error)
        raise ConfigError(f"config={shown} cannot be read ({problem}). Name a YAML file: --config run.yaml.") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{shown}:{mark.line + 1}" if mark else shown
        problem = shortened(getattr(error, "problem", None) or error)
        raise ConfigError(f"{place} is not valid YAML: {problem}. Write one 'name: value' per line.") from error
    if root is None:
        return []
    return _from_node(root, path, "")


def _from_node(node: Any, path: Path, prefix: str) -> list[Flag]:
    import yaml

    shown = shortened(path, SHOWN_PATH)
    place = f"{shown}:{node.start_mark.line + 1}"
    if not isinstance(node, yaml.MappingNode) or node.tag not in YAML_TAGS:
        raise ConfigError(f"{place} is not a mapping. Write one 'name: value' per line.")
    flags: list[Flag] = []
    lines: dict[str, int] = {}
    for key, value in node.value:
        place = f"{shown}:{key.start_mark.line + 1}"
        if not isinstance(key, yaml.ScalarNode) or key.tag not in YAML_TAGS:
            raise ConfigError(f"{place}: a key must be a name. Write 'name: value'.")
        name = prefix + _with_underscores(key.value)
        if name in lines:
            raise ConfigError(
                f"{place}: '{shortened(name)}' is already set in line {lines[name]}. Remove one of the two lines."
            )
        lines[name] = key.start_mark.line + 1
        if isinstance(value, yaml.MappingNode):
            flags += _from_node(value, path, f"{name}.")
        elif isinstance(value, yaml.SequenceNode) and value.tag in YAML_TAGS:
            flags.append(Flag(name, tuple(_scalar(part, path) for part in value.value), place))
        else:
            flags.append(Flag(name, _scalar(value, path), place))
    return flags


def _scalar(node: Any, path: Path) -> str:
    import yaml

    if not isinstance(node, yaml.ScalarNode) or node.tag not in YAML_TAGS:
        raise ConfigError(
            f"{shortened(path, SHOWN_PATH)}:{node.start_mark.line + 1}: nested values and tags are not allowed here. "
            "Write a plain value, or a flat list of plain values without tags."
        )
    return "None" if node.tag.endswith(":null") else node.value
