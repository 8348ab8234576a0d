"""WorkerPool: sends commands to the workers of a vector, collects replies, and restarts workers that fail in a step."""

from __future__ import annotations

import signal
import time
from typing import Any

from powerband.core.errors import ConfigError
from powerband.envs.workers import channel
from powerband.envs.workers.group import NO_ROW
from powerband.envs.workers.processes import CLOSE_TIMEOUT_S, Worker, WorkerProcess
from powerband.envs.workers.seeds import episode_seed
from powerband.envs.workers.shared_arrays import Layout, SharedArrays
from powerband.envs.workers.supervision import EnvError, EnvFailure, FailureLog, describe_episode

WORKER_ERRORS = (EnvError, EOFError, ConnectionError, TimeoutError)
ALL_WORKERS = slice(None)
"""Every worker of a pool."""
RESTART_TIMEOUT_S = 60.0
"""Seconds that a restart may take if the deadline of a step is shorter, because simulators load slowly. To this it adds
the deadline of each step that the new worker repeats."""
MOST_CREATIONS = 5
"""Failures to create the environments of one worker again after which the run ends: more attempts would hardly help."""
LEAST_TIMEOUT_S = 0.1
"""Seconds for which a worker is asked after the deadline of a step, because another one took until then."""
FAILURE_FIELDS = ("env_id", "episode", "step", "seed", "kind", "description")


class WorkerPool:
    """The workers that step the environments of a vector; each has an equal share of them.

    Args:
        workers: Started workers; a restart replaces its entry in this list.
        first_env: Index of the environment in row 0 among those of all ranks (processes of the training).
        failures: Log of failures that were repaired; None if the first failure ends the run.

    Attributes:
        seed: Seed of the run, from which the seeds of the current episodes follow.
        steps: Number of step commands that each worker has received.
        in_flight: Indices of the workers that are stepping.
    """

    def __init__(self, workers: list[Worker], first_env: int, failures: FailureLog | None) -> None:
        self.workers, self.first_env, self.failures = workers, first_env, failures
        self.shared_arrays: SharedArrays | None = None
        self.seed = 0
        self.steps = [0] * len(workers)
        self.in_flight: set[int] = set()

    def bind(self, fields: Layout, shared_arrays: SharedArrays) -> None:
        """Sends the layout of the shared memory to the workers.

        Args:
            fields: Layout: name -> (shape, dtype) of the arrays.
            shared_arrays: Arrays of this layout in this process.
        """
        self.fields, self.shared_arrays = fields, shared_arrays
        shared_arrays.arrays["active_row"].fill(NO_ROW)
        self.request(channel.BIND, [fields if worker.process else shared_arrays for worker in self.workers])
        self._limit_steps(True)

    def _limit_steps(self, limited: bool) -> None:
        """Sets the deadline of a step for all replies of supervised workers, or none."""
        if self.failures is not None:
            for worker in self.workers:
                worker.set_timeout(self.failures.settings.deadline_s if limited else None)

    def request(self, command: bytes, payloads: list[Any]) -> list[Any]:
        """Sends a command to all workers and waits for their replies.

        A reset, which may load a scene, and a replay of many steps may take longer than the deadline of one step.

        Args:
            command: Byte of the command, see `channel`.
            payloads: Arguments of the command, one entry per worker; None for a command without arguments.

        Returns:
            Payload of each worker's reply.
        """
        assert not self.in_flight, f"{command!r} between send and recv"
        long = command in (channel.RESET, channel.REPLAY)
        if long:
            self._limit_steps(False)
        for worker, payload in zip(self.workers, payloads, strict=True):
            worker.send(command, payload)
        replies = [payload for _, payload in self.replies()]
        if long:
            self._limit_steps(True)
        return replies

    def step(self, part: slice) -> None:
        """Starts a step of some workers; `part` is the slice of the list of workers."""
        for worker in self.workers[part]:
            assert worker.index not in self.in_flight, "send twice without recv"
            self.in_flight.add(worker.index)
            self.steps[worker.index] += 1
            worker.send(channel.STEP)

    def wait_for_step(self, part: slice) -> bool:
        """Waits for the step of some workers; `part` is the slice of the list of workers.

        Returns:
            True if an episode ended or was truncated.

        Raises:
            EnvError: A failure could not be repaired, or there were too many failures.
        """
        indices = {worker.index for worker in self.workers[part]}
        assert indices <= self.in_flight, "recv without send"
        replies = {reply for reply, _ in self.replies(part, recover=self.failures is not None)}
        self.in_flight -= indices
        for worker in self.workers[part]:
            while worker.pending_failures:
                assert self.failures is not None
                self.failures.add(EnvFailure(worker=worker.index, **worker.pending_failures.pop(0)))
        return channel.EPISODE_ENDED in replies

    def replies(self, part: slice = ALL_WORKERS, recover: bool = False) -> list[tuple[bytes, Any]]:
        """Collects one reply per worker. All workers have replied before a failure is handled.

        Args:
            part: Slice of the workers whose replies are pending.
            recover: Restart workers that failed; false raises an error.

        Returns:
            Byte and payload of each reply; those of restarted workers are last.

        Raises:
            ConfigError: The settings of an environment are invalid.
            EnvError: An environment failed, and `recover` is false or the environments step in this process.
        """
        replies: list[tuple[bytes, Any]] = []
        failures: list[tuple[Worker, EnvError]] = []
        deadline_s = self.failures.settings.deadline_s if recover and self.failures is not None else 0.0
        ends = time.monotonic() + deadline_s
        for worker in self.workers[part]:
            shortened = bool(failures) and deadline_s > 0
            if shortened:  # workers that hang together have one deadline, not one after another
                worker.set_timeout(max(LEAST_TIMEOUT_S, ends - time.monotonic()))
            try:
                replies.append(worker.recv())
            except WORKER_ERRORS as error:
                failures.append((worker, self._described(worker, error)))
            if shortened:
                worker.set_timeout(deadline_s)
        for worker, failure in failures:
            if failure.facts.get("refused"):
                raise ConfigError(str(failure)) from None
            if not recover or not isinstance(worker, WorkerProcess):
                raise failure
            replies.append(self._recovered(worker, failure))
        return replies

    # -- failures ---------------------------------------------------------------------------------------------------

    def _recovered(self, worker: WorkerProcess, error: EnvError) -> tuple[bytes, Any]:
        """Restarts a failed worker, which then completes the pending step. Returns the worker's reply."""
        assert self.failures is not None and self.shared_arrays is not None
        deadline_s, start = self.failures.settings.deadline_s, time.monotonic()
        row, attempts, creations = NO_ROW, 0, 0
        while True:
            facts, index = error.facts, worker.index
            failure = {"kind": "raised", "description": str(error), "worker": index, "actions": self._logged(facts)}
            if facts["doing"] == "make":  # the restarted worker failed: the step of the first failure is still pending
                failure |= {"env_id": None, "description": "could not create its environments", "trace": str(error)}
            else:
                row = NO_ROW if facts["env_id"] is None else facts["env_id"] - self.first_env - worker.rows.start
                failure |= {name: facts[name] for name in FAILURE_FIELDS if name in facts}
            worker = self.workers[index] = worker.restart()
            worker.set_timeout(max(RESTART_TIMEOUT_S, deadline_s))
            try:
                worker.recv()
                worker.send(channel.BIND, self.fields)
                worker.recv()
                repeated = int(self.shared_arrays.arrays["length"][worker.rows].sum())
                worker.set_timeout(max(RESTART_TIMEOUT_S, deadline_s) + deadline_s * repeated)
                worker.send(channel.RESTORE, (self.seed, self.steps[index], row))
                reply = worker.recv()
                worker.set_timeout(deadline_s)
            except WORKER_ERRORS as next_error:
                self.failures.add(EnvFailure(**failure))
                error = self._described(worker, next_error)
                if error.facts.get("refused"):
                    raise ConfigError(str(error)) from None
                attempts, creations = attempts + 1, creations + (error.facts["doing"] == "make")
                if creations == MOST_CREATIONS or attempts == self.failures.settings.max_failures:
                    raise error from None
                continue
            self.failures.add(EnvFailure(**failure, recovery_s=time.monotonic() - start))
            return reply

    def _described(self, worker: Worker, error: Exception) -> EnvError:
        """Returns an error that describes the failure of a worker: its kind and the environment that was stepping."""
        if isinstance(error, EnvError):
            return error
        assert isinstance(worker, WorkerProcess)
        if isinstance(error, TimeoutError):
            assert self.failures is not None
            kind, description = "hung", f"did not answer for {self.failures.settings.deadline_s:g} s"
        else:
            code = worker.process.wait(timeout=CLOSE_TIMEOUT_S)
            kind, description = "died", f"exited with code {code}"
            if code < 0:
                description = f"was killed by {signal.Signals(-code).name}"
        first, last = (self.first_env + row for row in (worker.rows.start, worker.rows.stop - 1))
        worker_name = f"Worker {worker.index} (environments {first} to {last})"
        if self.shared_arrays is None:
            return EnvError(
                f"{worker_name} {description} while it created its environments.", {"env_id": first, "doing": "make"}
            )
        arrays = self.shared_arrays.arrays
        active_row = int(arrays["active_row"][worker.index])
        facts: dict[str, Any] = {"env_id": None, "kind": kind, "description": description, "doing": "step"}
        if active_row == NO_ROW:
            return EnvError(f"{worker_name} {description} while none of its environments was stepping.", facts)
        row = worker.rows.start + active_row
        facts |= {"episode": int(arrays["episode"][row]), "step": int(arrays["length"][row])}
        facts["env_id"] = self.first_env + row
        facts["seed"] = episode_seed(self.seed, facts["env_id"], facts["episode"])
        return EnvError(f"{worker_name} {description} while it stepped {describe_episode(facts).rstrip(',')}.", facts)

    def _logged(self, facts: dict[str, Any]) -> Any:
        """Returns the logged actions (steps + 1, ...) of the episode that failed.

        `facts` are those of an `EnvError`. None means that no environment was stepping, or that the episode is longer
        than the log.
        """
        if facts["env_id"] is None or "step" not in facts:
            return None
        assert self.shared_arrays is not None
        log, step = self.shared_arrays.arrays["log"][facts["env_id"] - self.first_env], facts["step"]
        return log[: step + 1].copy() if step < len(log) else None
