"""Crew: the workers of one vector of environments: asks them, hears them, starts those again that failed in a step."""

from __future__ import annotations

import signal
import time
from typing import Any

from powerband.envs.group import NONE, EnvError, describe
from powerband.envs.processes import CLOSE_S, Worker
from powerband.envs.seeds import episode_seed
from powerband.envs.slots import Layout, Slots
from powerband.envs.supervision import Fault, Record

FAILURES = (EnvError, EOFError, ConnectionError, TimeoutError)
ALL = slice(None)
"""Every worker of a crew."""
START_S = 60.0
"""Seconds that a worker may take to start again, where the deadline of a step is shorter: simulators load slowly."""


class Crew:
    """Workers over equal shares of the environments.

    Args:
        workers: As they were started; the list is changed where one is started again.
        first_env: Global index of the environment in row 0.
        record: Takes in failures that were recovered from; None where the first failure ends the run.

    Attributes:
        seed: Of the run, under which the live episodes were begun.
        steps: How often each worker was told to step.
        in_flight: Indices of the workers that are stepping.
    """

    def __init__(self, workers: list[Worker], first_env: int, record: Record | None) -> None:
        self.workers, self.first_env, self.record = workers, first_env, record
        self.slots: Slots | None = None
        self.seed = 0
        self.steps = [0] * len(workers)
        self.in_flight: set[int] = set()

    def bind(self, fields: Layout, slots: Slots) -> None:
        """Tells the workers where in the shared memory their environments are."""
        self.fields, self.slots = fields, slots
        slots.arrays["row_in_hand"].fill(NONE)
        self.ask(b"B", [fields if worker.process else slots for worker in self.workers])
        if self.record is not None:
            for worker in self.workers:
                worker.patience(self.record.settings.deadline_s)

    def ask(self, word: bytes, payloads: list[Any]) -> list[Any]:
        """Tells each worker something and returns what each answers."""
        assert not self.in_flight, f"{word!r} between send and recv"
        for worker, payload in zip(self.workers, payloads, strict=True):
            worker.send(word, payload)
        return [payload for _, payload in self.replies()]

    def step(self, part: slice) -> None:
        """Wakes the workers of `part` for a step."""
        for worker in self.workers[part]:
            assert worker.index not in self.in_flight, "send twice without recv"
            self.in_flight.add(worker.index)
            self.steps[worker.index] += 1
            worker.send(b"s")

    def stepped(self, part: slice) -> set[bytes]:
        """Hears the workers of `part` after a step.

        Returns:
            Their words: k for nothing, e where an episode ended or was cut.

        Raises:
            EnvError: An environment failed that cannot be recovered, or failures are too many.
        """
        asked = {worker.index for worker in self.workers[part]}
        assert asked <= self.in_flight, "recv without send"
        words = {word for word, _ in self.replies(part, recover=self.record is not None)}
        self.in_flight -= asked
        for worker in self.workers[part]:
            while worker.faults:
                self.record.add(Fault(worker=worker.index, **worker.faults.pop(0)))
        return words

    def replies(self, part: slice = ALL, recover: bool = False) -> list[tuple[bytes, Any]]:
        """One reply of each worker; all are heard before a failure is handled, so that none is left in the middle."""
        replies, failed = [], []
        for worker in self.workers[part]:
            try:
                replies.append(worker.recv())
            except FAILURES as error:
                failed.append((worker, self._named(worker, error)))
        for worker, error in failed:
            if error.facts.get("refused"):
                raise ValueError(str(error)) from None
            if not recover or worker.process is None:
                raise error
            replies.append(self._recovered(worker, error))
        return replies

    # -- failures ---------------------------------------------------------------------------------------------------

    def _recovered(self, worker: Worker, error: EnvError) -> tuple[bytes, Any]:
        """Starts a failed worker again, which makes what is left of the step under way; returns its reply."""
        since = time.monotonic()
        while True:
            facts, index = error.facts, worker.index
            row = NONE if facts["env_id"] is None else facts["env_id"] - self.first_env - worker.rows.start
            names = ("env_id", "episode", "step", "seed", "kind", "what")
            known = {name: facts[name] for name in names if name in facts}
            fault = {"kind": "raised", "what": str(error), "worker": index, "actions": self._logged(facts), **known}
            worker = self.workers[index] = worker.again()
            try:
                deadline_s = self.record.settings.deadline_s
                worker.patience(max(START_S, deadline_s))
                worker.recv()
                worker.send(b"B", self.fields)
                worker.recv()
                worker.patience(deadline_s)
                worker.send(b"S", (self.seed, self.steps[index], row))
                reply = worker.recv()
            except FAILURES as another:
                self.record.add(Fault(**fault))
                error = self._named(worker, another)
                continue
            self.record.add(Fault(**fault, recovery_s=time.monotonic() - since))
            return reply

    def _named(self, worker: Worker, error: Exception) -> EnvError:
        """What is known of a failed worker: how it ended, and which environment it had in hand."""
        if isinstance(error, EnvError):
            return error
        if isinstance(error, TimeoutError):
            kind, how = "hung", f"did not answer for {self.record.settings.deadline_s:g} s"
        else:
            code = worker.process.wait(timeout=CLOSE_S)
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
            kind = "died"
        first, last = (self.first_env + row for row in (worker.rows.start, worker.rows.stop - 1))
        who = f"worker {worker.index} (environments {first} to {last}) {how}"
        if self.slots is None:
            return EnvError(f"{who} while its environments were made.", {"env_id": first, "doing": "make"})
        arrays = self.slots.arrays
        held = int(arrays["row_in_hand"][worker.index])
        facts: dict[str, Any] = {"env_id": None, "kind": kind, "what": how, "doing": "step"}
        if held == NONE:
            return EnvError(f"{who}; it had none of them in hand.", facts)
        row = worker.rows.start + held
        facts |= {name: int(arrays[key][row]) for name, key in (("episode", "episode"), ("step", "length"))}
        facts["env_id"] = self.first_env + row
        facts["seed"] = episode_seed(self.seed, facts["env_id"], facts["episode"])
        return EnvError(f"{who}; it had {describe(facts)} in hand.", facts)

    def _logged(self, facts: dict[str, Any]) -> Any:
        """(steps + 1, ...): actions of the episode that failed; None where none did, or where it was too long."""
        if facts["env_id"] is None:
            return None
        log, step = self.slots.arrays["log"][facts["env_id"] - self.first_env], facts["step"]
        return log[: step + 1].copy() if step < len(log) else None
