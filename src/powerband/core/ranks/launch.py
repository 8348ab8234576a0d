"""Launch: starts the ranks of a run, unless this process is the only rank or a rank of another launcher.

The elastic launcher of torch.distributed starts the ranks with the user's command line. Ranks of torchrun,
``accelerate launch`` and srun therefore behave the same.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import uuid
from collections.abc import MutableMapping
from contextlib import ExitStack, nullcontext
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from powerband.core.config import RunConfig
from powerband.core.errors import ConfigError
from powerband.core.machine.device import ranks_on_this_machine, thread_environment
from powerband.core.machine.parent_death import signal_at_parent_death
from powerband.core.ranks import restarts
from powerband.core.ranks.connections import limited_silence
from powerband.core.ranks.rendezvous import Endpoint, find_meeting_place, interface_of
from powerband.core.run.stop_request import SIGNALS
from powerband.core.stalls.launched_ranks import STALLED, watched_ranks

SHUTDOWN_S = "120"
"""Time limit in seconds for ranks to save after a signal, before they are killed."""
RENDEZVOUS_S = 900
"""Seconds within which all machines of a run must meet."""
LAST_CALL_S = 15
"""Seconds for which a range of machines waits for further ones once the smallest number has met."""
PATIENCE = {"read_timeout": 20, "keep_alive_interval": 3, "keep_alive_max_attempt": 3}
"""Seconds until a rendezvous that does not answer is lost, and between signs of life; missing signs until a machine is
lost."""
RESTARTS = 10
"""Restarts of the ranks of a run on a range of machines, unless max_restarts is set."""
FORWARDED_SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1"
"""Signals after which the launcher lets the ranks save; torch alone leaves out SIGUSR1."""
STEP_PORTS = 101
"""Distance of the ports of two steps of one Slurm job. The next numbers may belong to other jobs on the same node."""
REPORTED = (2, STALLED, *(128 + number for number in SIGNALS))
"""Exit statuses whose reason has been printed: a user error, a stall, or a signal after which the rank has saved."""


def is_rank(environment: MutableMapping[str, str] = os.environ) -> bool:
    """True if a launcher such as torchrun has started this process as a rank, and set RANK and WORLD_SIZE."""
    return "RANK" in environment and "WORLD_SIZE" in environment


def end_with_launcher(environment: MutableMapping[str, str] = os.environ) -> None:
    """Makes a rank of torch's elastic launcher save and end if the launcher is killed.

    The kernel then sends SIGTERM to the rank (Linux only). A process that no elastic launcher has started is not
    changed.

    Raises:
        SystemExit: The launcher of powerband has been killed already.
    """
    launcher = environment.pop(restarts.LAUNCHER, "")
    if "TORCHELASTIC_RUN_ID" in environment:
        signal_at_parent_death(signal.SIGTERM)
        if launcher and os.getppid() != int(launcher):  # it ended before the kernel knew what to do then
            raise SystemExit(128 + signal.SIGTERM)


def is_leading_process(environment: MutableMapping[str, str] = os.environ) -> bool:
    """True in the process that prints messages: rank 0, or a process that no launcher has started."""
    return environment.get("RANK", "0") == "0"


def set_rank_from_slurm(environment: MutableMapping[str, str] = os.environ) -> str:
    """Turns a process that srun (Slurm) has started into a rank of the run.

    Sets RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT.

    Returns:
        A notice for the user if Slurm has allocated several tasks but srun did not start this process; else "".
    """
    tasks = int(environment.get("SLURM_STEP_NUM_TASKS") or environment.get("SLURM_NTASKS") or 1)
    if is_rank(environment) or tasks < 2 or "SLURM_PROCID" not in environment:
        return ""
    if "SLURM_STEP_ID" not in environment:  # the batch script has a SLURM_PROCID too, but no peers
        return f"Slurm has allocated {tasks} tasks, but srun did not start this process. Write srun before the command."
    counts = environment.get("SLURM_STEP_TASKS_PER_NODE") or environment.get("SLURM_TASKS_PER_NODE") or ""
    repeated = re.findall(r"(\d+)(?:\(x(\d+)\))?", counts)  # 2(x3),1
    tasks_per_node = [int(count) for count, times in repeated for _ in range(int(times or 1))]
    node = int(environment.get("SLURM_NODEID", 0))
    environment["RANK"] = environment["SLURM_PROCID"]
    environment["LOCAL_RANK"] = environment.get("SLURM_LOCALID", "0")
    environment["WORLD_SIZE"] = str(tasks)
    environment["LOCAL_WORLD_SIZE"] = str(tasks_per_node[node] if node < len(tasks_per_node) else tasks)
    environment.setdefault("MASTER_ADDR", _first_host(environment))
    # Steps of one job may run at once, on the same nodes.
    number = int(environment.get("SLURM_JOB_ID", 0)) + STEP_PORTS * int(environment["SLURM_STEP_ID"])
    environment.setdefault("MASTER_PORT", str(20_000 + number % 10_000))
    return ""


def _first_host(environment: MutableMapping[str, str]) -> str:
    """First host of Slurm's node list: ``node03`` for ``node[03-05,9],other``."""
    hosts = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST") or "127.0.0.1"
    match = re.match(r"([^,\[]+)(?:\[([^\],-]+))?", hosts)
    return (match[1] + (match[2] or "")) if match else hosts


def world_size(settings: RunConfig) -> int:
    """Number of ranks of the run: WORLD_SIZE of a launcher, or the largest number that the settings allow."""
    if is_rank():
        return int(os.environ["WORLD_SIZE"])
    return ranks_on_this_machine(settings) * int(settings.nnodes.split(":")[-1])


def is_elastic(settings: RunConfig) -> bool:
    """True if the number of ranks may change, so that ranks that do not divide the sizes wait as spares."""
    return ":" in settings.nnodes or (is_rank() and bool(restarts.job()))


def launch(settings: RunConfig, arguments: list[str], new_folder: str = "") -> int | None:
    """Starts the ranks of a run with several ranks, and waits for them.

    Args:
        settings: Settings of the run.
        arguments: Command line after ``powerband``, for every rank.
        new_folder: Folder of a new run without ``run_dir``, which restarted ranks must find again; "" otherwise.

    Returns:
        None if this process is the only rank or a rank of a launcher; else the exit status of the ranks.

    Raises:
        ConfigError: A GPU does not exist, a run on several machines has no rdzv_endpoint, or one that may be restarted
            has no run_dir.
    """
    here = ranks_on_this_machine(settings)
    if is_rank():
        return None
    least, _, most = settings.nnodes.partition(":")
    machines = int(most or least)
    restarts_allowed = settings.max_restarts or (RESTARTS if most and machines > int(least) else 0)
    if here == 1 and machines == 1 and not restarts_allowed:
        return None
    if machines > 1 and not settings.rdzv_endpoint:
        raise ConfigError(
            f"nnodes={settings.nnodes} requires a rendezvous address. "
            "Write rdzv_endpoint=HOST:29500 on all machines, where HOST is the name of one of them."
        )
    if machines > 1 and restarts_allowed and new_folder:
        raise ConfigError(
            f"nnodes={settings.nnodes} with restarts requires a run_dir, so that restarted ranks find their run. Write "
            f"run_dir=FOLDER on all machines, on a disk that they share or on one of their own."
        )
    place, endpoint = -1, None
    if machines > 1:
        place, endpoint = find_meeting_place(settings.rdzv_endpoint, -1, RENDEZVOUS_S)
        if interface := interface_of(endpoint.own_address):  # not that of the host name, which may be loopback
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    os.environ.update(thread_environment(settings.threads, here))
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", SHUTDOWN_S)
    os.environ.setdefault("TORCHELASTIC_SIGNALS_TO_HANDLE", FORWARDED_SIGNALS)
    if endpoint is None or restarts_allowed:
        # Rank 0 hosts the store. That of torch's launcher listens on all interfaces, and keeps addresses of lost ranks.
        os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    command = ["-u", "-P", "-m", "powerband", *arguments]
    _import_torch()
    from torch.distributed.elastic.multiprocessing import SignalException

    reported, losses, ended_by_stall = 0, 0, False
    if restarts_allowed:
        restarts.prepare(new_folder)
    notes = ExitStack()
    resumed = str(Path(settings.resume).expanduser().absolute()) if settings.resume else ""
    for variable, value in ((restarts.LAUNCHER, str(os.getpid())), (restarts.RESUMED, resumed)):
        os.environ[variable] = value
        notes.callback(os.environ.pop, variable, None)
    if endpoint is not None:
        notes.enter_context(restarts.noted_statuses())
    try:
        while True:
            address = None if endpoint is None else (endpoint.address, endpoint.port)
            try:
                with watched_ranks(
                    here, settings.stall_s, settings.on_stall, address, bool(restarts_allowed)
                ) as stalled:
                    status = _elastic(endpoint, here, int(least), machines, restarts_allowed - losses, command)
                ended_by_stall = stalled.is_set()
                break
            except EndpointLost as lost:
                losses += 1
                if losses > restarts_allowed:
                    raise ConfigError(str(lost)) from lost
                print(f"powerband: rdzv_endpoint={endpoint} was lost. The machines meet again.", file=sys.stderr)
                place, endpoint = find_meeting_place(settings.rdzv_endpoint, place, RENDEZVOUS_S)
                print(f"powerband: they meet at {endpoint}.", file=sys.stderr)
    except SignalException as error:  # torch's handlers stay while the machines look for each other
        status = 128 + error.sigval
    finally:
        notes.close()
        if restarts_allowed:
            reported = restarts.finish()
    if ended_by_stall and not restarts_allowed:
        return STALLED
    return reported or status


def _import_torch() -> None:
    """Imports torch before other threads do, because threads that import it at once can wait for each other."""
    log_level = os.environ.get("TORCH_CPP_LOG_LEVEL")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")  # a store that ends is no reason for stack traces
    import torch.distributed.launcher.api  # noqa: F401

    if log_level is None:  # it concerns this process alone
        del os.environ["TORCH_CPP_LOG_LEVEL"]


class EndpointLost(Exception):
    """The machine at which the launchers have met does not answer any more."""


def _elastic(
    endpoint: Endpoint | None, here: int, least: int, most: int, max_restarts: int, arguments: list[str]
) -> int:
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import RendezvousConnectionError, RendezvousError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    several: dict[str, Any] = {}
    if endpoint is not None:
        is_host = str(endpoint.hosted_here)
        several = {"is_host": is_host, "timeout": RENDEZVOUS_S, "last_call_timeout": LAST_CALL_S, **PATIENCE}
    signals: dict[str, Any] = {}
    if "signals_to_handle" in {field.name for field in fields(LaunchConfig)}:  # newer torch ignores the variable
        signals["signals_to_handle"] = os.environ.get("TORCHELASTIC_SIGNALS_TO_HANDLE", FORWARDED_SIGNALS)
    config = LaunchConfig(
        min_nodes=least,
        max_nodes=most,
        nproc_per_node=here,
        run_id=uuid.uuid4().hex if endpoint is None else "powerband",
        rdzv_backend="c10d",
        rdzv_endpoint="" if endpoint is None else endpoint.numeric,
        rdzv_configs=several or {"store_type": "file"},
        local_addr="localhost" if endpoint is None else endpoint.own_address,
        max_restarts=max_restarts,
        **signals,
    )
    try:
        with limited_silence() if endpoint is not None and max_restarts else nullcontext():
            elastic_launch(config, sys.executable)(*arguments)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        status = failure.exitcode if failure.exitcode > 0 else 128 - failure.exitcode
        if status not in REPORTED:
            name = f"signal {signal.Signals(-failure.exitcode).name}" if failure.exitcode < 0 else f"status {status}"
            print(f"powerband: rank {rank} (process {failure.pid}) ended with {name}.", file=sys.stderr)
        return status
    except SignalException as error:
        return 128 + error.sigval
    except RendezvousError as error:
        unreachable = isinstance(error, RendezvousConnectionError)
        if endpoint is not None and endpoint.hosted_here and unreachable:  # another process here has the port already
            return _elastic(replace(endpoint, hosted_here=False), here, least, most, max_restarts, arguments)
        if max_restarts and unreachable:
            raise EndpointLost(f"rdzv_endpoint={endpoint} does not answer any more ({error}).") from error
        if noted := restarts.statuses():  # the machines had met
            if status := max(noted):  # after a signal, the machine of the endpoint has ended first
                return status
            raise ConfigError(
                f"rdzv_endpoint={endpoint} does not answer any more ({error}), so the run has ended. Continue it from "
                f"its last checkpoint with resume=FOLDER. With max_restarts=3, the machines would have met again."
            ) from error
        raise ConfigError(
            f"The machines of nnodes={least}:{most} did not meet at rdzv_endpoint={endpoint} ({error}). Start the same "
            f"command on each of them within {RENDEZVOUS_S // 60} minutes, and check that they reach this address."
        ) from error
    return 0
