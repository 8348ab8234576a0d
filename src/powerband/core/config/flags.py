"""Flags: options as the user wrote them, each with its source, and their conversion to values.

Variants, YAML files, saved configurations and the command line all become lists of `Flag`. The type of the field alone
decides how a text is read, whatever its source: ``lr: 1e-4`` is a number and ``compile: on`` is the text "on".
"""

from __future__ import annotations

import contextlib
import io
import math
import re
import shlex
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from powerband.core.errors import ConfigError

COMMAND_LINE = "command line"
ASSIGNMENT = re.compile(r"[A-Za-z_][\w.-]*=")
INTEGER_IN_E_NOTATION = re.compile(r"[+-]?\d+(\.\d*)?[eE]\+?\d+")
BOOLEANS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
YAML_TAGS = {f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "timestamp", "seq", "map")}


def at_least(settings: Any, **limits: float) -> None:
    """Checks that each named setting is at or above its limit, for the ``__post_init__`` of a settings dataclass.

    The limit of a tuple applies to each of its members.

    Raises:
        ConfigError: A value is below its limit.
    """
    for name, limit in limits.items():
        value = getattr(settings, name)
        for member in value if isinstance(value, tuple) else (value,):
            if member < limit:
                raise ConfigError(f"{name}={member:g} is below {limit}. Write {name}={limit} or more.")


@dataclass(frozen=True)
class Flag:
    """One option as the user wrote it, before the text becomes a value.

    Attributes:
        name: Name with underscores, and with dots if the user wrote its section too (``run.seed``).
        value: The text; a tuple of texts for a list; None for a name without a value (``--overlap``).
        source: Place of the text for messages: ``file:line``, ``variant demo`` or ``command line``.
    """

    name: str
    value: str | tuple[str, ...] | None
    source: str

    def __str__(self) -> str:
        if self.value is None:
            return f"--{self.name} ({self.source})"
        text = self.value if isinstance(self.value, str) else ",".join(self.value)
        return f"{self.name}={text} ({self.source})"


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
            while position < len(arguments) and not _starts_flag(arguments[position]):
                values.append(arguments[position])
                position += 1
            value = values[0] if len(values) == 1 else tuple(values) or None
            flags.append(Flag(_with_underscores(body), value, source))
        else:
            raise ConfigError(f"'{argument}' ({source}) names no option. Write name=value or --name value.")
    return flags


def _starts_flag(argument: str) -> bool:
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

    class Loader(yaml.SafeLoader):
        """YAML loader that refuses aliases, because aliases can make a small file expand without limit."""

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                line = self.peek_event().start_mark.line + 1
                raise ConfigError(f"{path}:{line}: YAML aliases are not allowed. Write the value itself.")
            return super().compose_node(parent, index)

    try:
        root = yaml.compose(path.read_text(encoding="utf-8"), Loader=Loader)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read ({error}). Name a YAML file, such as --config run.yaml.") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{path}:{mark.line + 1}" if mark else str(path)
        problem = getattr(error, "problem", None) or str(error)
        raise ConfigError(f"{place} is not valid YAML: {problem}. Write one 'name: value' per line.") from error
    if root is None:
        return []
    return _from_node(root, path, "")


def _from_node(node: Any, path: Path, prefix: str) -> list[Flag]:
    import yaml

    place = f"{path}:{node.start_mark.line + 1}"
    if not isinstance(node, yaml.MappingNode) or node.tag not in YAML_TAGS:
        raise ConfigError(f"{place} is not a mapping. Write one 'name: value' per line.")
    flags: list[Flag] = []
    lines: dict[str, int] = {}
    for key, value in node.value:
        place = f"{path}:{key.start_mark.line + 1}"
        if not isinstance(key, yaml.ScalarNode) or key.tag not in YAML_TAGS:
            raise ConfigError(f"{place}: a key must be a name. Write 'name: value'.")
        name = prefix + _with_underscores(key.value)
        if name in lines:
            raise ConfigError(f"{place}: '{name}' is already set in line {lines[name]}. Remove one of the two lines.")
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
            f"{path}:{node.start_mark.line + 1}: nested values and tags are not allowed here. "
            "Write a plain value, or a flat list of plain values without tags."
        )
    return "None" if node.tag.endswith(":null") else node.value


def parse_value(flag: Flag, kind: Any, example: Any = None) -> Any:
    """Converts the text of `flag` to a value of type `kind`.

    Args:
        flag: Option and its text.
        kind: Type of the field: scalar, Literal, Optional, tuple or list.
        example: A valid value for the error message, usually the default.

    Raises:
        ConfigError: The text is not a valid value of the type.
    """

    def refuse(problem: str = "") -> ConfigError:
        shown = "None" if example is None else ",".join(map(str, example)) if _is_list(kind) else str(example)
        fix = f"Write {flag.name}={shown}" if shown else f'Write {flag.name}="..."'
        return ConfigError(f"{flag}: {problem or f'expected {describe_kind(kind)}'}. {fix}, for example.")

    if flag.value is None:
        if kind is bool:
            return True
        raise refuse(f"the value is missing, expected {describe_kind(kind)}")
    parts = [flag.value] if isinstance(flag.value, str) else list(flag.value)
    if isinstance(flag.value, tuple) and not _is_list(kind):
        raise refuse(f"{len(parts)} values were given, expected {describe_kind(kind)}")
    if isinstance(flag.value, str) and _is_list(kind) and flag.value != "None":
        inner = flag.value.strip().removeprefix("[").removeprefix("(").removesuffix("]").removesuffix(")")
        parts = [part.strip() for part in inner.split(",") if part.strip()]
    if kind is str:
        if flag.value == "None":
            raise refuse("expected text, not null")
        return flag.value
    if set(_alternatives(kind)) == {str, type(None)}:
        return None if flag.value == "None" else flag.value
    if kind is int and INTEGER_IN_E_NOTATION.fullmatch(parts[0]) and float(parts[0]).is_integer():
        parts = [str(int(float(parts[0])))]
    if bool in (kind, *get_args(kind)):
        parts = [str(BOOLEANS.get(part.lower(), part)) for part in parts]
    try:
        value = _by_tyro(kind, tuple(parts))
    except SystemExit:
        raise refuse() from None
    if any(isinstance(part, float) and math.isnan(part) for part in (value if _is_list(kind) and value else (value,))):
        raise refuse("nan is not a valid number")
    return value


@cache
def _by_tyro(kind: Any, parts: tuple[str, ...]) -> Any:
    """Converts `parts` to an immutable value of type `kind`; raises SystemExit if they are invalid.

    tyro takes a millisecond for a value, and a saved configuration has a hundred, many of them alike.
    """
    import tyro

    with contextlib.redirect_stderr(io.StringIO()):
        return tyro.cli(kind, args=parts, add_help=False, console_outputs=False)


def _is_list(kind: Any) -> bool:
    return get_origin(kind) in (tuple, list) or any(_is_list(part) for part in _alternatives(kind))


def _alternatives(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else ()


def describe_kind(kind: Any) -> str:
    """Describes the type of a field for the user, such as ``one of auto, on, off``."""
    names = {int: "an integer", float: "a number", bool: "true or false", str: "text", type(None): "None"}
    if kind in names:
        return names[kind]
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(map(str, get_args(kind)))
    if _alternatives(kind):
        return " or ".join(describe_kind(part) for part in _alternatives(kind))
    inner = [part for part in get_args(kind) if part is not Ellipsis]
    if get_origin(kind) is tuple and Ellipsis not in get_args(kind):
        return f"{len(inner)} values ({', '.join(describe_kind(part) for part in inner)})"
    return "a list, each " + " or ".join(describe_kind(part) for part in inner)
