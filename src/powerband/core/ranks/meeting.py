"""Meeting: the processes that a launcher has started as ranks, before they form a process group.

They exchange what they find on their machines, through the store at which they meet. So they can agree on the run that
they continue, on the order of the ranks, and on processes that wait as spares.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from powerband.core.ranks import restarts
from powerband.core.ranks.loopback import is_one_machine, keep_gloo_on_loopback, loopback_store

RANK_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
"""Environment variables by which a launcher makes a process a rank. A process that is none must not inherit them."""
LAUNCHER_VARIABLES = (
    restarts.LAUNCHER,
    restarts.JOB,
    restarts.FOLDER,
    restarts.OUTCOME,
    restarts.RESUMED,
    restarts.STATUSES,
)
"""Environment variables through which ranks and their launcher exchange what concerns their run alone."""
ENDED, LEFT = "powerband/ended", "powerband/left"
"""Keys of the store: the run has ended; number of spares that have noticed it."""
SPARE_POLL_S, GOODBYE_S, LAUNCHER_S = 5.0, 5.0, 300.0
"""Seconds of one wait of a spare, for which the host waits for spares at the end, and until a spare gives up."""


def environment_without_launcher() -> dict[str, str]:
    """Returns the environment variables for a child process that is no rank, and has no launcher that restarts it."""
    own = (*RANK_VARIABLES, *LAUNCHER_VARIABLES)
    return {
        name: value for name, value in os.environ.items() if name not in own and not name.startswith("TORCHELASTIC_")
    }


class Meeting:
    """The processes that a launcher has started as ranks.

    Attributes:
        rank: Index of this process among them.
        size: Their number.

    Args:
        store: Store at which they meet; None for a single process.
        rank, size: As above.
        timeout: Time limit of one exchange.
    """

    def __init__(self, store: dist.Store | None, rank: int, size: int, timeout: timedelta) -> None:
        self.store, self.rank, self.size, self.timeout = store, rank, size, timeout

    @classmethod
    def from_environment(cls, timeout_s: float) -> Meeting:
        """Joins the other ranks by the variables RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT of a launcher.

        Ranks that are all on this machine do not listen to others.
        """
        rank, size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        timeout = timedelta(seconds=timeout_s)
        if size == 1:
            return cls(None, rank, size, timeout)
        if is_one_machine():
            keep_gloo_on_loopback()
            if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":  # torchrun hosts the store
                return cls(loopback_store(rank, size, int(os.environ["MASTER_PORT"]), timeout), rank, size, timeout)
        store, _, _ = next(rendezvous("env://", timeout=timeout))
        return cls(store, rank, size, timeout)

    def exchange(self, name: str, value: Any) -> list[Any]:
        """Returns the `value` of every process, by rank. All must call it, with a `name` that is used once.

        `value` consists of JSON types.
        """
        if self.store is None:
            return [value]
        keys = [f"powerband/{name}/{rank}" for rank in range(self.size)]
        self.store.set(keys[self.rank], json.dumps(value))
        self.store.wait(keys, self.timeout)
        return [json.loads(self.store.get(key)) for key in keys]

    def join_group(self, backend: str, working: Sequence[int]) -> None:
        """Forms the process group of the processes `working`, which become ranks 0, 1, ... in this order."""
        assert self.store is not None
        store = dist.PrefixStore("powerband/group", self.store)
        rank = working.index(self.rank)
        dist.init_process_group(backend, store=store, rank=rank, world_size=len(working), timeout=self.timeout)

    def wait_as_spare(self) -> bool:
        """Waits until the run has ended. If ranks are lost, the launcher ends this process and starts it again.

        Returns:
            True if the run has ended as it should; False if the other processes are gone, and the launcher too.
        """
        assert self.store is not None
        lost_at = None
        while lost_at is None or time.monotonic() - lost_at < LAUNCHER_S:
            try:
                self.store.wait([ENDED], timedelta(seconds=SPARE_POLL_S))
            except dist.DistNetworkError:
                lost_at = lost_at or time.monotonic()
                time.sleep(1.0)
            except dist.DistStoreError:  # not yet
                lost_at = None
            else:
                self.store.add(LEFT, 1)
                return True
        return False

    def end(self, spares: int) -> None:
        """Tells the spares that the run has ended, and waits until they have noticed, because the store ends too."""
        if self.store is None or not spares:
            return
        deadline = time.monotonic() + GOODBYE_S
        with contextlib.suppress(dist.DistError):  # the process that hosts the store has ended
            self.store.set(ENDED, "yes")
            while self.store.add(LEFT, 0) < spares and time.monotonic() < deadline:
                time.sleep(0.05)
