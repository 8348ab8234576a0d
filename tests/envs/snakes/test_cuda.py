"""The CUDA kernels without a GPU: NVVM compiles them, and numba's simulator runs them to the bits of the CPU loops."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).parents[3] / "src"

COMPILE = """
import types
import numba
import torch
from numba import cuda
from numba.cuda import cuda_paths, dispatcher
from numba.cuda.cudadrv.error import CudaSupportError, NvvmSupportError
from powerband.envs.snakes.board import SnakesState
from powerband.envs.snakes.cuda import move, restart
from powerband.envs.snakes.kernels import Moves

# numba-cuda asks the current device for its generation while it compiles, and looks for NVRTC, which it does not need.
dispatcher.get_current_device = lambda: types.SimpleNamespace(compute_capability=(9, 0))
cuda_paths._get_nvrtc_path = lambda: None
try:
    from numba.cuda.cudadrv import nvvm
    nvvm.NVVM()
    assert cuda_paths.get_cuda_paths()["libdevice"].info
except Exception as error:
    print("MISSING", type(error).__name__, str(error).splitlines()[0])
    raise SystemExit
s = numba.typeof(SnakesState.empty(2).arrays)
m = numba.typeof(Moves(2, 4, torch.device("cpu")).arrays)
n, seed, flag = numba.int64, numba.uint64, numba.boolean
for kernel, arguments in ((move, (s, n, flag, seed, n, m)), (restart, (s, numba.uint8[::1], seed))):
    ptx, _ = cuda.compile_ptx(kernel.py_func, arguments, cc=(9, 0))
    assert ".visible .entry" in ptx and "call" not in ptx.split(".visible .entry")[1], "not all inlined"
    print("PTX", len(ptx.splitlines()))
"""

PLAY = """
import os, sys
import numpy as np
import torch
from powerband.envs.snakes.board import BoardArrays, SnakesState
from powerband.envs.snakes.kernels import MoveArrays, Moves, move_boards, restart_all, restart_boards

N, SEED = 3, 2**63 + 11
state, moves = SnakesState.empty(N, first_board=5), Moves(N, N + 2, torch.device("cpu"))
device = os.environ.get("NUMBA_ENABLE_CUDASIM") == "1"
if device:
    from numba import cuda
    from powerband.envs.snakes.cuda import move, restart
    s = BoardArrays(*map(cuda.to_device, state.arrays))
    m = MoveArrays(*map(cuda.to_device, moves.arrays))
    m.outcome.copy_to_device(np.full(N, 2, np.uint8))
    np.seterr(over="ignore")
    restart[1, 4](s, m.outcome, np.uint64(SEED))
else:
    restart_all(state, moves, seed=SEED)
    s, m = state.arrays, moves.arrays
rng = np.random.default_rng(0)
for t in range(60):
    action = rng.integers(0, 3 if t % 2 else 4, (N + 2, 3))
    if t == 30:
        step_count = np.array([198, 197, 20], np.int32)
        s.step_count.copy_to_device(step_count) if device else np.copyto(s.step_count, step_count)
    if device:
        m.action.copy_to_device(action)
        move[1, 4](s, 2, bool(t % 2), np.uint64(SEED), t % 3, m)
        restart[1, 4](s, m.outcome, np.uint64(SEED))
    else:
        np.copyto(m.action, action)
        move_boards(state, moves, mirrored=2, relative=bool(t % 2), seed=SEED, kind=t % 3, threads=1)
        restart_boards(state, moves, seed=SEED)
    arrays = {f"{t}/{k}": v for part in (s, m) for k, v in part._asdict().items()}
    if t in (0, 29, 30, 31, 32, 33, 58, 59):
        for name, value in arrays.items():
            value = value.copy_to_host() if device else value
            if value.dtype == np.float32:
                value = value.round(3) + np.float32(0)
            print(name, value.tolist())
"""


def run(script: str, **environment: str) -> str:
    """Output of `script` in a Python of its own."""
    env = {**os.environ, "PYTHONPATH": str(SRC), "OMP_NUM_THREADS": "1", **environment}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_kernels_compile_to_ptx():
    pytest.importorskip("numba.cuda.cuda_paths", reason="numba-cuda is not installed")
    homes = [Path(home) for home in (os.environ.get("CUDA_HOME", ""), "/usr/local/cuda") if home]
    if shutil.which("nvcc"):
        homes.append(Path(shutil.which("nvcc")).resolve().parents[1])
    folders = [str(home / part) for home in homes for part in ("nvvm/lib64", "lib64", "lib")]
    path = ":".join([*folders, os.environ.get("LD_LIBRARY_PATH", "")])
    output = run(COMPILE, LD_LIBRARY_PATH=path, NUMBA_FORCE_CUDA_CC="9.0")
    if "MISSING" in output:
        pytest.skip(f"no NVVM here: {output.strip()}")
    assert output.count("PTX") == 2


def test_simulated_kernels_play_like_the_cpu():
    pytest.importorskip("numba.cuda", reason="numba-cuda is not installed")
    simulated = run(PLAY, NUMBA_ENABLE_CUDASIM="1", NUMBA_DISABLE_JIT="1")
    assert simulated == run(PLAY)
    assert simulated
