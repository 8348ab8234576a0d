"""Machines: the launchers of a run exchange what their ranks do, through the store at which they have met.

A machine whose ranks all wait learns from it which rank on another machine they wait for, and that one which evaluates
for long is healthy. A machine without news is gone, or the network to it is.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from powerband.core.stalls.observation import Observation

PERIOD_S, ANSWER_S = 1.0, 5.0
"""Seconds between two exchanges, and until the store must answer."""
KEY = "powerband/progress"


class Machines:
    """The other machines of a run, through the store of the rendezvous.

    Args:
        host, port: Address of the store.
        ended: Event that ends the exchange.
    """

    def __init__(self, host: str, port: int, ended: threading.Event) -> None:
        self._address, self._ended = (host, port), ended
        self._own = "[]"
        self._others: dict[int, tuple[str, float]] = {}
        threading.Thread(target=self._run, name="progress of machines", daemon=True).start()

    def exchange(self, ranks: Sequence[Observation], stall_s: float) -> list[Observation]:
        """Publishes the ranks of this machine, and returns those of the others without machines that give no news.

        Old news does not make a rank the cause of a stall, see `Observation.overdue`.

        Args:
            ranks: Ranks of this machine.
            stall_s: Seconds after which a machine without news counts as gone.
        """
        self._own = json.dumps([each.to_json() for each in ranks])
        now = time.monotonic()
        news = [(json.loads(text), now - at) for text, at in self._others.copy().values() if now - at <= stall_s]
        return [Observation.from_json(facts, age_s) for machine, age_s in news for facts in machine["ranks"]]

    def _run(self) -> None:
        """Exchanges until the end. The store may start late, and a network that fails may work again."""
        while not self._ended.is_set():
            with contextlib.suppress(Exception):  # torch raises several types for a store that does not answer
                self._exchange_forever()
            self._ended.wait(PERIOD_S)

    def _exchange_forever(self) -> None:
        from torch.distributed import TCPStore

        host, port = self._address
        limit = timedelta(seconds=ANSWER_S)
        store: Any = TCPStore(host, port, is_master=False, timeout=limit, wait_for_workers=False)
        own, count = store.add(f"{KEY}/machines", 1), 0
        while not self._ended.wait(PERIOD_S):
            count += 1
            store.set(f"{KEY}/{own}", json.dumps({"count": count, "ranks": json.loads(self._own)}))
            for index in range(1, store.add(f"{KEY}/machines", 0) + 1):
                if index != own and store.check([f"{KEY}/{index}"]):
                    text = store.get(f"{KEY}/{index}").decode()
                    if self._others.get(index, ("", 0.0))[0] != text:  # the count of a live machine changes
                        self._others[index] = text, time.monotonic()
