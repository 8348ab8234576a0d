"""Flags: what a user wrote, word for word, each with the place it was written, and how a word becomes a value.

Variants, YAML files, saved configurations and the command line all become lists of `Flag`; what a text means is
decided by the type of the field it lands in and never by the notation it came in, so that ``lr: 1e-4`` is a number
and ``compile: on`` is the word "on".
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
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from powerband.core.errors import ConfigError

COMMAND_LINE = "command line"
ASSIGNMENT = re.compile(r"[A-Za-z_][\w.-]*=")
WHOLE_NUMBER = re.compile(r"[+-]?\d+(\.\d*)?[eE]\+?\d+")
TRUTH = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
YAML_TAGS = {f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "timestamp", "seq", "map")}


def at_least(settings: Any, **limits: float) -> None:
    """For ``__post_init__``: refuses settings, or members of lists of them, below the least value that they can have.

    Raises:
        ConfigError: One is, by its name, with the limit.
    """
    for name, limit in limits.items():
        value = getattr(settings, name)
        for one in value if isinstance(value, tuple) else (value,):
            if one < limit:
                raise ConfigError(f"{name}={one:g} is below {limit}. Write {name}={limit} or more.")


@dataclass(frozen=True)
class Flag:
    """One setting as it was written.

    Attributes:
        name: Name with underscores, dotted where it was qualified.
        value: The text; a tuple of texts where a list was written; None where the name stood alone (``--overlap``).
        source: ``file:line``, ``variant demo`` or ``command line``.
    """

    name: str
    value: str | tuple[str, ...] | None
    source: str

    def __str__(self) -> str:
        if self.value is None:
            return f"--{self.name} ({self.source})"
        text = self.value if isinstance(self.value, str) else ",".join(self.value)
        return f"{self.name}={text} ({self.source})"


def from_arguments(words: Iterable[str], source: str = COMMAND_LINE) -> list[Flag]:
    """Reads ``a.b=c``, ``--a.b c``, ``--a.b=c``, ``--a-b c``, ``--list 1 2 3`` and bare ``--flag``.

    Raises:
        ConfigError: A word that belongs to no name.
    """
    flags: list[Flag] = []
    words = list(words)
    position = 0
    while position < len(words):
        word = words[position]
        position += 1
        body = word[2:] if word.startswith("--") else word
        if ASSIGNMENT.match(body):
            name, value = body.split("=", 1)
            flags.append(Flag(_plain(name), value, source))
        elif word.startswith("--") and body:
            values = []
            while position < len(words) and not _starts_flag(words[position]):
                values.append(words[position])
                position += 1
            value = values[0] if len(values) == 1 else tuple(values) or None
            flags.append(Flag(_plain(body), value, source))
        else:
            raise ConfigError(f"'{word}' ({source}) belongs to no setting. Write name=value or --name value.")
    return flags


def _starts_flag(word: str) -> bool:
    return word.startswith("--") or bool(ASSIGNMENT.match(word))


def _plain(name: str) -> str:
    return name.replace("-", "_")


def from_mapping(mapping: Mapping[str, Any], source: str, prefix: str = "") -> list[Flag]:
    """Flags of a (nested) mapping of Python or JSON values; a nested mapping gives dotted names."""
    flags = []
    for key, value in mapping.items():
        name = _plain(f"{prefix}{key}")
        if isinstance(value, Mapping):
            flags += from_mapping(value, source, f"{name}.")
        elif isinstance(value, (list, tuple)):
            flags.append(Flag(name, tuple(str(part) for part in value), source))
        else:
            flags.append(Flag(name, str(value), source))
    return flags


def from_variant(variant: Mapping[str, Any] | Iterable[str], name: str) -> list[Flag]:
    """Flags of a recipe's variant: a mapping, or a list of flags as they would be typed."""
    if isinstance(variant, Mapping):
        return from_mapping(variant, f"variant {name}")
    return from_arguments([word for entry in variant for word in shlex.split(entry)], f"variant {name}")


def from_yaml(path: Path) -> list[Flag]:
    """Flags of a YAML file, each with the line it stands on; nothing in the file is executed or constructed.

    Raises:
        ConfigError: Unreadable, not YAML, not a mapping, a key twice, an alias, a tag, a list in a list.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        """Reads nodes only, and no aliases, which could make a small file large or endless."""

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                line = self.peek_event().start_mark.line + 1
                raise ConfigError(f"{path}:{line}: aliases are not read. Write the value itself.")
            return super().compose_node(parent, index)

    try:
        root = yaml.compose(path.read_text(encoding="utf-8"), Loader=Loader)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read ({error}). Name a YAML file, such as --config run.yaml.") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{path}:{mark.line + 1}" if mark else str(path)
        problem = getattr(error, "problem", None) or str(error)
        raise ConfigError(f"{place} is not valid YAML: {problem}. Write one 'name: value' a line.") from error
    if root is None:
        return []
    return _from_node(root, path, "")


def _from_node(node: Any, path: Path, prefix: str) -> list[Flag]:
    import yaml

    place = f"{path}:{node.start_mark.line + 1}"
    if not isinstance(node, yaml.MappingNode) or node.tag not in YAML_TAGS:
        raise ConfigError(f"{place} is no mapping. Write one 'name: value' a line.")
    flags, lines = [], {}
    for key, value in node.value:
        place = f"{path}:{key.start_mark.line + 1}"
        if not isinstance(key, yaml.ScalarNode) or key.tag not in YAML_TAGS:
            raise ConfigError(f"{place}: a key must be a name. Write 'name: value'.")
        name = prefix + _plain(key.value)
        if name in lines:
            raise ConfigError(f"{place}: '{name}' stands already in line {lines[name]}. Keep one of the two.")
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
            f"{path}:{node.start_mark.line + 1}: only plain values and flat lists of them are read here, without tags."
        )
    return "None" if node.tag.endswith(":null") else node.value


def parse_value(flag: Flag, kind: Any, example: Any = None) -> Any:
    """The value that `flag` gives a field of type `kind`.

    Args:
        flag: What was written.
        kind: Type of the field: scalar, Literal, Optional, tuple or list.
        example: A value of the right type, the default; used in the message.

    Raises:
        ConfigError: The text is no such value.
    """

    def refuse(problem: str = "") -> ConfigError:
        shown = "None" if example is None else ",".join(map(str, example)) if _is_list(kind) else str(example)
        fix = f"Write {flag.name}={shown}" if shown else f'Write {flag.name}="..."'
        return ConfigError(f"{flag}: {problem or f'expected {describe_kind(kind)}'}. {fix}, for example.")

    if flag.value is None:
        if kind is bool:
            return True
        raise refuse(f"no value was given, expected {describe_kind(kind)}")
    parts = [flag.value] if isinstance(flag.value, str) else list(flag.value)
    if isinstance(flag.value, tuple) and not _is_list(kind):
        raise refuse(f"{len(parts)} values were given, expected {describe_kind(kind)}")
    if isinstance(flag.value, str) and _is_list(kind) and flag.value != "None":
        inner = flag.value.strip().removeprefix("[").removeprefix("(").removesuffix("]").removesuffix(")")
        parts = [part.strip() for part in inner.split(",") if part.strip()]
    if kind is str:
        if flag.value == "None":
            raise refuse("null is no text")
        return flag.value
    if set(_alternatives(kind)) == {str, type(None)}:
        return None if flag.value == "None" else flag.value
    if kind is int and WHOLE_NUMBER.fullmatch(parts[0]) and float(parts[0]).is_integer():
        parts = [str(int(float(parts[0])))]
    if bool in (kind, *get_args(kind)):
        parts = [str(TRUTH.get(part.lower(), part)) for part in parts]
    value = _by_tyro(kind, parts, refuse)
    if any(isinstance(part, float) and math.isnan(part) for part in (value if _is_list(kind) and value else (value,))):
        raise refuse("nan is no number to train with")
    return value


def _by_tyro(kind: Any, parts: list[str], refuse: Any) -> Any:
    import tyro

    try:
        with contextlib.redirect_stderr(io.StringIO()):
            return tyro.cli(kind, args=parts, add_help=False, console_outputs=False)
    except SystemExit:
        raise refuse() from None


def _is_list(kind: Any) -> bool:
    return get_origin(kind) in (tuple, list) or any(_is_list(part) for part in _alternatives(kind))


def _alternatives(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else ()


def describe_kind(kind: Any) -> str:
    """A type in a user's words: ``one of auto, on, off``."""
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "None"}
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
