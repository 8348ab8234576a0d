"""Dispatch: runs a kernel by its name on all rows of a state, on CPU threads or on CUDA."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numba
import torch
from torch import Tensor

from powerband.envs.numba.arrays import device_array


class KernelState(Protocol):
    """Interface of the state of many environments, tensors on one device that compiled kernels update in place."""

    @property
    def arrays(self) -> Any:
        """The tensors as a named tuple of arrays for numba, each with one row per environment."""

    @property
    def num_rows(self) -> int:
        """Number of environments."""

    @property
    def device(self) -> torch.device:
        """Device of the tensors."""


def run_kernel(
    cpu_loops: Callable[[bool], Mapping[str, Callable[..., Any]]],
    cuda_module: str,
    name: str,
    state: KernelState,
    tables: Any,
    threads: int,
    *arguments: Any,
) -> None:
    """Runs one kernel on all environments of a state, on CPU threads or on torch's current CUDA stream.

    Args:
        cpu_loops: Function ``(parallel) -> {name: CPU version}``. With parallel=False, a CPU version is
            ``loop(arrays, tables, first, last, *arguments)``, which runs on the rows first, ... last - 1 in the calling
            thread. With parallel=True it is ``loop(arrays, tables, threads, *arguments)``, which runs on all rows.
        cuda_module: Name of the module with the CUDA versions, a dict ``LAUNCHES`` of name -> launcher(state, tables,
            *arguments). It is imported on first use, because it needs numba-cuda.
        name: Name of the kernel.
        state: State of all environments, which the kernel reads and writes. Its device selects CPU or CUDA.
        tables: Lookup tables on the device of the state.
        threads: Number of CPU threads.
        arguments: Remaining arguments of the kernel; tensors are converted to arrays.
    """
    converted = [device_array(value) if isinstance(value, Tensor) else value for value in arguments]
    if state.device.type == "cpu":
        rows: tuple[int, ...] = (0, state.num_rows)
        if threads > 1:
            numba.set_num_threads(threads)
            rows = (threads,)
        cpu_loops(threads > 1)[name](state.arrays, tables, *rows, *converted)
    else:
        importlib.import_module(cuda_module).LAUNCHES[name](state, tables, *converted)
