"""Values: converts the text of an option to a value of the type of its field, and describes types for the user."""

from __future__ import annotations

import math
import re
import types
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from powerband.core.config.flags import Flag
from powerband.core.config.ranges import length_of, range_of, refusal
from powerband.core.config.texts import MAX_TEXT, shortened
from powerband.core.errors import ConfigError

INTEGER = re.compile(r"[+-]?[0-9]+")
INTEGER_IN_E_NOTATION = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?[eE]\+?[0-9]+")
NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
INFINITIES = {f"{sign}{name}" for sign in ("", "+", "-") for name in ("inf", "infinity")}
BOOLEANS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
MAX_DIGITS = 100
"""Longest text of a number, in characters."""


def parse_value(flag: Flag, kind: Any, example: Any = None) -> Any:
    """Converts the text of `flag` to a value of type `kind` within the range that the type declares.

    Args:
        flag: Option and its text.
        kind: Type of the field: scalar, Literal, Optional, tuple or list, each with or without a range.
        example: A valid value for the error message, usually the default.

    Raises:
        ConfigError: The text is not a valid value of the type, or out of range.
    """
    try:
        value = _value(flag.value, kind)
        problem = refusal(kind, value)
    except ValueError as error:
        value, problem = None, str(error)
    if not problem:
        return value
    if range_of(kind) is not None and value is not None:
        problem += f". Allowed: {describe_kind(kind)}"
    shown = "None" if example is None else ",".join(map(str, example)) if is_list(kind) else str(example)
    fix = f"Write {shortened(flag.name)}={shortened(shown)}" if shown else f'Write {shortened(flag.name)}="..."'
    raise ConfigError(f"{flag}: {problem}. {fix}, for example.")


def _value(given: str | tuple[str, ...] | None, kind: Any) -> Any:
    """Converts `given`, the value of a flag; a ValueError has the problem as its text."""
    if given is None:
        if bare(kind) is bool:
            return True
        raise ValueError(f"the value is missing, expected {describe_kind(kind)}")
    if not is_list(kind):
        if isinstance(given, tuple):
            raise ValueError(f"{len(given)} values were given, expected {describe_kind(kind)}")
        return _scalar(given, kind)
    if given == "None" and type(None) in alternatives(kind):
        return None
    listing = next((part for part in alternatives(kind) if is_list(part)), kind)
    members = get_args(bare(listing))
    parts = list(given) if isinstance(given, tuple) else _split(given)
    if get_origin(bare(listing)) is tuple and Ellipsis not in members:
        if len(parts) != len(members):
            raise ValueError(f"{len(parts)} values were given, expected {describe_kind(kind)}")
        return tuple(_scalar(part, member) for part, member in zip(parts, members, strict=True))
    try:
        return get_origin(bare(listing))(_scalar(part, members[0]) for part in parts)
    except ValueError as error:
        raise ValueError(f"{error}, in {describe_kind(kind)}") from None


def _split(text: str) -> list[str]:
    """The members of a list such as ``8,16`` or ``(8, 16)``; one comma at the end is allowed, as in Python."""
    inner = text.strip()
    for start, end in ("[]", "()"):
        if inner.startswith(start) and inner.endswith(end):
            inner = inner[1:-1]
            break
    parts = [part.strip() for part in inner.split(",")]
    if parts[-1] == "":
        parts.pop()
    if "" in parts:
        raise ValueError(f"member {parts.index('') + 1} of the list is empty")
    return parts


def _scalar(text: str, kind: Any) -> Any:
    """Converts `text` to a value of type `kind`, which is no list; a ValueError has the problem as its text."""
    kind = bare(kind)
    choices = alternatives(kind)
    if choices:
        if type(None) in choices and text == "None":
            return None
        problems = []
        for choice in choices:
            try:
                return _scalar(text, choice)
            except ValueError as error:
                problems.append(str(error))
        raise ValueError(problems[0] if type(None) in choices and len(choices) == 2 else expected(text, kind))
    if kind is str:
        return _text(text)
    if kind is bool and text.lower() in BOOLEANS:
        return BOOLEANS[text.lower()]
    if kind is int or kind is float:
        return _number(text, kind)
    if get_origin(kind) is Literal:
        for choice in get_args(kind):
            if str(choice) == text:
                return choice
    raise ValueError(expected(text, kind))


def _text(text: str) -> str:
    if text == "None":
        raise ValueError("expected text, not null")
    if len(text) > MAX_TEXT:
        raise ValueError(f"the text has {len(text):,} characters, and at most {MAX_TEXT:,} are allowed")
    if "\0" in text:
        raise ValueError("the text contains a NUL character, which no path or name can contain")
    return text


def _number(text: str, kind: type) -> float:
    if len(text) > MAX_DIGITS:
        raise ValueError(f"the number has {len(text):,} characters, and at most {MAX_DIGITS} are allowed")
    if kind is int and INTEGER.fullmatch(text):
        return int(text)
    if kind is int and INTEGER_IN_E_NOTATION.fullmatch(text):
        number = float(text)
        if math.isinf(number) or number.is_integer():
            return number if math.isinf(number) else int(number)
    if kind is float and (NUMBER.fullmatch(text) or text.lower() in INFINITIES):
        return float(text)
    raise ValueError(expected(text, kind))


def expected(text: str, kind: Any) -> str:
    """States what an invalid text should be, with the reason if `kind` is numeric and the text looks like a number."""
    wanted = f"expected {describe_kind(kind)}"
    if kind is not int and kind is not float:
        return wanted
    reasons = (
        (not text, "the value is empty"),
        (text.lower().lstrip("+-") == "nan", "nan is not a number"),
        (text != text.strip(), "there are blanks around the number"),
        ("_" in text, "a number has no underscores"),
        (not text.isascii(), "only the digits 0 to 9 are allowed"),
        ("," in text, "a number has no commas"),
        (kind is int and bool(NUMBER.fullmatch(text)), f"{shortened(text)} is not a whole number"),
    )
    return "; ".join([next((reason for applies, reason in reasons if applies), ""), wanted]).removeprefix("; ")


def bare(kind: Any) -> Any:
    """The type without the range that it declares."""
    return bare(get_args(kind)[0]) if get_origin(kind) is Annotated else kind


def is_list(kind: Any) -> bool:
    """Whether `kind` is a tuple or a list, or a union with one."""
    return get_origin(bare(kind)) in (tuple, list) or any(is_list(part) for part in alternatives(kind))


def alternatives(kind: Any) -> tuple[Any, ...]:
    """Types of a union, such as ``float | None``; empty for other types."""
    return get_args(bare(kind)) if get_origin(bare(kind)) in (Union, types.UnionType) else ()


def describe_kind(kind: Any) -> str:
    """Describes the type of a field for the user, such as ``an integer, 1 or more`` or ``one of auto, on, off``."""
    names = {int: "an integer", float: "a number", bool: "true or false", str: "text", type(None): "None"}
    plain = bare(kind)
    if plain in names:
        allowed = str(range_of(kind) or "")
        return f"{names[plain]}, {allowed}" if allowed else names[plain]
    if get_origin(plain) is Literal:
        return "one of " + ", ".join(map(str, get_args(plain)))
    if alternatives(kind):
        none_first = sorted(alternatives(kind), key=lambda part: part is not type(None))
        return " or ".join(describe_kind(part) for part in none_first)
    inner = [part for part in get_args(plain) if part is not Ellipsis]
    if get_origin(plain) is tuple and Ellipsis not in get_args(plain):
        each = [describe_kind(part) for part in inner]
        return f"{len(inner)} values" + (f", each {each[0]}" if len(set(each)) == 1 else f" ({'; '.join(each)})")
    length = length_of(kind)
    many = f"a list of {length.at_least} or more" if length else "a list"
    return f"{many}, each " + " or ".join(describe_kind(part) for part in inner)
