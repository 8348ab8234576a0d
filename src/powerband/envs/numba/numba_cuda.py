"""Provides numba's module `cuda`, also with NumPy 2.5, with which numba-cuda 0.30 fails.

NumPy 2.5 removed `row_stack`, an old name of `vstack`. numba-cuda still reads that name in a module that it imports at
the first compilation of a kernel. This file therefore imports that module early, and defines the name only during these
imports, so that no other module of the process finds it.
"""

from __future__ import annotations

import contextlib
import importlib
import warnings
from typing import Any

import numpy as np

with contextlib.suppress(ImportError):  # in a folder of PYTHONPATH, numba-cuda is used only after this import
    importlib.import_module("_numba_cuda_redirector")

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

# Small environments have small grids. `powerband profile` says whether that limits the run.
warnings.filterwarnings("ignore", message=r".*Grid size \d+ will likely result")

__all__ = ["cuda"]
