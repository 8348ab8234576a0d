"""OmegaConf and Hydra: options are the values of configurations that the user's code creates."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from typing import Any

from powerband_attach.audit import reads, settings
from powerband_attach.audit.parsers.mapping import line_of, plain
from powerband_attach.imports import when_imported
from powerband_attach.safely import safely

PARSER = "omegaconf"
INTERPOLATION = re.compile(r"\$\{([^:{}]+)\}")
_names: set[str] = set()


def install() -> None:
    """Wraps the access of `DictConfig`, the functions that create configurations, and Hydra's decorator."""
    when_imported("omegaconf.dictconfig", _wrap_access)
    when_imported("omegaconf.omegaconf", _wrap_creation)
    when_imported("hydra", _wrap_hydra)
    when_imported("hydra.main", _wrap_hydra)


def _wrap_access(module: Any) -> None:
    cls = module.DictConfig
    for name in ("__getattr__", "__getitem__", "get", "pop"):
        setattr(cls, name, _reading(getattr(cls, name)))
    for name in ("keys", "items", "items_ex", "values", "__iter__", "__repr__", "__str__", "__getstate__"):
        if hasattr(cls, name):
            setattr(cls, name, _bulk_reading(getattr(cls, name), name))


def _reading(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def read(self: Any, key: Any, *args: Any, **kwargs: Any) -> Any:
        if _names and isinstance(key, str) and key[:1] != "_":
            safely(_note)(self, key)
        return original(self, key, *args, **kwargs)

    return read


def _note(config: Any, key: str) -> None:
    _note_name(config, config._get_full_key(key), 0)


def _note_name(config: Any, name: str, depth: int) -> None:
    """Notes a read of an option, and of the options that its interpolations name."""
    if name in _names:
        reads.note(PARSER, name, depth=5 + depth)
    root = config._get_root()
    node: Any = root
    for part in name.split("."):
        node = node._get_node(part) if hasattr(node, "_get_node") and hasattr(node, "keys") else None
        if node is None:
            return
    raw = node._value()
    if isinstance(raw, str) and depth < 8:
        for target in INTERPOLATION.findall(raw):
            levels = len(target) - len(target.lstrip("."))
            parents = name.split(".")[: -levels or None] if levels else []
            _note_name(config, ".".join([*parents, target.lstrip(".")]), depth + 1)


def _bulk_reading(original: Callable[..., Any], how: str) -> Callable[..., Any]:
    @functools.wraps(original)
    def read(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _names:
            safely(_note_bulk)(self, how)
        return original(self, *args, **kwargs)

    return read


def _note_bulk(config: Any, how: str) -> None:
    reads.note_bulk(PARSER, _prefix(config), how, depth=4)


def _prefix(config: Any) -> str:
    name = config._get_full_key("")
    return str(name).rstrip(".") + "." if name and str(name) != "." else ""


def _wrap_creation(module: Any) -> None:
    cls = module.OmegaConf
    for name in ("load", "from_cli", "from_dotlist", "structured", "create"):
        setattr(cls, name, staticmethod(_creating(getattr(cls, name), name)))
    for name in ("to_container", "to_yaml", "to_object", "save"):
        setattr(cls, name, staticmethod(_writing(getattr(cls, name), name)))


_depth = [0]


def _creating(original: Callable[..., Any], how: str) -> Callable[..., Any]:
    @functools.wraps(original)
    def create(*args: Any, **kwargs: Any) -> Any:
        args = tuple(plain(item) for item in args)
        _depth[0] += 1
        try:
            result = original(*args, **kwargs)
        finally:
            _depth[0] -= 1
        if not _depth[0] and reads.called_by_user_code():
            path = args[0] if how == "load" and args and isinstance(args[0], str) else ""
            safely(_created)(result, str(path), how != "structured")
        return result

    return create


def _writing(original: Callable[..., Any], how: str) -> Callable[..., Any]:
    @functools.wraps(original)
    def write(cfg: Any, *args: Any, **kwargs: Any) -> Any:
        if hasattr(cfg, "_get_full_key") and _names:
            where, _ = reads.caller()
            reads.bulk(PARSER, _prefix(cfg), how, where)
        return original(cfg, *args, **kwargs)

    return write


def _created(config: Any, path: str, given: bool, where: str = "") -> None:
    """Registers the values of a configuration as options and applies the changes."""
    from omegaconf import OmegaConf

    where = where or reads.caller()[0]
    text = ""
    if path:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read(1_000_000)
    changes = settings.changes(PARSER)
    for name, value in list(_leaves(config, "")):
        line = line_of(text, name.split(".")[-1]) if text else 0
        reads.add_option(PARSER, name, value, settings.place(path, line) if line else where, given)
        _names.add(name)
        if name in changes:
            OmegaConf.update(config, name, reads.rebuilt(changes[name], value), merge=False, force_add=True)
            reads.changed(PARSER, name)


def _leaves(config: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    if not hasattr(config, "keys"):
        return
    nodes = config.__dict__["_content"]
    for key, node in nodes.items() if isinstance(nodes, dict) else ():
        name = prefix + str(key)
        if hasattr(node, "keys") and isinstance(node.__dict__["_content"], dict):
            yield from _leaves(node, name + ".")
        elif hasattr(node, "__iter__") and hasattr(node, "_content"):
            content = node.__dict__["_content"]
            if isinstance(content, list):  # else it is missing, null or an interpolation
                yield name, [item._value() for item in content]
        elif not (isinstance(node._value(), str) and "${" in node._value()) and node._value() != "???":
            yield name, node._value()


def _wrap_hydra(module: Any) -> None:
    original = getattr(module, "main", None)
    if not callable(original) or hasattr(original, "__powerband__"):
        return

    @functools.wraps(original)
    def main(*args: Any, **kwargs: Any) -> Any:
        decorate = original(*args, **kwargs)

        def decorated(task: Any) -> Any:
            where = settings.place(task.__code__.co_filename, task.__code__.co_firstlineno)

            def call(config: Any) -> Any:
                safely(_created)(config, "", True, where)
                return task(config)

            run: Any = functools.wraps(task)(call)

            # Hydra finds the folder of the configuration from the file of the function's code.
            run.__code__ = run.__code__.replace(co_filename=task.__code__.co_filename)
            return decorate(run)

        return decorated

    main.__powerband__ = True  # type: ignore[attr-defined]
    module.main = main
