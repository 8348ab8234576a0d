"""Wraps the private interfaces of MuJoCo, version 3.3, that metaworld uses; no other file of metaworld uses them.

Compiled code calls functions of MuJoCo's own library with the addresses of mjModel and mjData, because the Python
bindings take Python's global lock and copy. The addresses (`_address`) and the library's file name are not documented.
The test `test_mujoco_private.py` names the version that they were written for.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llvmlite import binding
from numba.core import types

from powerband.core.errors import ConfigError

_nothing, _pointer, _int = types.void, types.uintp, types.int32
mj_step = types.ExternalFunction("mj_step", _nothing(_pointer, _pointer))
mj_forward = types.ExternalFunction("mj_forward", _nothing(_pointer, _pointer))
mj_get_state = types.ExternalFunction("mj_getState", _nothing(_pointer, _pointer, _pointer, _int))
mj_set_state = types.ExternalFunction("mj_setState", _nothing(_pointer, _pointer, _pointer, _int))
mju_copy = types.ExternalFunction("mju_copy", _nothing(_pointer, _pointer, _int))


def address_of(struct: Any) -> int:
    """Returns the address of the C struct behind an MjModel or an MjData; it is valid while the object lives."""
    return struct._address


def load_library() -> None:
    """Makes the functions of MuJoCo's library visible to compiled code. Call it before the first compiled call.

    Raises:
        ConfigError: The library is not in the folder of the mujoco package.
    """
    import mujoco

    folder = Path(mujoco.__file__).parent
    found = [path for path in folder.iterdir() if path.name.startswith(("libmujoco.", "mujoco.dll"))]
    if not found:
        raise ConfigError(f"backend=threads: {folder} has no MuJoCo library. Write backend=workers.")
    binding.load_library_permanently(str(found[0]))
