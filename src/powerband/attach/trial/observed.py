"""Observed: figures of the first profile that the predictions read, of the process that trains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from powerband.attach.times.process_times import Line, ProcessTimes

VECTOR_CLASSES = ("SyncVectorEnv", "AsyncVectorEnv", "make_vec")


@dataclass(frozen=True)
class Loader:
    """A batch loader in the window.

    Attributes:
        where: Place of its construction.
        batches, iterators: Number of batches and of iterators.
        wait_s, start_s: Seconds of waiting for batches, and of the creation of iterators.
        num_workers: Number of worker processes.
        prefetch_factor: Batches that each worker prepares ahead.
        persistent_workers, pin_memory, iterable: Settings, and whether the data set is an iterable.
    """

    where: str
    batches: int
    iterators: int
    wait_s: float
    start_s: float
    num_workers: int
    prefetch_factor: int
    persistent_workers: bool
    pin_memory: bool
    iterable: bool


@dataclass(frozen=True)
class Observed:
    """Figures of the window.

    Attributes:
        wall_s: Seconds of the window.
        seconds: Account -> seconds.
        thread_s, cpu_s: Processor seconds of the training thread, and of all threads of its process.
        queue_s: Seconds in which the training thread was ready and had no core.
        updates, env_calls, num_envs: Updates, calls of the environments, and environments per call.
        workers_env_s: Seconds of the environments in other processes.
        workers_cpu_s: Processor seconds of all other processes.
        loaders: Batch loaders, the one with the longest waits first.
        sites: Calls of the user's code that a change may concern.
        lines: Lines of code of the process that trains, with their seconds.
        threads, cores: Threads of torch (0 without torch), and cores of the machine.
        device: Device of the parameters, such as ``cpu``.
        worker_lines: Lines of code of each other process.
        logger_share: Share of the wall time that a logger costs: its calls, and the time for which it holds up
            everything else.
    """

    wall_s: float
    seconds: dict[str, float]
    thread_s: float
    cpu_s: float
    queue_s: float
    updates: int
    env_calls: int
    num_envs: int
    workers_env_s: float
    workers_cpu_s: float
    loaders: list[Loader]
    sites: list[dict[str, Any]]
    lines: list[Line]
    threads: int
    cores: int
    device: str
    worker_lines: list[list[Line]] = field(default_factory=list)
    logger_share: float = 0.0

    def share(self, *accounts: str) -> float:
        """Returns the share of the wall time in `accounts` together, 0 to 1."""
        return sum(self.seconds.get(name, 0.0) for name in accounts) / self.wall_s

    def processor_s(self, seconds: float) -> float:
        """Returns the processor seconds within `seconds` of the training thread, if all other time computes."""
        return min(seconds, max(0.0, self.thread_s - (self.wall_s - seconds)))

    def sites_of(self, *names: str) -> list[dict[str, Any]]:
        """Returns the calls of functions or classes."""
        return [site for site in self.sites if site["what"] in names or site["name"] in names]


def observed(
    leader: ProcessTimes, processes: Sequence[ProcessTimes], start_ns: int, end_ns: int, cores: int
) -> Observed:
    """Collects the figures of a window.

    Args:
        leader: Process that trains.
        processes: All processes with times in the window.
        start_ns, end_ns: The window.
        cores: Cores that the script may use.
    """
    record, ledger = leader.record, leader.ledger
    others = [each for each in processes if each is not leader]
    optimizers = record.of_kind("optimizer")
    return Observed(
        ledger.wall_s,
        ledger.by_host().seconds,
        ledger.thread_s,
        ledger.cpu_s,
        leader.queue_s,
        leader.updates,
        leader.env_calls,
        leader.num_envs,
        sum(each.ledger.seconds.get("env", 0.0) for each in others),
        sum(each.ledger.cpu_s for each in others),
        _loaders(leader, start_ns, end_ns),
        record.of_kind("call_site"),
        leader.lines,
        optimizers[0]["threads"] if optimizers else 0,
        cores,
        optimizers[0]["device"] if optimizers else "",
        [each.lines for each in others],
        leader.logger_share,
    )


def _loaders(leader: ProcessTimes, start_ns: int, end_ns: int) -> list[Loader]:
    times = [line for line in leader.record.of_kind("times") if start_ns <= line["now_ns"] <= end_ns]
    if not times:
        return []
    settings = {line["where"]: line for line in leader.record.of_kind("loader")}
    found = []
    for where, last in times[-1].get("loaders", {}).items():
        first = times[0].get("loaders", {}).get(where, [0, 0, 0, 0])
        batches, wait_ns, iterators, start_ns_ = (a - b for a, b in zip(last, first, strict=True))
        line = settings.get(where)
        if line is not None and batches:
            found.append(
                Loader(
                    where,
                    batches,
                    iterators,
                    wait_ns * 1e-9,
                    start_ns_ * 1e-9,
                    line["num_workers"],
                    line["prefetch_factor"] or 2,
                    bool(line["persistent_workers"]),
                    bool(line["pin_memory"]),
                    line["iterable"],
                )
            )
    return sorted(found, key=lambda loader: -(loader.wait_s + loader.start_s))
