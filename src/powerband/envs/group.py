"""EnvGroup: several environments in one process, stepped at one word.

An ended environment is reset at once; the last observation of its episode and the first of the next are both written,
so a step of the group is always one real transition of each environment. No torch here: a worker process imports numpy
and its simulator only.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

import numpy as np

from powerband.envs.seeds import episode_seed
from powerband.envs.slots import Slots
from powerband.envs.spaces import Spaces

Field = tuple[tuple[str, ...], np.ndarray, tuple[int, ...], int]
"""Keys that lead to a leaf of an observation, its slots, its shape, and the value that is stored as 0."""
REPLAY_LIMIT = 100_000
"""Steps of one episode whose actions are kept for a resume; a longer episode ends as a truncation there."""


class EnvError(RuntimeError):
    """An environment failed; the message names it, its step and its seed, and holds the traceback.

    Attributes:
        facts: ``env_id``, ``episode``, ``step``, ``seed`` (absent where the environment was never made), ``doing``, and
            ``refused``: the environment could not be made because of what the user asked for.
    """

    def __init__(self, message: str, facts: dict[str, Any]) -> None:
        super().__init__(message)
        self.facts = facts


class EnvGroup:
    """The environments of one worker: rows ``first_row, first_row + 1, ...`` of the slots.

    Args:
        makes: (function, keyword arguments) that make one environment each.
        first_row: Row of the first of them in the slots.
        first_env: Global index of the environment in row 0.
        index: Which worker this is.
        figures: Names of `info` values that are read when an episode ends.
    """

    def __init__(
        self, makes: list[tuple[Callable, dict]], first_row: int, first_env: int, index: int, figures: tuple[str, ...]
    ) -> None:
        self.first_row, self.first_env, self.index, self.figures = first_row, first_env, index, figures
        self.seed = 0
        self.envs: list[Any] = []
        for env_id, (make, kwargs) in enumerate(makes, start=first_env + first_row):
            try:
                self.envs.append(make(**kwargs))
                spaces = Spaces.of(self.envs[-1])
                self.spaces = spaces if len(self.envs) == 1 else self.spaces
                if spaces != self.spaces:
                    raise ValueError(f"its spaces {spaces} differ from those of its neighbour, {self.spaces}")
            except Exception as error:
                facts = {"env_id": env_id, "doing": "make", "refused": isinstance(error, (ValueError, ImportError))}
                what = str(error) if facts["refused"] else traceback.format_exc()
                raise EnvError(f"environment {env_id} could not be made: {what}", facts) from error
        self.log: list[list[bytes] | None] = [[] for _ in self.envs]
        self.spent_ns, self.worst_ns = [0] * len(self.envs), [0] * len(self.envs)

    def bind(self, slots: Slots) -> None:
        """Takes views of the group's own rows; made once, written ever after."""
        rows = slice(self.first_row, self.first_row + len(self.envs))
        arrays = {name: array[rows] for name, array in slots.arrays.items() if name != "row_in_hand"}
        self.action, self.reward = arrays["action"], arrays["reward"]
        self.terminated, self.truncated = arrays["terminated"], arrays["truncated"]
        self.episode, self.length, self.resumed = arrays["episode"], arrays["length"], arrays["resumed"]
        self.figure = {name: arrays[f"figure/{name}"] for name in self.figures}
        self.row_in_hand = slots.arrays["row_in_hand"]
        self.action_bytes = self.action[0].nbytes
        self.discrete = self.spaces.num_actions is not None and self.spaces.action.shape == ()
        self.obs, self.final_obs = (
            [(path, arrays["/".join((kind, *path))], leaf.shape, leaf.start) for path, leaf in self.spaces.obs_paths()]
            for kind in ("obs", "final_obs")
        )

    def answer(self, word: bytes, payload: Any) -> tuple[bytes, Any]:
        """Does what a word of the parent asks for; returns the word and payload to reply with."""
        if word == b"s":
            return (b"e" if self.step() else b"k"), None
        if word == b"R":
            self.reset(payload)
        elif word == b"B":
            self.bind(payload)
        elif word == b"l":
            return b"L", [None if log is None else b"".join(log) for log in self.log]
        elif word == b"P":
            self.replay(*payload)
        elif word == b"f":
            return b"F", self.facts()
        else:
            raise AssertionError(f"unknown word {word!r}")
        return b"k", None

    def reset(self, seed: int) -> None:
        """Starts episode 0 of every environment under `seed`."""
        self.seed = seed
        for row in range(len(self.envs)):
            self._guarded(self._begin, row, 0)

    def step(self) -> bool:
        """Steps every environment with its action in the slots; resets those that ended. True where one did."""
        ended_any = False
        row = 0
        actions = self._take()
        spent, worst, since = self.spent_ns, self.worst_ns, perf_counter_ns()
        try:
            for row, env in enumerate(self.envs):
                self.row_in_hand[self.index] = row
                obs, reward, terminated, truncated, info = env.step(actions[row])
                self.length[row] += 1
                self.reward[row] = reward
                self.terminated[row] = terminated
                self.truncated[row] = truncated
                if terminated or truncated:
                    ended_any = True
                    _write(self.final_obs, row, obs)
                    self._report(row, info)
                    self._begin(row, int(self.episode[row]) + 1)
                else:
                    _write(self.obs, row, obs)
                now = perf_counter_ns()
                took, since = now - since, now
                spent[row] += took
                if took > worst[row]:
                    worst[row] = took
        except Exception as error:
            raise self._error(row, error) from error
        return ended_any

    def replay(self, seed: int, logs: list[bytes | None]) -> None:
        """Starts the episodes named in the slots again and repeats their actions.

        ``resumed`` says of each row whether that led to the very observation in the slots; where it did not, the row
        is at the start of its next episode.
        """
        self.seed = seed
        for row, log in enumerate(logs):
            self._guarded(self._replay_row, row, log)

    def facts(self) -> dict[str, Any]:
        """What the steps have cost so far: nanoseconds by environment (resets included), processor seconds in all.

        ``renderer`` is what an environment says that it draws with, None where none says anything.
        """
        bare = [getattr(env, "unwrapped", env) for env in self.envs]
        named = (str(env.renderer) for env in bare if getattr(env, "renderer", None))
        costs = {"spent_ns": list(self.spent_ns), "worst_ns": list(self.worst_ns), "cpu_s": time.process_time()}
        return {**costs, "renderer": next(named, None)}

    def close(self) -> None:
        """Closes the environments; one that fails to close keeps no other from it."""
        for env in self.envs:
            try:
                env.close()
            except Exception:
                traceback.print_exc()

    def _begin(self, row: int, episode: int) -> None:
        self.episode[row], self.length[row] = episode, 0
        obs, _ = self.envs[row].reset(seed=self._seed(row))
        self.log[row] = []
        _write(self.obs, row, obs)

    def _report(self, row: int, info: dict[str, Any]) -> None:
        for name, values in self.figure.items():
            if name not in info:
                raise ValueError(f"figure {name!r} is not in the last info of the episode: {sorted(info)}")
            values[row] = info[name]

    def _take(self) -> list[Any]:
        """The actions in the environments' own type, and into the logs; copies, as environments may change them."""
        data, size = self.action.tobytes(), self.action_bytes
        for row, log in enumerate(self.log):
            if log is not None:
                log.append(data[row * size : (row + 1) * size])
                if len(log) > REPLAY_LIMIT:
                    self.log[row] = None
        return self._own_type(self.action)

    def _own_type(self, actions: np.ndarray) -> list[Any]:
        if self.discrete:
            return (actions + self.spaces.action.start).tolist()
        return list(actions.astype(self.spaces.action_dtype))

    def _replay_row(self, row: int, log: bytes | None) -> None:
        length = int(self.length[row])
        if log is not None:
            actions = np.frombuffer(log, self.action.dtype).reshape(length, *self.action.shape[1:])
            obs, _ = self.envs[row].reset(seed=self._seed(row))
            ended = False
            for action in self._own_type(actions):
                if ended:
                    break
                obs, _, terminated, truncated, _ = self.envs[row].step(action)
                ended = terminated or truncated
            self.log[row] = [log]
            _write(self.final_obs, row, obs)
            pairs = zip(self.final_obs, self.obs, strict=True)
            same = all(here[1][row].tobytes() == saved[1][row].tobytes() for here, saved in pairs)
            self.resumed[row] = same and not ended
        else:
            self.resumed[row] = False
        if not self.resumed[row]:
            self._begin(row, int(self.episode[row]) + 1)

    def _seed(self, row: int) -> int:
        return episode_seed(self.seed, self.first_env + self.first_row + row, int(self.episode[row]))

    def _guarded(self, call: Callable, row: int, *args: Any) -> None:
        self.row_in_hand[self.index] = row
        try:
            call(row, *args)
        except Exception as error:
            raise self._error(row, error) from error

    def _error(self, row: int, error: Exception) -> EnvError:
        env_id, episode, step = self.first_env + self.first_row + row, int(self.episode[row]), int(self.length[row])
        facts = {"env_id": env_id, "episode": episode, "step": step, "seed": self._seed(row), "doing": "step"}
        return EnvError(f"{describe(facts)} raised {type(error).__name__}\n{traceback.format_exc()}", facts)


def describe(facts: dict[str, Any]) -> str:
    """Names an environment and where it stood, in one phrase."""
    return (
        f"environment {facts['env_id']}, after {facts['step']} steps of its episode {facts['episode']} "
        f"(reset seed {facts['seed']}),"
    )


def _write(fields: list[Field], row: int, obs: Any) -> None:
    """Copies an observation into its slots; a shape that is not the stated one would be broadcast silently."""
    for path, array, shape, start in fields:
        value = obs
        for key in path:
            value = value[key]
        if (value.shape if isinstance(value, np.ndarray) else np.shape(value)) != shape:
            raise ValueError(f"observation {path} has shape {np.shape(value)}, its space says {shape}")
        array[row] = value - start if start else value
