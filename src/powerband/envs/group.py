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

from powerband.envs.fields import held, write
from powerband.envs.seeds import episode_seed
from powerband.envs.slots import Slots
from powerband.envs.spaces import Spaces

REPLAY_LIMIT = 100_000
"""Steps of one episode whose actions are kept for a resume; a longer episode ends as a truncation there."""
NONE = -1
"""In ``row_in_hand``: no environment."""


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
        supervised: An environment that fails in a step is made anew and the others go on; values that are not finite
            are a failure too. Else the first failure ends the step with EnvError.

    Attributes:
        tell: With `supervised`, is handed what is known of each failure, at once: the process may not live until the
            step ends.
    """

    def __init__(
        self,
        makes: list[tuple[Callable, dict]],
        first_row: int,
        first_env: int,
        index: int,
        figures: tuple[str, ...],
        supervised: bool = False,
    ) -> None:
        self.makes, self.first_row, self.first_env = makes, first_row, first_env
        self.index, self.figures, self.supervised = index, figures, supervised
        self.seed = 0
        self.tell: Callable[[dict[str, Any]], object] | None = None
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
        self.spent_ns, self.worst_ns = [0] * len(self.envs), [0] * len(self.envs)

    def bind(self, slots: Slots) -> None:
        """Takes views of the group's own rows; made once, written ever after."""
        rows = slice(self.first_row, self.first_row + len(self.envs))
        arrays = {name: array[rows] for name, array in slots.arrays.items() if name != "row_in_hand"}
        self.action, self.reward = arrays["action"], arrays["reward"]
        self.terminated, self.truncated = arrays["terminated"], arrays["truncated"]
        self.episode, self.length, self.resumed = arrays["episode"], arrays["length"], arrays["resumed"]
        self.log, self.lost, self.stepped = arrays["log"], arrays["lost"], arrays["stepped"]
        self.figure = {name: arrays[f"figure/{name}"] for name in self.figures}
        self.row_in_hand = slots.arrays["row_in_hand"]
        self.discrete = self.spaces.num_actions is not None and self.spaces.action.shape == ()
        self.obs, self.final_obs = (
            [(path, arrays["/".join((kind, *path))], leaf.shape, leaf.start) for path, leaf in self.spaces.obs_paths()]
            for kind in ("obs", "final_obs")
        )

    def answer(self, word: bytes, payload: Any) -> tuple[bytes, Any]:
        """Does what a word of the parent asks for; returns the word and payload to reply with."""
        if word == b"s":
            return (b"e" if self.step() else b"k"), None
        if word == b"S":
            self.restore(*payload)
            return b"e", None
        if word == b"R":
            self.reset(payload)
        elif word == b"B":
            self.bind(payload)
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
        ended = False
        for row, action in enumerate(self._own_type(self.action.copy())):  # environments may change their actions
            ended |= self._step(row, action)
        self.row_in_hand[self.index] = NONE
        return ended

    def restore(self, seed: int, steps: int, failed: int) -> None:
        """Takes over from a worker that is gone, and makes what is left of the step under way.

        Every live episode is reset with its seed and its logged actions are repeated. It goes on only where that leads
        to the observation in the slots, bit for bit.

        Args:
            seed: Seed of the run.
            steps: How often each row has been stepped when this step is over.
            failed: Row of this group that the worker had in hand, `NONE` for none: its episode is cut.
        """
        self.seed = seed
        actions = self._own_type(self.action.copy())
        for row in range(len(self.envs)):
            if row == failed:
                self._lose(row)
            elif not self._guarded(self._repeat, row):
                self._note(row, "not restored", "it does not repeat itself under the same seed and actions")
                self._lose(row)
            elif self.stepped[row] < steps:
                self._step(row, actions[row])
            self.stepped[row] = steps
        self.row_in_hand[self.index] = NONE

    def _step(self, row: int, action: Any) -> bool:
        """Steps one environment; True where its episode ended."""
        self.row_in_hand[self.index] = row
        since = perf_counter_ns()
        try:
            length = int(self.length[row])
            if length < len(self.log[row]):
                self.log[row, length] = self.action[row]
            obs, reward, terminated, truncated, info = self.envs[row].step(action)
            ended = bool(terminated or truncated)
            write(self.final_obs if ended else self.obs, row, obs, self.supervised)
            if self.supervised and not np.isfinite(reward).all():
                raise ValueError(f"reward is {reward}")
            if ended:
                self._report(row, info)
            self.reward[row] = reward
            self.terminated[row] = terminated
            self.truncated[row] = truncated
            self.length[row] += 1
            if ended:
                self._begin(row, int(self.episode[row]) + 1)
        except Exception as error:
            if not self.supervised:
                raise self._error(row, error) from error
            self._note(row, "raised", f"{type(error).__name__}: {error}", traceback.format_exc())
            self._make_anew(row)
            self._lose(row)
            ended = True
        self.stepped[row] += 1
        took = perf_counter_ns() - since
        self.spent_ns[row] += took
        if took > self.worst_ns[row]:
            self.worst_ns[row] = took
        return ended

    def _note(self, row: int, kind: str, what: str, trace: str = "") -> None:
        """Tells the parent what is known of a failure, and the actions that led to it."""
        length = int(self.length[row])
        kept = self.log[row, : length + 1].copy() if length < len(self.log[row]) else None
        facts = {name: value for name, value in self._facts(row).items() if name != "doing"}
        self.tell({**facts, "kind": kind, "what": what, "trace": trace, "actions": kept})

    def _make_anew(self, row: int) -> None:
        """Replaces an environment; one that cannot be closed either is left behind."""
        make, kwargs = self.makes[row]
        try:
            self.envs[row].close()
        except Exception:
            traceback.print_exc()
        try:
            self.envs[row] = make(**kwargs)
        except Exception as error:
            raise self._error(row, error) from error

    def _lose(self, row: int) -> None:
        """The step of this row is no transition: its episode is cut, and the next one begins."""
        self.lost[row] = self.truncated[row] = True
        self.terminated[row], self.reward[row] = False, 0.0
        for (_, final, *_), (_, obs, *_) in zip(self.final_obs, self.obs, strict=True):
            final[row] = obs[row]
        for values in self.figure.values():
            values[row] = 0.0
        self._guarded(self._begin, row, int(self.episode[row]) + 1)

    def replay(self, seed: int, logged: list[bool]) -> None:
        """Starts the episodes named in the slots again and repeats their actions where they are `logged`.

        ``resumed`` says of each row whether that led to the very observation in the slots; where it did not, the row
        is at the start of its next episode.
        """
        self.seed = seed
        for row, known in enumerate(logged):
            self._guarded(self._replay_row, row, known)

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
        write(self.obs, row, obs, self.supervised)

    def _report(self, row: int, info: dict[str, Any]) -> None:
        for name, values in self.figure.items():
            if name not in info:
                raise ValueError(f"figure {name!r} is not in the last info of the episode: {sorted(info)}")
            values[row] = info[name]

    def _own_type(self, actions: np.ndarray) -> list[Any]:
        if self.discrete:
            return (actions + self.spaces.action.start).tolist()
        return list(actions.astype(self.spaces.action_dtype))

    def _replay_row(self, row: int, logged: bool) -> None:
        self.resumed[row] = logged and self._repeat(row)
        if not self.resumed[row]:
            self._begin(row, int(self.episode[row]) + 1)

    def _repeat(self, row: int) -> bool:
        """Resets the live episode and repeats its actions; True where that led to the observation in the slots."""
        length = int(self.length[row])
        if length > len(self.log[row]):
            return False
        obs, _ = self.envs[row].reset(seed=self._seed(row))
        for action in self._own_type(self.log[row, :length].copy()):
            obs, _, terminated, truncated, _ = self.envs[row].step(action)
            if terminated or truncated:
                return False
        return held(self.obs, row, obs)

    def _seed(self, row: int) -> int:
        return episode_seed(self.seed, self.first_env + self.first_row + row, int(self.episode[row]))

    def _guarded(self, call: Callable, row: int, *args: Any) -> Any:
        self.row_in_hand[self.index] = row
        try:
            return call(row, *args)
        except Exception as error:
            raise self._error(row, error) from error

    def _facts(self, row: int) -> dict[str, Any]:
        """Which environment this is, and where it stands."""
        env_id, episode, step = self.first_env + self.first_row + row, int(self.episode[row]), int(self.length[row])
        return {"env_id": env_id, "episode": episode, "step": step, "seed": self._seed(row), "doing": "step"}

    def _error(self, row: int, error: Exception) -> EnvError:
        facts = self._facts(row)
        return EnvError(f"{describe(facts)} raised {type(error).__name__}\n{traceback.format_exc()}", facts)


def describe(facts: dict[str, Any]) -> str:
    """Names an environment and where it stood, in one phrase."""
    return (
        f"environment {facts['env_id']}, after {facts['step']} steps of its episode {facts['episode']} "
        f"(reset seed {facts['seed']}),"
    )
