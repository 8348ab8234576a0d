"""EnvGroup: the environments of one worker, stepped by one command. This file imports no torch.

An environment is reset as soon as its episode ends. The last observation of the episode and the first of the next are
both written, so every step of a group is one real transition per environment.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

import numpy as np

from powerband.core.errors import ConfigError
from powerband.envs.workers import channel
from powerband.envs.workers.obs_slots import obs_matches, write_obs
from powerband.envs.workers.seeds import episode_seed, reset_options
from powerband.envs.workers.shared_arrays import SharedArrays
from powerband.envs.workers.spaces import Spaces
from powerband.envs.workers.supervision import EnvError, describe_episode

MAX_REPLAY_STEPS = 100_000
"""Largest number of logged actions per episode; a resume truncates longer episodes."""
NO_ROW = -1
"""Value of ``active_row``, the row of the environment that a worker is stepping, between two environments."""


class EnvGroup:
    """The environments of one worker, which are stepped together.

    Actions and results are in arrays that several processes share, with one row per environment. This group has the
    rows ``first_row, first_row + 1, ...``.

    Args:
        env_fns: Pairs (function, keyword arguments), each of which creates one environment.
        first_row: Row of the first environment of this group.
        first_env: Index of the environment in row 0 among those of all ranks (processes of the training).
        index: Index of the worker.
        episode_metrics: Names of `info` values that are read at the end of an episode.
        supervised: Replace an environment that fails in a step, and treat values that are not finite as a failure.
            Otherwise the first failure raises EnvError.

    Attributes:
        on_failure: Function that is called with a dict about each repaired failure: the fields of `EnvFailure` except
            ``worker`` and ``recovery_s``. It is called immediately, because the process may die before the step ends.

    Raises:
        EnvError: An environment could not be created.
    """

    def __init__(
        self,
        env_fns: list[tuple[Callable[..., Any], dict[str, Any]]],
        first_row: int,
        first_env: int,
        index: int,
        episode_metrics: tuple[str, ...],
        supervised: bool = False,
    ) -> None:
        self.env_fns, self.first_row, self.first_env = env_fns, first_row, first_env
        self.index, self.episode_metrics, self.supervised = index, episode_metrics, supervised
        self.seed, self.resetting = 0, False
        self.on_failure: Callable[[dict[str, Any]], object] = lambda facts: None
        self.envs: list[Any] = []
        self.spaces: Spaces
        for env_id, (env_fn, kwargs) in enumerate(env_fns, start=first_env + first_row):
            try:
                self.envs.append(env_fn(**kwargs))
                spaces = Spaces.from_env(self.envs[-1])
                if len(self.envs) == 1:
                    self.spaces = spaces
                if spaces != self.spaces:
                    raise ValueError(f"its spaces {spaces} differ from those of the first environment, {self.spaces}")
            except Exception as error:
                facts = {"env_id": env_id, "doing": "make", "refused": isinstance(error, (ValueError, ImportError))}
                reason = str(error) if facts["refused"] else traceback.format_exc()
                raise EnvError(f"Environment {env_id} could not be created: {reason}", facts) from error
        self.spent_ns, self.worst_ns = [0] * len(self.envs), [0] * len(self.envs)

    def bind(self, shared_arrays: SharedArrays) -> None:
        """Creates views of this group's rows in the shared memory, to which all later calls write."""
        rows = slice(self.first_row, self.first_row + len(self.envs))
        arrays = {name: array[rows] for name, array in shared_arrays.arrays.items() if name != "active_row"}
        self.action, self.reward = arrays["action"], arrays["reward"]
        self.terminated, self.truncated = arrays["terminated"], arrays["truncated"]
        self.episode, self.length, self.resumed = arrays["episode"], arrays["length"], arrays["resumed"]
        self.log, self.lost, self.stepped = arrays["log"], arrays["lost"], arrays["stepped"]
        self.metrics = {name: arrays[f"metric/{name}"] for name in self.episode_metrics}
        self.active_row = shared_arrays.arrays["active_row"]
        self.obs, self.final_obs = (
            [(path, arrays["/".join((kind, *path))], leaf.shape, leaf.start) for path, leaf in self.spaces.obs_paths()]
            for kind in ("obs", "final_obs")
        )

    def handle(self, command: bytes, payload: Any) -> tuple[bytes, Any]:
        """Executes a command of the training process, such as a step or a reset.

        Args:
            command: Byte of the command, see `channel`.
            payload: Arguments of the command; None for a command without arguments.

        Returns:
            Byte of the reply, and its payload, None if it has none.
        """
        if command == channel.STEP:
            return (channel.EPISODE_ENDED if self.step() else channel.DONE), None
        if command == channel.RESTORE:
            self.restore(*payload)
            return channel.EPISODE_ENDED, None
        if command == channel.RESET:
            self.reset(payload)
        elif command == channel.BIND:
            self.bind(payload)
        elif command == channel.REPLAY:
            self.replay(*payload)
        elif command == channel.STATISTICS:
            return channel.STATISTICS_REPLY, self.worker_statistics()
        else:
            raise AssertionError(f"unknown command {command!r}")
        return channel.DONE, None

    def reset(self, seed: int) -> None:
        """Starts episode 0 of every environment; `seed` is the seed of the run."""
        self.seed = seed
        for row in range(len(self.envs)):
            self._guarded(self._begin, row, 0)
        self.active_row[self.index] = NO_ROW

    def step(self) -> bool:
        """Steps every environment with its action in the shared arrays, and resets those whose episode ended.

        Returns:
            True if an episode ended.
        """
        ended = False
        actions = self.spaces.for_environments(self.action.copy())  # environments may change their actions
        for row, action in enumerate(actions):
            ended |= self._step(row, action)
        self.active_row[self.index] = NO_ROW
        return ended

    def restore(self, seed: int, steps: int, failed: int) -> None:
        """Continues, in a new worker, the episodes of a worker that has died, and completes the pending step.

        Every current episode is reset with its seed and its logged actions are repeated. The episode continues only if
        this leads to the stored observation, bit for bit.

        Args:
            seed: Seed of the run.
            steps: Number of steps since the start that each environment has when the pending step is complete.
            failed: Index in this group of the environment that was stepping when the worker died; its episode is
                truncated. -1 if no environment was stepping.
        """
        self.seed = seed
        actions = self.spaces.for_environments(self.action.copy())
        for row in range(len(self.envs)):
            if row == failed:
                self._lose(row)
            elif not self._guarded(self._repeat, row):
                self._report_failure(row, "not restored", "did not repeat itself under the same seed and actions")
                self._lose(row)
            elif self.stepped[row] < steps:
                self._step(row, actions[row])
            self.stepped[row] = steps
        self.active_row[self.index] = NO_ROW

    def _step(self, row: int, action: Any) -> bool:
        """Steps one environment. Returns True if its episode ended."""
        self.active_row[self.index] = row
        start_ns = perf_counter_ns()
        try:
            length = int(self.length[row])
            if length < len(self.log[row]):
                self.log[row, length] = self.action[row]
            obs, reward, terminated, truncated, info = self.envs[row].step(action)
            ended = bool(terminated or truncated)
            write_obs(self.final_obs if ended else self.obs, row, obs, self.supervised)
            if self.supervised and not _is_finite(reward):
                raise ValueError(f"the reward is {reward}, which is not finite in float32")
            if ended:
                self._write_metrics(row, info)
            self.reward[row] = reward
            self.terminated[row] = terminated
            self.truncated[row] = truncated
            self.length[row] += 1
            if ended:
                self._begin(row, int(self.episode[row]) + 1)
        except Exception as error:
            if not self.supervised or isinstance(error, ConfigError):  # a restart would not change the settings
                raise self._error(row, error) from error
            self._report_failure(row, "raised", f"{type(error).__name__}: {error}", traceback.format_exc())
            self.resetting = False
            self._replace(row)
            self._lose(row)
            ended = True
        self.stepped[row] += 1
        elapsed_ns = perf_counter_ns() - start_ns
        self.spent_ns[row] += elapsed_ns
        self.worst_ns[row] = max(self.worst_ns[row], elapsed_ns)
        return ended

    def _report_failure(self, row: int, kind: str, description: str, trace: str = "") -> None:
        """Reports a failure to the parent, with the actions that led to it; none led to that of a reset."""
        length = int(self.length[row])
        steps = 0 if self.resetting else length + 1
        actions = self.log[row, :steps].copy() if length < len(self.log[row]) else None
        if self.resetting:
            description += " (in the reset after an episode that had ended)"
        facts = {name: value for name, value in self._facts(row).items() if name != "doing"}
        self.on_failure({**facts, "kind": kind, "description": description, "trace": trace, "actions": actions})

    def _replace(self, row: int) -> None:
        """Replaces an environment by a new one. An environment that cannot be closed is abandoned."""
        env_fn, kwargs = self.env_fns[row]
        try:
            self.envs[row].close()
        except Exception:
            traceback.print_exc()
        try:
            self.envs[row] = env_fn(**kwargs)
        except Exception as error:
            raise self._error(row, error) from error

    def _lose(self, row: int) -> None:
        """Marks the step of this row as lost, truncates its episode, and starts the next one."""
        self.lost[row] = self.truncated[row] = True
        self.terminated[row], self.reward[row] = False, 0.0
        for (_, final, *_), (_, obs, *_) in zip(self.final_obs, self.obs, strict=True):
            final[row] = obs[row]
        for values in self.metrics.values():
            values[row] = 0.0
        self._guarded(self._begin, row, int(self.episode[row]) + 1)

    def replay(self, seed: int, logged: list[bool]) -> None:
        """Restores the episodes in the shared arrays for a resumed run: resets them and repeats their logged actions.

        Afterwards, the array ``resumed`` is True for each environment in which this led to exactly the stored
        observation. In all others, the next episode begins.

        Args:
            seed: Seed of the run.
            logged: True for each environment whose actions are to be repeated.
        """
        self.seed = seed
        for row, known in enumerate(logged):
            self._guarded(self._replay_row, row, known)
        self.active_row[self.index] = NO_ROW

    def worker_statistics(self) -> dict[str, Any]:
        """Returns the cost of the steps so far.

        Returns:
            ``spent_ns`` and ``worst_ns``: total time and longest step of each environment in nanoseconds, including
            resets. ``cpu_s``: processor time of the process in seconds. ``renderer``: name of the renderer that an
            environment reports; None if none does.
        """
        bare = [getattr(env, "unwrapped", env) for env in self.envs]
        renderers = (str(env.renderer) for env in bare if getattr(env, "renderer", None))
        costs = {"spent_ns": list(self.spent_ns), "worst_ns": list(self.worst_ns), "cpu_s": time.process_time()}
        return {**costs, "renderer": next(renderers, None)}

    def close(self) -> None:
        """Closes all environments, even if some of them fail to close."""
        for env in self.envs:
            try:
                env.close()
            except Exception:
                traceback.print_exc()

    def _begin(self, row: int, episode: int) -> None:
        self.episode[row], self.length[row] = episode, 0
        self.resetting = True
        obs, _ = self._reset(row)
        write_obs(self.obs, row, obs, self.supervised)
        self.resetting = False

    def _write_metrics(self, row: int, info: dict[str, Any]) -> None:
        for name, values in self.metrics.items():
            if name not in info:
                raise ValueError(f"metric {name!r} is not in the last info of the episode, which has {sorted(info)}")
            values[row] = info[name]

    def _replay_row(self, row: int, logged: bool) -> None:
        self.resumed[row] = logged and self._repeat(row)
        if not self.resumed[row]:
            self._begin(row, int(self.episode[row]) + 1)

    def _repeat(self, row: int) -> bool:
        """Resets the current episode and repeats its actions. Returns True if that led to the stored observation."""
        length = int(self.length[row])
        if length > len(self.log[row]):
            return False
        obs, _ = self._reset(row)
        for action in self.spaces.for_environments(self.log[row, :length].copy()):
            obs, _, terminated, truncated, _ = self.envs[row].step(action)
            if terminated or truncated:
                return False
        return obs_matches(self.obs, row, obs)

    def _reset(self, row: int) -> tuple[Any, dict[str, Any]]:
        options = reset_options(self.envs[row], int(self.episode[row]))
        return self.envs[row].reset(seed=self._seed(row), **options)

    def _seed(self, row: int) -> int:
        return episode_seed(self.seed, self.first_env + self.first_row + row, int(self.episode[row]))

    def _guarded(self, function: Callable[..., Any], row: int, *args: Any) -> Any:
        """Calls a function for one row; an exception becomes an EnvError that names the environment."""
        self.active_row[self.index] = row
        try:
            return function(row, *args)
        except Exception as error:
            raise self._error(row, error) from error

    def _facts(self, row: int) -> dict[str, Any]:
        """Returns ``env_id``, ``episode``, ``step``, ``seed`` of the reset and ``doing`` (operation) of a row."""
        env_id, episode, step = self.first_env + self.first_row + row, int(self.episode[row]), int(self.length[row])
        return {"env_id": env_id, "episode": episode, "step": step, "seed": self._seed(row), "doing": "step"}

    def _error(self, row: int, error: Exception) -> EnvError:
        facts = self._facts(row)
        if isinstance(error, ConfigError):
            return EnvError(str(error), {**facts, "refused": True})
        return EnvError(f"{describe_episode(facts)} raised {type(error).__name__}\n{traceback.format_exc()}", facts)


def _is_finite(reward: Any) -> bool:
    """Whether a reward, or the rewards of all agents, are finite as they are stored."""
    with np.errstate(over="ignore"):
        return bool(np.isfinite(np.asarray(reward, np.float32)).all())
