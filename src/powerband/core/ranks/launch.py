"""Launch: is this process the run, one rank of it, or the one that starts the ranks.

Ranks are started by torch.distributed's elastic launcher with the command line that was typed, so a rank started
here, by torchrun, by ``accelerate launch`` or by srun is the same thing.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import uuid
from collections.abc import MutableMapping

from powerband.core.config import RunConfig
from powerband.core.errors import ConfigError
from powerband.core.machine.device import ranks_on_this_machine, thread_environment

SHUTDOWN_S = "120"
"""Seconds that ranks have to save after a signal, before they are killed."""


def is_rank(environment: MutableMapping[str, str] = os.environ) -> bool:
    """True in a process that a launcher has started as one of several, or of one."""
    return "RANK" in environment and "WORLD_SIZE" in environment


def is_leading_process(environment: MutableMapping[str, str] = os.environ) -> bool:
    """True in the process that speaks to the user."""
    return environment.get("RANK", "0") == "0"


def set_rank_from_slurm(environment: MutableMapping[str, str] = os.environ) -> str:
    """Makes a task of srun a rank: sets RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT from Slurm's words.

    Returns:
        A notice for a user who asked Slurm for several tasks but did not start this one by srun; else "".
    """
    tasks = int(environment.get("SLURM_STEP_NUM_TASKS") or environment.get("SLURM_NTASKS") or 1)
    if is_rank(environment) or tasks < 2 or "SLURM_PROCID" not in environment:
        return ""
    if "SLURM_STEP_ID" not in environment:  # the batch script itself has a SLURM_PROCID too, and no peers
        return f"Slurm was asked for {tasks} tasks and srun did not start this one. Write srun before the command."
    here = environment.get("SLURM_STEP_TASKS_PER_NODE") or environment.get("SLURM_TASKS_PER_NODE") or ""
    spread = [int(size) for size, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", here) for _ in range(int(times or 1))]
    node = int(environment.get("SLURM_NODEID", 0))
    words = {
        "RANK": environment["SLURM_PROCID"],
        "LOCAL_RANK": environment.get("SLURM_LOCALID", "0"),
        "WORLD_SIZE": str(tasks),
        "LOCAL_WORLD_SIZE": str(spread[node] if node < len(spread) else tasks),
    }
    environment.update(words)
    environment.setdefault("MASTER_ADDR", _first_host(environment))
    environment.setdefault("MASTER_PORT", str(20_000 + int(environment.get("SLURM_JOB_ID", 0)) % 10_000))
    return ""


def _first_host(environment: MutableMapping[str, str]) -> str:
    """First of ``node[03-05,9],other`` as Slurm writes a list of hosts: ``node03``."""
    hosts = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST") or "127.0.0.1"
    match = re.match(r"([^,\[]+)(?:\[([^\],-]+))?", hosts)
    return (match[1] + (match[2] or "")) if match else hosts


def world_size(settings: RunConfig) -> int:
    """Ranks of the whole run: as the launcher says, else as the settings ask, with the most machines they allow."""
    if is_rank():
        return int(os.environ["WORLD_SIZE"])
    return ranks_on_this_machine(settings) * int(settings.nnodes.split(":")[-1])


def launch(settings: RunConfig, words: list[str]) -> int | None:
    """Starts the ranks where this process is to start any, and waits for them.

    Args:
        settings: The run's settings, already checked.
        words: Command line after ``powerband``; every rank is given the same.

    Returns:
        None where this process is the run, or a rank of it, and goes on; else the exit status of the ranks.

    Raises:
        ConfigError: Devices that are not there, machines without a place to meet.
    """
    here = ranks_on_this_machine(settings)
    if is_rank():
        return None
    least, _, most = settings.nnodes.partition(":")
    machines = int(most or least)
    if here == 1 and machines == 1:
        return None
    if machines > 1 and not settings.rdzv_endpoint:
        raise ConfigError(
            f"nnodes={settings.nnodes} needs a place where the machines meet. "
            "Write rdzv_endpoint=HOST:29500 with the name of one of them, the same on all."
        )
    os.environ.update(thread_environment(settings.threads, here))
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", SHUTDOWN_S)
    return _elastic(settings, here, int(least), machines, ["-u", "-m", "powerband", *words])


def _elastic(settings: RunConfig, here: int, least: int, most: int, words: list[str]) -> int:
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    alone = most == 1
    config = LaunchConfig(
        min_nodes=least,
        max_nodes=most,
        nproc_per_node=here,
        run_id=uuid.uuid4().hex if alone else "powerband",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0" if alone else settings.rdzv_endpoint,
        local_addr="localhost" if alone else None,
        max_restarts=0,
    )
    try:
        elastic_launch(config, sys.executable)(*words)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        status = failure.exitcode if failure.exitcode > 0 else 128 - failure.exitcode
        if status != 2:  # a rank that exits with 2 has said why
            name = f"signal {signal.Signals(-failure.exitcode).name}" if failure.exitcode < 0 else f"status {status}"
            print(f"powerband: rank {rank} (process {failure.pid}) ended with {name}.", file=sys.stderr)
        return status
    except SignalException as error:
        return 128 + error.sigval
    return 0
