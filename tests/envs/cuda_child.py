"""CUDA kernels without a GPU, in child processes: NVVM compiles them, and numba's simulator runs them."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SRC, TESTS = Path(__file__).parents[2] / "src", Path(__file__).parents[1]

# While numba-cuda compiles, it queries the compute capability of the device and searches NVRTC, which it does not use.
PRELUDE = """
import types
import numba
import torch
from numba import cuda
from numba.cuda import cuda_paths, dispatcher

dispatcher.get_current_device = lambda: types.SimpleNamespace(compute_capability=(9, 0))
cuda_paths._get_nvrtc_path = lambda: None
try:
    from numba.cuda.cudadrv import nvvm
    nvvm.NVVM()
    assert cuda_paths.get_cuda_paths()["libdevice"].info
except Exception as error:
    print("MISSING", type(error).__name__, str(error).splitlines()[0])
    raise SystemExit


def compiled(kernel, *arguments):
    ptx, _ = cuda.compile_ptx(kernel.py_func, arguments, cc=(9, 0))
    assert ".visible .entry" in ptx
    print("PTX", len(ptx.splitlines()))
    return ptx
"""


def run(script: str, **environment: str) -> str:
    """Output of `script` in a new Python process."""
    paths = os.pathsep.join([str(SRC), str(TESTS)])
    env = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", **environment}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def count_compiled(script: str) -> int:
    """Number of kernels that `script` compiles with ``compiled(kernel, *types)``; skips the test without NVVM."""
    pytest.importorskip("numba.cuda.cuda_paths", reason="numba-cuda is not installed")
    homes = [Path(home) for home in (os.environ.get("CUDA_HOME", ""), "/usr/local/cuda") if home]
    if shutil.which("nvcc"):
        homes.append(Path(shutil.which("nvcc")).resolve().parents[1])
    folders = [str(home / part) for home in homes for part in ("nvvm/lib64", "lib64", "lib")]
    path = ":".join([*folders, os.environ.get("LD_LIBRARY_PATH", "")])
    output = run(PRELUDE + script, LD_LIBRARY_PATH=path, NUMBA_FORCE_CUDA_CC="9.0")
    if "MISSING" in output:
        pytest.skip(f"no NVVM here: {output.strip()}")
    return output.count("PTX")


def both(script: str) -> tuple[str, str]:
    """Output of `script` in a process with numba's CUDA simulator, and without the simulator in this process."""
    pytest.importorskip("numba.cuda", reason="numba-cuda is not installed")
    simulated = run(script, NUMBA_ENABLE_CUDASIM="1", NUMBA_DISABLE_JIT="1")
    with contextlib.redirect_stdout(io.StringIO()) as plain:
        exec(compile(script, "<script>", "exec"), {"__name__": "script"})
    return simulated, plain.getvalue()
