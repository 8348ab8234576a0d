"""Supervision: what a failed simulator costs, who is told, and when there are too many failures to go on.

A worker that is killed or hangs is started again and its other environments are brought back to where they were, by
their seeds and logged actions; an environment that raises, or gives what is not finite or of another shape, is made
anew where it is. The step of the failed environment is lost and its episode is cut; no other one loses a step.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from powerband.envs.group import EnvError, describe


@dataclass(frozen=True)
class Supervision:
    """How patient a vector of environments is.

    Attributes:
        deadline_s: Seconds that a worker may take for a step before it is killed as hanging.
        most: Failures within `within_s` seconds that are one too many: the run ends.
        within_s: See `most`.
    """

    deadline_s: float = 60.0
    most: int = 20
    within_s: float = 60.0

    def __post_init__(self) -> None:
        for name, usual in (("deadline_s", 60), ("most", 20), ("within_s", 60)):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}={getattr(self, name)} is not above 0. Write {name}={usual}.")


@dataclass(frozen=True)
class Fault:
    """One failure of an environment.

    Attributes:
        env_id: Global index of the environment; None where the worker was ended while it had none in hand.
        worker: Index of its worker.
        kind: "raised", "died", "hung" or "not restored".
        what: What happened, in words.
        episode, step, seed: Which episode, its steps until then, and the seed it was reset with.
        actions: (steps + 1, ...) that lead to the failure, the last one included; None where they were not kept.
        trace: Traceback in the worker, "" where there is none.
        recovery_s: Seconds from the failure until the worker was at work again.
    """

    env_id: int | None
    worker: int
    kind: str
    what: str
    episode: int = 0
    step: int = 0
    seed: int = 0
    actions: np.ndarray | None = None
    trace: str = ""
    recovery_s: float = 0.0

    def __str__(self) -> str:
        if self.env_id is None:
            return f"worker {self.worker} {self.what} between two steps; nothing was lost."
        where = describe({"env_id": self.env_id, "step": self.step, "episode": self.episode, "seed": self.seed})
        return f"{where} {self.what}. Its episode is cut and the next one begins."


def reproduce(make: Callable[..., Any], fault: Fault, **kwargs: Any) -> Any:
    """Makes the environment and takes it to its failure: the same seed, the same actions.

    Args:
        make: As the vector was given it.
        fault: With its actions.
        kwargs: For `make`.

    Returns:
        What the last step returned, where it does not fail again.
    """
    env = make(**kwargs)
    found = env.reset(seed=fault.seed)
    for action in fault.actions:
        found = env.step(action)
    return found


class Record:
    """The failures of a vector of environments.

    Args:
        settings: When there are too many.
        tell: Is handed each one as it is recovered from.

    Attributes:
        faults: The newest ones.
        counts: Kind -> how many there were.
    """

    def __init__(self, settings: Supervision, tell: Callable[[Fault], object] | None = None) -> None:
        self.settings, self.tell = settings, tell
        self.faults: deque[Fault] = deque(maxlen=1000)
        self.counts: dict[str, int] = {}
        self._times: deque[float] = deque(maxlen=settings.most)

    def add(self, fault: Fault) -> None:
        """Takes in a failure.

        Raises:
            EnvError: There were too many in too short a time.
        """
        self.faults.append(fault)
        self.counts[fault.kind] = self.counts.get(fault.kind, 0) + 1
        now = time.monotonic()
        self._times.append(now)
        if self.tell is not None:
            self.tell(fault)
        span = now - self._times[0]
        if len(self._times) == self.settings.most and span <= self.settings.within_s:
            facts = {"env_id": fault.env_id, "episode": fault.episode, "step": fault.step, "seed": fault.seed}
            raise EnvError(
                f"{self.settings.most} failures of environments in {span:.1f} s are no accident. The last: {fault} "
                f"{fault.trace}".strip(),
                {**facts, "doing": "step"},
            )
