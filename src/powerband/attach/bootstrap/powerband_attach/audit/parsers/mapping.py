"""Dictionaries from YAML and JSON files that the user's code loads.

A loaded dictionary becomes a `TrackedDict`, a subclass of dict. It writes, copies and compares as a dict. Code that
asks for ``type(x) is dict`` sees the difference. So dictionaries that installed packages load stay as they are, and so
do dictionaries inside lists. A tracked dictionary in a pickle is a plain one.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from typing import Any

from powerband_attach.audit import reads, settings
from powerband_attach.imports import when_imported
from powerband_attach.safely import safely

PARSER = "file"
MOST_LOADS, MOST_OPTIONS = 8, 400
"""Loaded dictionaries that are tracked per process, and the options of one; more than that is data."""
_loads = [0]
_depth = [0]


def install() -> None:
    """Wraps the load functions of yaml, json and tomllib."""
    when_imported("yaml", lambda module: _wrap(module, ("load", "safe_load", "full_load", "unsafe_load"), _add_writers))
    when_imported("json", lambda module: _wrap(module, ("load", "loads")))
    for name in ("tomllib", "tomli", "toml"):
        when_imported(name, lambda module: _wrap(module, ("load", "loads")))


class TrackedDict(dict):  # type: ignore[type-arg]
    """A dictionary that reports who reads its options. Nested dictionaries are tracked too."""

    __slots__ = ("prefix",)
    prefix: str

    def __new__(cls, *args: Any, **kwargs: Any) -> TrackedDict:
        self = dict.__new__(cls)
        self.prefix = ""  # the script may call the type itself
        return self

    def _note(self, key: Any) -> None:
        if dict.__contains__(self, key) and not isinstance(dict.__getitem__(self, key), dict):
            reads.note(PARSER, self.prefix + str(key), depth=3)

    def _bulk(self, how: str) -> None:
        reads.note_bulk(PARSER, self.prefix, how, depth=3)

    def __getitem__(self, key: Any) -> Any:
        self._note(key)
        return dict.__getitem__(self, key)

    def get(self, key: Any, default: Any = None) -> Any:
        self._note(key)
        return dict.get(self, key, default)

    def pop(self, key: Any, *default: Any) -> Any:
        self._note(key)
        return dict.pop(self, key, *default)

    def setdefault(self, key: Any, default: Any = None) -> Any:
        self._note(key)
        return dict.setdefault(self, key, default)

    def __setitem__(self, key: Any, value: Any) -> None:
        reads.note_overwritten(PARSER, self.prefix + str(key))
        dict.__setitem__(self, key, value)

    def __iter__(self) -> Iterator[Any]:
        self._bulk("iteration")
        return dict.__iter__(self)

    def keys(self) -> Any:
        self._bulk("keys")
        return dict.keys(self)

    def values(self) -> Any:
        self._bulk("values")
        return dict.values(self)

    def items(self) -> Any:
        self._bulk("items")
        return dict.items(self)

    def __or__(self, other: Any) -> Any:
        self._bulk("union")
        return dict(dict.items(self)) | other

    def __ror__(self, other: Any) -> Any:
        self._bulk("union")
        return other | dict(dict.items(self))

    def __repr__(self) -> str:
        self._bulk("repr")
        return dict.__repr__(self)

    def copy(self) -> TrackedDict:
        return _tracked_copy(self, {})

    __copy__ = copy

    def __deepcopy__(self, memo: dict[int, Any]) -> TrackedDict:
        import copy

        return _tracked_copy(self, {key: copy.deepcopy(value, memo) for key, value in dict.items(self)})

    def __reduce_ex__(self, protocol: Any) -> Any:
        self._bulk("pickle")
        return dict, (dict(dict.items(self)),)


def plain(value: Any) -> Any:
    """Returns a copy of tracked dictionaries as plain ones, for packages that accept no other type."""
    if isinstance(value, TrackedDict):
        value._bulk("conversion")
        return {key: plain(item) for key, item in dict.items(value)}
    return value


def _tracked_copy(value: TrackedDict, new: dict[Any, Any]) -> TrackedDict:
    result = TrackedDict({**dict(dict.items(value)), **new})
    result.prefix = value.prefix
    return result


def _wrap(module: Any, names: tuple[str, ...], prepare: Callable[[Any], None] = lambda module: None) -> None:
    prepare(module)
    for name in names:
        original = getattr(module, name, None)
        if original is not None:
            setattr(module, name, _loading(original))


def _loading(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def load(*args: Any, **kwargs: Any) -> Any:
        _depth[0] += 1
        try:
            result = original(*args, **kwargs)
        finally:
            _depth[0] -= 1
        if type(result) is dict and not _depth[0] and _loads[0] < MOST_LOADS:
            return safely(_loaded)(result, args[0] if args else None) or result
        return result

    return load


def _loaded(value: dict[Any, Any], stream: Any) -> Any:
    if not value or not reads.called_by_user_code():
        return None
    where, _ = reads.caller()
    file = getattr(stream, "name", "")
    path, text = file if isinstance(file, str) else "", ""
    if path:
        with open(path, encoding="utf-8", errors="replace") as source:
            text = source.read(1_000_000)
    leaves = sum(1 for _ in _leaves(value, ""))
    if leaves > MOST_OPTIONS:
        return None
    _loads[0] += 1
    changes = settings.changes(PARSER)
    for holder, key, name in list(_leaves(value, "")):
        line = line_of(text, str(key))
        place = settings.place(path, line) if line else where
        reads.add_option(PARSER, name, holder[key], place, bool(path))
        if name in changes:
            holder[key] = reads.rebuilt(changes[name], holder[key])
            reads.changed(PARSER, name)
    return _tracked(value, "", {})


def _leaves(value: dict[Any, Any], prefix: str) -> Iterator[tuple[dict[Any, Any], Any, str]]:
    for key, item in value.items():
        if isinstance(item, dict):
            yield from _leaves(item, prefix + str(key) + ".")
        else:
            yield value, key, prefix + str(key)


def line_of(text: str, key: str) -> int:
    """Returns the first line of a file's text that sets `key`, or 0."""
    found = re.search(r"^[\s{,\"'-]*" + re.escape(key) + r"[\"']?\s*[:=]", text, re.MULTILINE)
    return text.count("\n", 0, found.start(0) + len(found.group(0)) - 1) + 1 if found else 0


def _tracked(value: dict[Any, Any], prefix: str, known: dict[int, TrackedDict]) -> TrackedDict:
    if id(value) in known:  # an alias of YAML
        return known[id(value)]
    result = known[id(value)] = TrackedDict()
    result.prefix = prefix
    for key, item in value.items():
        nested = _tracked(item, prefix + str(key) + ".", known) if type(item) is dict else item
        dict.__setitem__(result, key, nested)
    return result


def _add_writers(module: Any) -> None:
    for name in ("SafeDumper", "CSafeDumper", "Dumper", "CDumper"):
        dumper = getattr(module, name, None)
        if dumper is not None:
            dumper.add_representer(TrackedDict, lambda writer, value: writer.represent_dict(value.items()))
