"""Dataclass parsers: tyro, Hugging Face's HfArgumentParser, draccus, pyrallis and simple_parsing."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
import typing
from collections.abc import Callable
from typing import Any

from powerband_attach import user_code
from powerband_attach.audit import reads, settings
from powerband_attach.audit.parsers import watched_class
from powerband_attach.imports import when_imported
from powerband_attach.safely import safely

PARSER = "dataclass"
_prefixes: dict[int, tuple[Any, str]] = {}
"""id of a parsed object -> (the object, prefix of its options)."""
_of_class: dict[type, set[str]] = {}
"""Class -> prefixes of its parsed objects. An object that the script has copied is any of these."""


def install() -> None:
    """Wraps the functions that parse."""
    when_imported("tyro", _wrap_tyro)
    for name in ("draccus", "pyrallis"):
        when_imported(name + ".argparsing", functools.partial(_wrap_functions, names=("parse",)))
        when_imported(name, functools.partial(_wrap_functions, names=("parse",)))
    when_imported("transformers.hf_argparser", _wrap_hugging_face)


def parsed(value: Any, prefix: str = "") -> Any:
    """Applies the changes to a parsed dataclass, registers its fields as options and tracks it.

    Returns:
        The object that the script gets.
    """
    if isinstance(value, tuple) and not prefix:
        return type(value)(parsed(item) for item in value) if type(value) is tuple else value
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    value = safely(_changed)(value, prefix, settings.changes(PARSER)) or value
    safely(_track)(value, prefix)
    return value


def _joined(prefix: str, name: str) -> str:
    return prefix + "." + name if prefix else name


def _changed(value: Any, prefix: str, changes: dict[str, Any]) -> Any:
    new: dict[str, Any] = {}
    for field in dataclasses.fields(value):
        name, old = _joined(prefix, field.name), getattr(value, field.name, None)
        if name in changes:
            new[field.name] = reads.rebuilt(changes[name], old)
            reads.changed(PARSER, name)
        elif dataclasses.is_dataclass(old) and any(key.startswith(name + ".") for key in changes):
            new[field.name] = _changed(old, name, changes)
    if not new:
        return value
    try:
        # This runs `__post_init__` again, which may derive other fields.
        if _same_fields(value, dataclasses.replace(value)):
            return dataclasses.replace(value, **new)
    except (TypeError, ValueError):
        pass
    for name, item in new.items():
        object.__setattr__(value, name, item)
    return value


def _same_fields(one: Any, other: Any) -> bool:
    """Returns whether two objects have equal arguments, so that a second `__post_init__` has changed none."""
    names = [field.name for field in dataclasses.fields(one) if field.init]
    return all(bool(getattr(one, name) == getattr(other, name)) for name in names)


def _track(value: Any, prefix: str) -> None:
    cls = type(value)
    own = user_code.is_user_file(getattr(sys.modules.get(cls.__module__), "__file__", None) or "<")
    hints = safely(typing.get_type_hints)(cls) or {}
    for field in dataclasses.fields(value):
        item = getattr(value, field.name, None)
        name = _joined(prefix, field.name)
        if dataclasses.is_dataclass(item):
            _track(item, name)
            continue
        given = _given(field, item)
        if own or given:
            where = safely(_place)(cls, field.name) or ""
            reads.add_option(PARSER, name, item, where, given, _choices(hints.get(field.name), item))
    _prefixes[id(value)] = (value, prefix)
    _of_class.setdefault(cls, set()).add(prefix)
    names = {field.name for field in dataclasses.fields(value)}

    def option_of(self: Any, name: str) -> Any:
        return [(PARSER, _joined(prefix, name)) for prefix in _prefixes_of(self)] if name in names else ()

    watched_class.watch(cls, option_of, lambda self: (PARSER, _prefixes_of(self)[0]))


def _prefixes_of(value: Any) -> list[str]:
    known = _prefixes.get(id(value))
    if known is not None and known[0] is value:
        return [known[1]]
    return sorted(_of_class.get(type(value), {""}))


def _given(field: Any, value: Any) -> bool:
    """Whether the value differs from the default of the field; the words of the command line are not known here."""
    if any(word.split("=")[0].replace("-", "_").strip("_").endswith(field.name) for word in sys.argv[1:]):
        return True
    default = field.default
    if field.default_factory is not dataclasses.MISSING:
        return False
    return default is dataclasses.MISSING or bool(type(default) is type(value) and default != value)


def _place(cls: type, name: str) -> str:
    """``file:line`` of a field in the source of its class."""
    for base in cls.__mro__:
        if name in base.__dict__.get("__annotations__", {}) or name in getattr(base, "__annotations__", {}):
            lines, first = inspect.getsourcelines(base)
            for offset, line in enumerate(lines):
                if line.strip().startswith((name + ":", name + " :")):
                    return settings.place(inspect.getsourcefile(base) or "", first + offset)
    return ""


def _choices(hint: Any, value: Any) -> Any:
    return [item for item in typing.get_args(hint) if isinstance(item, (str, int, float))] if hint is not None else None


def _wrap_functions(module: Any, names: tuple[str, ...]) -> None:
    for name in names:
        original = getattr(module, name, None)
        if callable(original) and not hasattr(original, "__powerband__"):
            setattr(module, name, _parsing(original))


def _parsing(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def parse(*args: Any, **kwargs: Any) -> Any:
        return parsed(original(*args, **kwargs))

    parse.__powerband__ = True  # type: ignore[attr-defined]
    return parse


def _wrap_hugging_face(module: Any) -> None:
    names = ("parse_args_into_dataclasses", "parse_dict", "parse_yaml_file", "parse_json_file")
    depth = [0]

    def outermost(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def parse(*args: Any, **kwargs: Any) -> Any:
            depth[0] += 1
            try:
                result = original(*args, **kwargs)
            finally:
                depth[0] -= 1
            return result if depth[0] else parsed(result)

        return parse

    for name in names:
        setattr(module.HfArgumentParser, name, outermost(getattr(module.HfArgumentParser, name)))


def _wrap_tyro(module: Any) -> None:
    original = module.cli

    @functools.wraps(original)
    def cli(f: Any, *args: Any, **kwargs: Any) -> Any:
        if inspect.isfunction(f):
            return original(_with_tracked_arguments(f), *args, **kwargs)
        return parsed(original(f, *args, **kwargs))

    module.cli = cli


def _with_tracked_arguments(f: Any) -> Any:
    """Returns the function `f` with its arguments as options. Their reads cannot be seen, so changed runs decide."""

    @functools.wraps(f)
    def called(*args: Any, **kwargs: Any) -> Any:
        bound = inspect.signature(f).bind(*args, **kwargs)
        bound.apply_defaults()
        changes, code = settings.changes(PARSER), f.__code__
        for name, value in bound.arguments.items():
            if dataclasses.is_dataclass(value):
                bound.arguments[name] = parsed(value, name)
                continue
            where = settings.place(code.co_filename, code.co_firstlineno)
            hint = f.__annotations__.get(name)
            reads.add_option(PARSER, name, value, where, True, _choices(hint, value))
            reads.bulk(PARSER, name, "arguments of a function", where)
            if name in changes:
                bound.arguments[name] = reads.rebuilt(changes[name], value)
                reads.changed(PARSER, name)
        return f(*bound.args, **bound.kwargs)

    return called
