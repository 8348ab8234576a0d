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
    wanted = f"expected {describe_kind(kind)}"
    if given is None:
        if bare(kind) is bool:
            return True
        raise ValueError(f"the value is missing, {wanted}")
    if isinstance(given, tuple) and not is_list(kind):
        raise ValueError(f"{len(given)} values were given, {wanted}")
    try:
        return _list(given, kind) if is_list(kind) else _scalar(str(given), kind)
    except ValueError as error:
        reason = str(error)
        raise ValueError(reason if reason and kind is str else f"{reason}; {wanted}".removeprefix("; ")) from None


def _list(given: str | tuple[str, ...], kind: Any) -> Any:
    """Converts `given` to a tuple or a list; a ValueError has the reason as its text, if there is a special one."""
    if given == "None" and type(None) in alternatives(kind):
        return None
    listing = bare(next((part for part in alternatives(kind) if is_list(part)), kind))
    members, parts = get_args(listing), list(given) if isinstance(given, tuple) else _split(given)
    if get_origin(listing) is list or Ellipsis in members:
        return get_origin(listing)(_scalar(part, members[0]) for part in parts)
    if len(parts) != len(members):
        raise ValueError(f"the list has {len(parts)} of {len(members)} values")
    return tuple(_scalar(part, member) for part, member in zip(parts, members, strict=True))


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
    """Converts `text` to a value of type `kind`, which is no list; a ValueError has the reason as its text, or ""."""
    kind = bare(kind)
    reasons = [""]
    for choice in alternatives(kind):
        try:
            return _scalar(text, choice)
        except ValueError as error:
            reasons.append(str(error))
    if kind is type(None) and text == "None":
        return None
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
    raise ValueError(max(reasons, key=len))


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
    if kind is float and text.lower() in INFINITIES:
        return float(text)
    if not NUMBER.fullmatch(text):
        raise ValueError(_number_problem(text))
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text} is too large for a number of 64 bits")
    if kind is float:
        return number
    if not number.is_integer():
        raise ValueError(f"{text} is not a whole number")
    if not INTEGER_IN_E_NOTATION.fullmatch(text):
        raise ValueError("an integer has no decimal point")
    return int(number)


def _number_problem(text: str) -> str:
    """Returns why `text`, which a user may take for a number, is none; "" for other texts."""
    reasons = {
        "the value is empty": not text,
        "nan is not a number": text.lower().lstrip("+-") == "nan",
        "there are blanks around the number": text != text.strip(),
        "a number has no underscores": "_" in text,
        "only the digits 0 to 9 are allowed": not text.isascii(),
        "a number has no commas": "," in text,
    }
    return next((reason for reason, applies in reasons.items() if applies), "")


def bare(kind: Any) -> Any:
    """The type annotation `kind` without its declared range, such as float for ``Annotated[float, Range(above=0)]``."""
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
