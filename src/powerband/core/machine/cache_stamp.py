"""Cache stamp: makes numba's disk cache depend on all source files that a kernel is compiled from."""

from __future__ import annotations

import zlib
from pathlib import Path
from types import ModuleType

import numba

# numba's OpenMP layer shares its thread pool with torch and changes torch's number of threads. "workqueue" does not.
# The setting must precede the first parallel kernel, and every module with such a kernel imports this one.
numba.config.THREADING_LAYER = "workqueue"  # type: ignore[attr-defined]


def source_checksum(*modules: ModuleType) -> int:
    """Computes the CRC-32 checksum of the source files of `modules`, on which a cached numba kernel then depends.

    numba recompiles a cached kernel if the kernel's own file or a value in its closure changes. numba does not notice a
    change in another file whose functions are inlined into the kernel. The kernel therefore refers to this checksum in
    its closure: it adds 0 times the checksum to one of its results.

    Args:
        modules: Every module whose functions or constants the kernel uses, directly or through another one.
    """
    return zlib.crc32(b"".join(Path(str(module.__file__)).read_bytes() for module in modules))
