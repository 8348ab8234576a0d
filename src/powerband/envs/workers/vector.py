"""WorkerVecEnv: CPU simulators in worker processes, several environments per process.

Actions and results are exchanged through one block of shared memory. A step costs one byte to and one byte from each
worker. The parent waits in a blocking read, so a worker that dies ends the wait with an end of file. With supervision,
the worker is restarted and its other environments continue.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from powerband.core.errors import ConfigError
from powerband.data.types import ResumeLevel, Step, Tree, tree_paths
from powerband.envs.adapters.spec import env_spec
from powerband.envs.workers import channel
from powerband.envs.workers.group import MAX_REPLAY_STEPS
from powerband.envs.workers.pool import ALL_WORKERS, WorkerPool
from powerband.envs.workers.pool_slice import PoolSlice
from powerband.envs.workers.processes import EnvCall, start_workers, stop_workers
from powerband.envs.workers.shared_arrays import SharedArrays, layout
from powerband.envs.workers.spaces import Spaces
from powerband.envs.workers.supervision import EnvFailure, FailureLog, Supervision

EnvFn = Callable[..., Any] | EnvCall
"""A function that creates an environment, alone or with its keyword arguments."""


class WorkerVecEnv:
    """N Gymnasium environments in worker processes behind the protocol `VecEnv`.

    Observations keep their nested structure. Floats become float32, uint8 and bool are kept, other integers become
    int64. Continuous actions have the units of the environment and are clipped to ``spec.low .. spec.high``. Discrete
    actions count from 0. Episode e of environment i, counted over all ranks, is reset with ``episode_seed(seed, i,
    e)``, so the numbers of ranks and workers change nothing.

    Args:
        env_fns: One function per environment that creates it, or (function, keyword arguments). Workers import the
            function by its name.
        num_workers: Worker processes; 0 steps the environments in this process, with the same results.
        device: Device of observations, rewards and flags.
        seed: Seed of the run, unless `reset` receives another one.
        first_env: Index of the first environment among those of all ranks (processes of the training).
        episode_metrics: Names of `info` values of the last step of an episode, for ``Step.episode``.
        resume: "replayed" for deterministic environments: a resumed run repeats the actions of the current episodes.
            "truncated": a resumed run truncates the current episodes.
        pin: Page-lock the shared memory for CUDA; None does so if `device` is a CUDA device.
        supervision: Continue after a failure of a simulator in a step (`Step.lost`); None raises EnvError.
        on_failure: Called with each failure that was repaired; needs `supervision`.

    Attributes:
        failures: Log of the failures so far; None without `supervision`.
        resumed: (N,) bool on the CPU, True for environments whose episode continued after `load_state_dict`. In all
            other environments, a new episode begins.
        halves: Two halves of the environments that can be stepped alone, for double buffering; empty with fewer than
            two workers.

    Raises:
        ConfigError: `num_workers` is out of range, or the settings of an environment are invalid.
        ConfigError: A worker cannot import a function, or the environments have different spaces.
        EnvError: An environment raised an exception while it was created.
    """

    def __init__(
        self,
        env_fns: Sequence[EnvFn],
        *,
        num_workers: int,
        device: torch.device | str = "cpu",
        seed: int = 0,
        first_env: int = 0,
        episode_metrics: tuple[str, ...] = (),
        resume: ResumeLevel = "replayed",
        pin: bool | None = None,
        supervision: Supervision | None = None,
        on_failure: Callable[[EnvFailure], object] | None = None,
    ) -> None:
        self.num_envs, self.device, self.seed, self.first_env = len(env_fns), torch.device(device), seed, first_env
        if not 0 <= num_workers <= self.num_envs or not self.num_envs:
            raise ConfigError(
                f"num_workers={num_workers} does not fit {self.num_envs} environments: a worker steps at least one. "
                f"Write num_workers=0 (steps in this process) to num_workers={self.num_envs}."
            )
        calls = [env_fn if isinstance(env_fn, tuple) else (env_fn, {}) for env_fn in env_fns]
        self.failures = None if supervision is None else FailureLog(supervision, on_failure)
        self._workers = start_workers(calls, num_workers, first_env, episode_metrics, supervision is not None)
        self._worker_pool = WorkerPool(self._workers, first_env, self.failures)
        self._stopped = weakref.finalize(self, stop_workers, self._workers)
        self._pinned = False
        try:
            self._bind([reply[1] for reply in self._worker_pool.replies()], episode_metrics, resume)
        except BaseException:
            self.close()
            raise
        self._pinned = self.device.type == "cuda" and pin is not False and _page_lock(self._shared_arrays)
        self._all_rows, half = self._slice(ALL_WORKERS, episode_metrics), len(self._workers) // 2
        parts = (slice(0, half), slice(half, len(self._workers))) if half else ()
        self.halves = tuple(self._slice(workers, episode_metrics) for workers in parts)

    def _slice(self, workers: slice, episode_metrics: tuple[str, ...]) -> PoolSlice:
        shared = self._worker_pool, workers, self._tensors, self.spec, self._paths, episode_metrics
        return PoolSlice(*shared, self.device, self._pinned)

    def _bind(self, spaces: list[Spaces], episode_metrics: tuple[str, ...], resume: ResumeLevel) -> None:
        """Maps the shared memory according to the spaces that the workers have replied with."""
        if any(other != spaces[0] for other in spaces):
            raise ConfigError(
                f"All environments of a vector need the same spaces, but these differ: {spaces}. Create all of them "
                f"with the same arguments."
            )
        limit_s = 0.0 if self.failures is None else self.failures.settings.deadline_s
        spec = env_spec(spaces[0], resume, overlappable=self._workers[0].process is not None)
        self.spec = replace(spec, recv_limit_s=limit_s)
        log_steps = min(spaces[0].max_episode_steps or MAX_REPLAY_STEPS, MAX_REPLAY_STEPS)
        fields = layout(spaces[0], self.num_envs, len(self._workers), episode_metrics, log_steps)
        self._shared_arrays = SharedArrays(fields, self._workers[0].memory_fd)
        self._worker_pool.bind(fields, self._shared_arrays)
        self._tensors = {name: torch.from_numpy(array) for name, array in self._shared_arrays.arrays.items()}
        self._paths = [path for path, _ in spaces[0].obs_paths()]
        self.resumed = torch.ones(self.num_envs, dtype=torch.bool)

    # -- the protocol -----------------------------------------------------------------------------------------------

    def reset(self, seed: int | None = None) -> Tree:
        """Starts episode 0 of every environment.

        Args:
            seed: New seed of the run; None keeps the current one.

        Returns:
            Observations (N, ...).
        """
        self.seed = self._worker_pool.seed = self.seed if seed is None else seed
        self._worker_pool.request(channel.RESET, [self.seed] * len(self._workers))
        self.resumed.fill_(True)
        return self.observe()

    def observe(self) -> Tree:
        """Returns the current observations (N, ...), a copy."""
        return self._all_rows.observe()

    def send(self, action: Tensor) -> None:
        """Starts a step of all workers.

        Args:
            action: Actions (N, ...); continuous actions are clipped to the bounds.

        Raises:
            ConfigError: The shape is wrong.
        """
        self._all_rows.send(action)

    def recv(self) -> Step:
        """Waits for the step of all environments and returns its result.

        Environments whose episode ended are already reset. With supervision, `Step.lost` marks environments whose
        simulator failed in this step.

        Raises:
            EnvError: An environment raised an exception or its worker died. The message names environment, episode,
                step and seed. With supervision, only if that happened too often.
        """
        return self._all_rows.recv()

    def step(self, action: Tensor) -> Step:
        """Calls `send`, then `recv`."""
        self.send(action)
        return self.recv()

    def worker_statistics(self) -> dict[str, Any]:
        """Returns the cost of the steps so far.

        Returns:
            ``spent_s`` and ``worst_s``: total time and longest step of each environment in seconds. ``worker_rows``:
            indices of the environments of each worker. ``cpu_s``: processor time of each worker process in seconds,
            empty without worker processes. ``renderer``: name of the renderer; None if no environment reports one.
        """
        parts = self._worker_pool.request(channel.STATISTICS, [None] * len(self._workers))
        seconds = {kind: [ns * 1e-9 for part in parts for ns in part[f"{kind}_ns"]] for kind in ("spent", "worst")}
        return {
            "spent_s": seconds["spent"],
            "worst_s": seconds["worst"],
            "worker_rows": [list(range(worker.rows.start, worker.rows.stop)) for worker in self._workers],
            "cpu_s": [part["cpu_s"] for part in parts] if self.spec.overlappable else [],
            "renderer": next((part["renderer"] for part in parts if part["renderer"]), None),
        }

    def state_dict(self) -> dict[str, Any]:
        """Returns the state for a checkpoint.

        It contains the index, length, logged actions and last observation of the current episode of each environment.
        """
        assert not self._worker_pool.in_flight, "state_dict between send and recv"
        log, length = self._shared_arrays.arrays["log"], self._shared_arrays.arrays["length"]
        logged = length <= log.shape[1]
        logs = [log[row, : length[row]].tobytes() for row in range(self.num_envs) if logged[row]]
        return {
            "seed": self.seed,
            "first_env": self.first_env,
            "episode": self._tensors["episode"].clone(),
            "length": self._tensors["length"].clone(),
            "logged": torch.from_numpy(logged),
            "actions": torch.frombuffer(bytearray(b"".join(logs) or b"\0"), dtype=torch.uint8),
            "obs": self.observe(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues the episodes of a result of `state_dict`: resets each with its seed and repeats its actions.

        An episode continues only if that leads to the saved observation, bit for bit. Otherwise, and always with
        ``resume="truncated"``, the next episode begins. `resumed` marks the environments whose episode continues.

        Raises:
            ConfigError: The state belongs to another number of environments or to other global indices.
        """
        here, saved = (self.num_envs, self.first_env), (len(state["episode"]), state["first_env"])
        if here != saved:
            raise ConfigError(
                f"The saved state has {saved[0]} environments, numbered from {saved[1]} over all ranks, but this rank "
                f"has {here[0]}, numbered from {here[1]}. Resume with the same num_envs and number of ranks."
            )
        self.seed = self._worker_pool.seed = state["seed"]
        for name in ("episode", "length"):
            self._tensors[name].copy_(state[name])
        for name, leaf in tree_paths(state["obs"], "obs"):
            self._tensors[name].copy_(leaf)
        replayed = (state["logged"] & (self.spec.resume == "replayed")).tolist()
        log = self._shared_arrays.arrays["log"]
        _restore_logs(log, state["actions"], state["length"].tolist(), state["logged"].tolist())
        self._worker_pool.request(channel.REPLAY, [(self.seed, replayed[worker.rows]) for worker in self._workers])
        self.resumed = self._tensors["resumed"].clone()
        truncated = int((~self.resumed).sum())
        if truncated:
            warnings.warn(
                f"{truncated} of the {self.num_envs} episodes that ran at the checkpoint could not be continued. They "
                f"were truncated, and new episodes have begun.",
                stacklevel=2,
            )

    def close(self) -> None:
        """Closes the environments and ends the workers within about 3 seconds; may be called again."""
        if self._pinned:
            torch.cuda.cudart().cudaHostUnregister(self._tensors["action"].data_ptr())
            self._pinned = False
        self._stopped()


def _restore_logs(log: np.ndarray, actions: Tensor, lengths: list[int], logged: list[bool]) -> None:
    """Writes saved actions into the logs of the environments.

    Args:
        log: Logged actions (N, steps, ...) of N environments, written in place.
        actions: Bytes (n,) uint8 of the actions of all logged episodes, concatenated.
        lengths: Steps of the current episode of each environment.
        logged: True for each episode whose actions were saved.
    """
    data, offset, size = actions.numpy().tobytes(), 0, log[0, 0].nbytes
    for row, (length, has_actions) in enumerate(zip(lengths, logged, strict=True)):
        if has_actions and length <= log.shape[1]:
            part = np.frombuffer(data, log.dtype, length * log[0, 0].size, offset)
            log[row, :length] = part.reshape(length, *log.shape[2:])
        offset += length * size if has_actions else 0


def _page_lock(shared_arrays: SharedArrays) -> bool:
    """Page-locks the arrays that are copied to CUDA. Returns True, or False with a warning if the driver refuses."""
    memory = torch.frombuffer(shared_arrays.memory, dtype=torch.uint8)
    code = int(torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), shared_arrays.starts["log"], 0))
    if code:
        warnings.warn(
            f"The memory shared with the workers could not be page-locked (CUDA error {code}). Training continues, "
            f"with slower copies to the GPU.",
            stacklevel=3,
        )
    return code == 0
