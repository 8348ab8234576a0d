"""absl flags and gin bindings."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from powerband_attach import process, user_code
from powerband_attach.audit import facts, reads, settings
from powerband_attach.imports import when_imported
from powerband_attach.safely import safely

ABSL, GIN = "absl", "gin"
_flags: set[str] = set()


def install() -> None:
    """Wraps the parsing of absl flags and of gin files."""
    when_imported("absl.flags._flagvalues", _wrap_absl)
    when_imported("gin.config", _wrap_gin)


def _wrap_absl(module: Any) -> None:
    cls = module.FlagValues
    parse, read = cls.__call__, cls.__getattr__

    @functools.wraps(parse)
    def __call__(self: Any, argv: Any, *args: Any, **kwargs: Any) -> Any:
        result = parse(self, argv, *args, **kwargs)
        safely(_absl_parsed)(self)
        return result

    @functools.wraps(read)
    def __getattr__(self: Any, name: str) -> Any:
        value = read(self, name)
        if name in _flags:
            reads.note(ABSL, name)
        return value

    def bulk(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def all_values(self: Any, *args: Any, **kwargs: Any) -> Any:
            if _flags:
                reads.note_bulk(ABSL, "", original.__name__)
            return original(self, *args, **kwargs)

        return all_values

    cls.__call__, cls.__getattr__ = __call__, __getattr__
    for name in ("flag_values_dict", "flags_into_string", "append_flags_into_file", "__getitem__", "__iter__"):
        if hasattr(cls, name):
            setattr(cls, name, bulk(getattr(cls, name)))


def _absl_parsed(values: Any) -> None:
    changes = settings.changes(ABSL)
    for module, flags in values.flags_by_module_dict().items():
        found = sys.modules.get("__main__" if module == sys.argv[0] else module)
        file = getattr(found, "__file__", None) or (module if module.endswith(".py") else "<")
        if not user_code.is_user_file(file):
            continue
        for flag in flags:
            choices = getattr(flag.parser, "enum_values", None)
            where = _absl_place(file, flag.name)
            reads.add_option(ABSL, flag.name, flag.value, where, not flag.using_default_value, choices)
            _flags.add(flag.name)
            if flag.name in changes:
                flag.value = reads.rebuilt(changes[flag.name], flag.value)
                reads.changed(ABSL, flag.name)


def _absl_place(file: str, name: str) -> str:
    with open(file, encoding="utf-8", errors="replace") as source:
        for number, line in enumerate(source, 1):
            if "DEFINE_" in line and ('"' + name + '"' in line or "'" + name + "'" in line):
                return settings.place(file, number)
    return settings.place(file, 1)


def _wrap_gin(module: Any) -> None:
    depth = [0]

    def parsing(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def parse(*args: Any, **kwargs: Any) -> Any:
            depth[0] += 1
            try:
                return original(*args, **kwargs)
            finally:
                depth[0] -= 1
                if not depth[0]:
                    safely(_gin_parsed)(module)

        return parse

    names = ("parse_config", "parse_config_file", "parse_config_files_and_bindings")
    wrapped = {name: parsing(getattr(module, name)) for name in names}
    for name, fn in wrapped.items():
        setattr(module, name, fn)
    when_imported("gin", lambda package: package.__dict__.update(wrapped))
    facts.before_write.append(lambda: _gin_used(module))
    process.at_end.append(lambda: _gin_used(module))


def _gin_parsed(module: Any) -> None:
    where, _ = reads.caller()
    changes = settings.changes(GIN)
    for (scope, selector), bindings in list(module._CONFIG.items()):
        for parameter, value in list(bindings.items()):
            if not isinstance(value, (bool, int, float, str, list, tuple)):
                continue
            name = (scope + "/" if scope else "") + selector + "." + parameter
            reads.add_option(GIN, name, value, where, True)
            if name in changes:
                with module.unlock_config():
                    module.bind_parameter(name, reads.rebuilt(changes[name], value))
                reads.changed(GIN, name)


def _gin_used(module: Any) -> None:
    """A binding that gin has passed to its function counts as read."""
    for (scope, selector), bindings in list(module._OPERATIVE_CONFIG.items()):
        for parameter in bindings:
            name = (scope + "/" if scope else "") + selector + "." + parameter
            if (GIN + ":" + name) in reads._options:
                reads.bulk(GIN, name, "argument of a function", selector)
