"""What the simulators' compiled loops share; imported before the first of them is called."""

from __future__ import annotations

import zlib
from pathlib import Path
from types import ModuleType

import numba

# numba's OpenMP layer shares its pool with torch and sets torch's number of threads; this one keeps to itself.
numba.config.THREADING_LAYER = "workqueue"


def stamp(*modules: ModuleType) -> int:
    """A number made of the files of `modules`, for the closure of a loop that is compiled from them.

    numba's disk cache looks at the file of the loop only and would miss a change of the rules. What a closure holds is
    part of the cache's key where the loop uses it: add 0 times the number to something.
    """
    return zlib.crc32(b"".join(Path(module.__file__).read_bytes() for module in modules))
