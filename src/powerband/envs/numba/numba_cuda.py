"""Imports numba-cuda, also with a NumPy that lacks a name which numba-cuda 0.30 reads at its import.

NumPy 2.5 removed `row_stack`, an old name of `vstack`. numba-cuda reads it in a module that it imports at the first
compilation. That module is therefore imported here, and the name exists only meanwhile.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

if hasattr(np, "row_stack"):
    from numba import cuda
else:
    numpy: Any = np  # its types do not have the name
    numpy.row_stack = np.vstack
    try:
        from numba import cuda

        importlib.import_module("numba.cuda.np.arrayobj")
    finally:
        del numpy.row_stack

__all__ = ["cuda"]
