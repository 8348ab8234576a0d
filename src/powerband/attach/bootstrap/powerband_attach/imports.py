"""Import hooks: run a function after a module was imported, without importing it.

One finder stands at the front of ``sys.meta_path``. For a module with a callback, it lets the other finders search and
replaces the loader during the import only. Afterwards the module has its own loader again, so `inspect`,
`importlib.resources` and `pkgutil` see nothing new.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from powerband_attach.safely import safely

_callbacks: dict[str, list[Callable[[ModuleType], Any]]] = {}


def when_imported(name: str, callback: Callable[[ModuleType], Any]) -> None:
    """Runs `callback` with the module `name` right after its import; at once if it was imported before.

    Args:
        name: Dotted name of the module.
        callback: Function of the module. Its errors are recorded and ignored.
    """
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    _callbacks.setdefault(name, []).append(callback)
    module = sys.modules.get(name)
    if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
        safely(callback)(module)


class _Finder:
    """Finder that adds callbacks to the modules that other finders find."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in _callbacks:
            return None
        for finder in list(sys.meta_path):
            # A finder without `find_spec` is of the kind that Python 3.12 removed.
            if finder is self or not callable(getattr(finder, "find_spec", None)):
                continue
            spec: Any = finder.find_spec(name, path, target)
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = _Loader(spec.loader)
                return spec
        return None

    def invalidate_caches(self) -> None:
        pass


class _Loader:
    """Loader of one import: behaves as the loader that it wraps, and runs the callbacks after the module's code."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)

    def create_module(self, spec: Any) -> Any:
        return self.loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        module.__spec__.loader = module.__loader__ = self.loader
        self.loader.exec_module(module)
        for callback in list(_callbacks.get(module.__spec__.name, ())):
            safely(callback)(module)
