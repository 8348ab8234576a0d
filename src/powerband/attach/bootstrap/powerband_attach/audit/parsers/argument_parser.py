"""argparse: options of `ArgumentParser`, and of parsers that derive from it."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import sys
from typing import Any

from powerband_attach import user_code
from powerband_attach.audit import reads, settings
from powerband_attach.audit.parsers import dataclass, watched_class
from powerband_attach.safely import safely

PARSER = "argparse"
_names: set[str] = set()
_where: dict[int, tuple[Any, str, bool]] = {}
"""id of an action -> (the action, ``file:line`` of its definition, whether that is user code)."""
_depth = [0]


def install() -> None:
    """Wraps ``add_argument`` and ``parse_known_args``, which all other parse methods call."""
    container: Any = argparse._ActionsContainer
    add, parse = container.add_argument, argparse.ArgumentParser.parse_known_args

    @functools.wraps(add)
    def add_argument(self: Any, *args: Any, **kwargs: Any) -> Any:
        action = add(self, *args, **kwargs)
        _where[id(action)] = (action, *_place_of_caller())
        return action

    @functools.wraps(parse)
    def parse_known_args(self: Any, args: Any = None, namespace: Any = None) -> Any:
        _depth[0] += 1
        try:
            result: Any = parse(self, args, namespace)
        finally:
            _depth[0] -= 1
        if not _depth[0]:  # sub-parsers parse inside
            safely(_parsed)(self, sys.argv[1:] if args is None else list(args), result[0])
        return result

    container.add_argument = add_argument
    argparse.ArgumentParser.parse_known_args = parse_known_args  # type: ignore[method-assign,assignment]
    watched_class.watch(
        argparse.Namespace, lambda _, name: ((PARSER, name),) if name in _names else (), lambda _: (PARSER, "")
    )


def _place_of_caller() -> tuple[str, bool]:
    frame: Any = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename == argparse.__file__:
        frame = frame.f_back
    if frame is None:
        return "", False
    path = frame.f_code.co_filename
    return settings.place(path, frame.f_lineno), user_code.is_user_file(path)


def _parsed(parser: Any, words: list[str], namespace: Any) -> None:
    changes = settings.changes(PARSER)
    values = dict(object.__getattribute__(namespace, "__dict__"))
    for action in _actions(parser):
        name = action.dest
        if name not in values or isinstance(action, (argparse._HelpAction, argparse._SubParsersAction)):
            continue
        _, where, own = _where.get(id(action), (action, "", False))
        given = any(word.split("=")[0] in action.option_strings for word in words) or not action.option_strings
        if not own:
            continue
        kind = action.type.__name__ if isinstance(action.type, type) else ""
        reads.add_option(PARSER, name, values[name], where, given, action.choices, kind)
        _names.add(name)
        if name in changes:
            object.__setattr__(namespace, name, reads.rebuilt(changes[name], values[name]))
            reads.changed(PARSER, name)
    for name, value in values.items():
        if dataclasses.is_dataclass(value) and not isinstance(value, type):  # simple_parsing
            object.__setattr__(namespace, name, dataclass.parsed(value, name))


def _actions(parser: Any) -> list[Any]:
    found = []
    for action in parser._actions:
        found.append(action)
        if isinstance(action, argparse._SubParsersAction):
            for sub_parser in set(action.choices.values()):
                found += _actions(sub_parser)
    return found
