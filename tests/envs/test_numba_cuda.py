"""numba-cuda is usable with a NumPy that lacks a name which it reads."""

from __future__ import annotations

import pytest

from envs.cuda_child import run

CHILD = """
import numpy
if hasattr(numpy, "row_stack"):
    del numpy.row_stack
from powerband.envs.numba.numba_cuda import cuda
import numba.cuda.np.arrayobj  # numba-cuda imports it at the first compilation
assert cuda.jit and not hasattr(numpy, "row_stack")
"""


def test_numba_cuda_is_imported_without_numpys_row_stack() -> None:
    pytest.importorskip("numba.cuda", reason="numba-cuda is not installed")
    run(CHILD)
