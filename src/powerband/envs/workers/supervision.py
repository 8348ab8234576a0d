"""Supervision: records failures of simulators, and ends the run if they are too frequent. This file imports no torch.

A worker that dies or hangs is restarted, and its other environments are restored by their seeds and logged actions. An
environment that raises, or that returns a value which is not finite or has a wrong shape, is replaced in its worker.
The failed environment loses its step and its episode is truncated; no other environment loses a step.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from powerband.core.errors import ConfigError
from powerband.envs.workers.seeds import reset_options
from powerband.envs.workers.spaces import Spaces


class EnvError(RuntimeError):
    """An environment failed. The message names the environment, its step and its seed, and contains the traceback.

    Attributes:
        facts: ``env_id``, ``episode``, ``step`` and ``seed``, absent if the environment was never created; ``doing``,
            the operation that failed; and ``refused``, true if the settings of the user were invalid.
    """

    def __init__(self, message: str, facts: dict[str, Any]) -> None:
        super().__init__(message)
        self.facts = facts


def describe_episode(facts: dict[str, Any]) -> str:
    """Returns a phrase for messages that names an environment and the position in its episode.

    Args:
        facts: Dict with ``env_id``, ``step`` (steps so far), ``episode`` (index) and ``seed`` of the reset.
    """
    return (
        f"environment {facts['env_id']}, after {facts['step']} steps of its episode {facts['episode']} "
        f"(reset seed {facts['seed']}),"
    )


@dataclass(frozen=True)
class Supervision:
    """Limits within which a run continues after failures of its simulators.

    Attributes:
        deadline_s: Seconds that a worker may take for a step before it is killed.
        max_failures: Number of failures within `window_s` seconds that ends the run.
        window_s: Length of the window in seconds.
    """

    deadline_s: float = 60.0
    max_failures: int = 20
    window_s: float = 60.0

    def __post_init__(self) -> None:
        for name, usual in (("deadline_s", 60), ("max_failures", 20), ("window_s", 60)):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name}={getattr(self, name)} is not above 0. Write {name}={usual}.")


@dataclass(frozen=True)
class EnvFailure:
    """One failure of an environment.

    Attributes:
        env_id: Index of the environment among those of all ranks; None if the worker failed between two environments.
        worker: Index of the worker process.
        kind: "raised" (an exception or an invalid value), "died" or "hung" (the worker), or "not restored" (the
            environment did not repeat its episode after a restart).
        description: Verb phrase that describes the failure.
        episode: Index of the episode in its environment.
        step: Steps of the episode before the failure.
        seed: Seed with which the episode was reset.
        actions: Actions (step + 1, ...) of the episode up to the failure; None if they were not logged.
        trace: Traceback in the worker; empty if there is none.
        recovery_s: Seconds from the failure until the worker was ready again.
    """

    env_id: int | None
    worker: int
    kind: str
    description: str
    episode: int = 0
    step: int = 0
    seed: int = 0
    actions: np.ndarray | None = None
    trace: str = ""
    recovery_s: float = 0.0

    def __str__(self) -> str:
        if self.env_id is None:
            return (
                f"worker {self.worker} {self.description} between two steps. It was restarted, and no episode was lost."
            )
        place = describe_episode({"env_id": self.env_id, "step": self.step, "episode": self.episode, "seed": self.seed})
        return f"{place} {self.description}. Its episode was truncated, and the next one has begun."


def reproduce_failure(env_fn: Callable[..., Any], failure: EnvFailure, **kwargs: Any) -> Any:
    """Creates an environment and repeats in it an episode that failed: the same seed and the same actions.

    Args:
        env_fn: Function that creates the environment.
        failure: A failure whose actions were logged.
        kwargs: Keyword arguments of `env_fn`.

    Returns:
        The result of the last `step` of the environment, if it does not fail again.
    """
    assert failure.actions is not None, "the actions of this failure were not logged"
    env = env_fn(**kwargs)
    result = env.reset(seed=failure.seed, **reset_options(env, failure.episode or 0))
    for action in Spaces.from_env(env).for_environments(failure.actions):
        result = env.step(action)
    return result


class FailureLog:
    """Records the repaired failures of environments, and ends the run if they are too frequent.

    Args:
        settings: Limits on the number of failures.
        on_failure: Function that is called with each failure after the recovery; None if there is none.

    Attributes:
        recent_failures: The newest failures, at most 1000.
        counts: Kind, such as "died" -> number of failures.
    """

    def __init__(self, settings: Supervision, on_failure: Callable[[EnvFailure], object] | None = None) -> None:
        self.settings, self.on_failure = settings, on_failure
        self.recent_failures: deque[EnvFailure] = deque(maxlen=1000)
        self.counts: dict[str, int] = {}
        self._times: deque[float] = deque(maxlen=settings.max_failures)

    def add(self, failure: EnvFailure) -> None:
        """Records a failure and calls `on_failure`.

        Raises:
            EnvError: `max_failures` failures occurred within `window_s` seconds.
        """
        self.recent_failures.append(failure)
        self.counts[failure.kind] = self.counts.get(failure.kind, 0) + 1
        now = time.monotonic()
        self._times.append(now)
        if self.on_failure is not None:
            self.on_failure(failure)
        span = now - self._times[0]
        if len(self._times) == self.settings.max_failures and span <= self.settings.window_s:
            facts = {"env_id": failure.env_id, "episode": failure.episode, "step": failure.step, "seed": failure.seed}
            raise EnvError(
                f"Environments failed {self.settings.max_failures} times within {span:.1f} s, too often to continue. "
                f"Fix the environment. The last failure: {failure} {failure.trace}".strip(),
                {**facts, "doing": "step"},
            )
