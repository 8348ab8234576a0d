"""User code: which files are the user's, and which belong to packages, to the interpreter or to this package.

The user's code is every file outside of the interpreter's library, of folders of packages, and of the folder in which
torch keeps the code that it generates. Folders of packages are site-packages, dist-packages, and those that
``pip install --target`` has filled.
"""

from __future__ import annotations

import functools
import os
import sys
import sysconfig

_OWN = os.path.dirname(os.path.abspath(__file__))
_STANDARD = tuple(
    {
        folder + os.sep
        for name in ("stdlib", "platstdlib")
        for path in [sysconfig.get_path(name)]
        if path
        for folder in (path, os.path.realpath(path))
    }
)
_PACKAGES = ("/site-packages/", "/dist-packages/")


def is_own_file(path: str) -> bool:
    """Returns whether a file belongs to this package."""
    return path.startswith(_OWN)


@functools.lru_cache(maxsize=10_000)
def is_user_file(path: str) -> bool:
    """Returns whether a file is the user's code."""
    return not (is_own_file(path) or is_package_file(path) or is_compiled_file(path) or is_standard_file(path))


def is_package_file(path: str) -> bool:
    """Returns whether a file belongs to an installed package."""
    if any(part in path for part in _PACKAGES):
        return True
    return any(path.startswith(os.path.join(folder, "")) and _holds_packages(folder) for folder in sys.path if folder)


def is_torch_file(path: str) -> bool:
    """Returns whether a file belongs to torch. Other packages have folders of that name, such as ``agents/torch``."""
    if any(part + "torch/" in path for part in _PACKAGES):
        return True
    file = getattr(sys.modules.get("torch"), "__file__", None)
    return bool(file) and path.startswith(os.path.join(os.path.dirname(str(file)), ""))


@functools.lru_cache(maxsize=1000)
def _holds_packages(folder: str) -> bool:
    """Returns whether pip has installed packages into a folder. An editable package leaves no ``.dist-info`` there."""
    try:
        return any(name.endswith(".dist-info") for name in os.listdir(folder))
    except OSError:
        return False


def is_compiled_file(path: str) -> bool:
    """Returns whether torch has generated a file, by ``torch.compile``. Torch sets the variable when it does."""
    folder = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    return "/torchinductor_" in path or bool(folder and path.startswith(os.path.join(folder, "")))


@functools.lru_cache(maxsize=10_000)
def is_standard_file(path: str) -> bool:
    """Returns whether a file belongs to the interpreter's library, or is code without a file."""
    if path.startswith("<"):
        return True
    if is_package_file(path):  # these folders lie inside of the interpreter's library
        return False
    return path.startswith(_STANDARD) or os.path.realpath(path).startswith(_STANDARD)
