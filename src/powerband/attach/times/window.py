"""Window: which processes of a script train, and the facts about them that the diagnosis reads."""

from __future__ import annotations

from collections.abc import Sequence

from powerband.attach.times.process_times import ProcessTimes
from powerband.attach.times.update_facts import render_facts, update_facts
from powerband.core.machine.device import cores
from powerband.tune.measure.cpu_time import CpuUse
from powerband.tune.measure.facts import WindowFacts


def ranks_of(processes: Sequence[ProcessTimes]) -> list[ProcessTimes]:
    """Returns the processes that train, in the order of their ranks; the busiest one if none has updated."""
    learning = [each for each in processes if each.updates > 0]
    ranks = [each for each in learning if each.record.start["rank"]]
    if ranks:
        return sorted(ranks, key=lambda each: int(each.record.start["rank"]))
    if learning:
        return [max(learning, key=lambda each: each.updates)]
    return [max(processes, key=lambda each: (each.env_steps, -each.record.began_ns))]


def facts_of(ranks: Sequence[ProcessTimes], processes: Sequence[ProcessTimes]) -> WindowFacts:
    """Returns the figures that the diagnosis reads besides the ledgers.

    Args:
        ranks: Processes that train.
        processes: All processes.
    """
    leader = ranks[0]
    others = [each for each in processes if each.env_steps and each not in ranks and "env" in each.ledger.spans]
    workers = [each for each in others if _below(each, leader, processes)]
    waits = leader.ledger.share("env_wait") > 0 and bool(workers)
    optimizers = leader.record.of_kind("optimizer")
    iterations = max(leader.env_calls, leader.updates)  # either may be rare, such as the steps of an evaluation
    return WindowFacts(
        iterations=iterations,
        env_steps=sum(each.env_steps for each in ranks),
        grad_steps=sum(each.updates for each in ranks) // len(ranks),
        world_size=len(ranks),
        num_envs=leader.num_envs,
        cores=cores(),
        threads=optimizers[0]["threads"] if optimizers else 0,
        precision=optimizers[0]["dtype"] if optimizers else "",
        overlappable=waits,
        env_step_s=[each.env_s for each in workers] if waits else [],
        env_worst_s=[each.ledger.spans["env"].worst_s for each in workers if "env" in each.ledger.spans]
        if waits
        else [],
        worker_rows=[[row] for row in range(len(workers))] if waits else [],
        host=CpuUse(loop_queue_s=leader.queue_s),
        env_cpu_s=sum(each.ledger.cpu_s for each in workers),
        **render_facts(leader, workers if waits else []),
        **update_facts(leader, iterations),
    )


def _below(process: ProcessTimes, leader: ProcessTimes, processes: Sequence[ProcessTimes]) -> bool:
    """Returns whether a process descends from `leader`, also through a fork server."""
    parents = {each.record.pid: each.record.ppid for each in processes}
    pid, depth = process.record.ppid, 0
    while pid != leader.record.pid and pid in parents and depth < 10:
        pid, depth = parents[pid], depth + 1
    return pid == leader.record.pid
