"""Reads: the register of options, and who reads them.

The reader is judged by the file of its frame. Parsers and copies read nothing; code that writes all values at once
(logging, pickling, ``asdict``, ``repr``) is a bulk read of all options of a holder; anything else reads one option.
"""

from __future__ import annotations

import enum
import os
import pathlib
import sys
from typing import Any

from powerband_attach import process, record, user_code
from powerband_attach.audit import settings

NEUTRAL_FILES = ("argparse.py", "copy.py", "copyreg.py", "functools.py", "hf_argparser.py", "typing.py", "inspect.py")
NEUTRAL_FOLDERS = ("multiprocessing", "tyro", "draccus", "pyrallis", "simple_parsing", "omegaconf", "hydra", "gin")
BULK_FILES = ("pprint.py", "pickle.py", "reprlib.py", "serialization.py")
BULK_FOLDERS = ("json", "logging", "yaml", "rich", "cloudpickle")
GENERATED_BULK = ("__repr__", "<listcomp>")
"""Methods of dataclasses whose code is generated; their file is ``<string>``."""
PLACES = 3
"""Places of reads that are recorded per option."""

_options: dict[str, dict[str, Any]] = {}
_seen: set[tuple[Any, ...]] = set()
_places: dict[str, int] = {}
_overwritten: set[str] = set()


def add_option(
    parser: str, name: str, value: Any, where: str, given: bool, choices: Any = None, nullable_type: str = ""
) -> None:
    """Registers an option.

    Args:
        parser: Kind of the parser.
        name: Name, dotted if it is nested.
        value: Its value after parsing.
        where: ``file:line`` of its definition.
        given: Whether the user has set it, on the command line or in a file.
        choices: Valid values, if the parser lists them.
        nullable_type: Type of the value, if `value` is None and the parser knows it.
    """
    key = parser + ":" + name
    if key in _options:
        return
    _options[key] = {"value": value}
    kind = nullable_type if value is None and nullable_type else type(value).__name__
    if not choices and isinstance(value, enum.Enum):
        choices = [member.name for member in type(value)]
    plain, known = _plain(value)
    fields = {"value": plain, "type": kind, "where": where, "given": given, "opaque": not known}
    record.write(
        "option", id=key, parser=parser, name=name, choices=[_plain(each)[0] for each in choices or ()], **fields
    )
    from powerband_attach.audit.runtime import environments

    environments.watch_user_classes()


def _plain(value: Any) -> tuple[Any, bool]:
    """Returns a value as one of JSON types, and whether `rebuilt` turns it into the same value again."""
    if isinstance(value, enum.Enum):
        return value.name, True
    if isinstance(value, (bool, int, float, str, list, tuple)) or value is None:
        return value, True
    if isinstance(value, pathlib.PurePath):
        return str(value), True
    if type(value) in (set, frozenset):
        return sorted(value, key=repr), True
    return repr(value), False


def rebuilt(new: Any, old: Any) -> Any:
    """Returns a new value from the settings, with the type of the value that it replaces."""
    if isinstance(old, enum.Enum):
        return type(old)[new]
    if isinstance(old, pathlib.PurePath) or (type(old) in (tuple, set, frozenset) and isinstance(new, list)):
        return type(old)(new)
    return new


def note(parser: str, name: str, depth: int = 2) -> None:
    """Notes that the frame `depth` levels up reads an option."""
    key = parser + ":" + name
    if key in _overwritten or _places.get(key, 0) >= PLACES:
        return
    kind, where = _reader(depth + 1)
    if kind == "bulk":
        bulk(parser, name, where, where)
    elif kind == "read" and (key, where) not in _seen:
        _seen.add((key, where))
        _places[key] = _places.get(key, 0) + 1
        record.write("read", id=key, where=where)


def note_bulk(parser: str, prefix: str, how: str, depth: int = 2) -> None:
    """Notes that the frame `depth` levels up reads all options of a holder at once, unless it is neutral."""
    kind, where = _reader(depth + 1)
    if kind != "neutral":
        bulk(parser, prefix, how, where)


def bulk(parser: str, prefix: str, how: str, where: str) -> None:
    """Records a bulk read of all options of `parser` whose names start with `prefix`."""
    if (parser, prefix, how, where) not in _seen:
        _seen.add((parser, prefix, how, where))
        record.write("bulk", parser=parser, prefix=prefix, how=how, where=where)


def note_overwritten(parser: str, name: str, depth: int = 2) -> None:
    """Notes that the script replaces the value of an option that it has not read. Later reads read the new value."""
    key = parser + ":" + name
    if key not in _options or key in _overwritten or _places.get(key):
        return
    kind, where = _reader(depth + 1)
    if kind == "read":
        _overwritten.add(key)
        record.write("overwritten", id=key, where=where)


def changed(parser: str, name: str) -> None:
    """Records that the value of an option was changed from outside."""
    record.write("changed", id=parser + ":" + name)


def caller() -> tuple[str, bool]:
    """Returns ``file:line`` of the nearest frame outside this package and the parsers, and whether it is user code."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        if not user_code.is_own_file(path) and _kind(path, frame.f_code.co_name) != "neutral" and "<frozen" not in path:
            return settings.place(path, frame.f_lineno), user_code.is_user_file(path)
        frame = frame.f_back
    return "", False


def called_by_user_code() -> bool:
    """Returns whether the nearest frame outside this package is the user's code."""
    frame: Any = sys._getframe(1)
    while frame is not None and user_code.is_own_file(frame.f_code.co_filename):
        frame = frame.f_back
    return frame is not None and user_code.is_user_file(frame.f_code.co_filename)


def _reader(depth: int) -> tuple[str, str]:
    """Returns how the first frame outside this package reads (``read``, ``bulk`` or ``neutral``), and ``file:line``.

    A library or a generated method reads in bulk. The line is then that of the user's code which called it.
    """
    frame: Any = sys._getframe(depth)
    while frame is not None and user_code.is_own_file(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return "neutral", ""
    kind = _kind(frame.f_code.co_filename, frame.f_code.co_name)
    if kind == "bulk":
        user_frame = frame
        while user_frame is not None and not user_code.is_user_file(user_frame.f_code.co_filename):
            user_frame = user_frame.f_back
        frame = user_frame or frame
    return kind, settings.place(frame.f_code.co_filename, frame.f_lineno)


def _kind(path: str, function: str) -> str:
    if path.endswith("argparse.py") and function in ("__repr__", "_get_kwargs"):
        return "bulk"
    if path == "<string>":
        return "bulk" if function in GENERATED_BULK else "neutral"
    if user_code.is_user_file(path):
        return "read"
    parts = path.replace(os.sep, "/").split("/")
    if parts[-1] == "dataclasses.py":
        return "bulk" if "as" in function else "neutral"  # asdict, astuple
    if parts[-1] in NEUTRAL_FILES or any(part in NEUTRAL_FOLDERS for part in parts[-4:-1]):
        return "neutral"
    if parts[-1] in BULK_FILES or any(part in BULK_FOLDERS for part in parts[-3:-1]):
        return "bulk"
    if parts[-1] == "flags.py" or "absl" in parts[-3:-1]:
        return "neutral"
    return "read"


def _forget() -> None:
    """A forked process reports its own reads."""
    _seen.clear()
    _places.clear()


process.after_fork_in_child.append(_forget)
