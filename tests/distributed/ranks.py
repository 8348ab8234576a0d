"""Starts functions and commands on several gloo ranks, and brings back what they saved or printed.

A server process of `multiprocessing` forks the ranks. It imports torch and the recipes once for all tests of a process.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing import forkserver
from pathlib import Path

import torch
import torch.multiprocessing as mp

import powerband
from powerband.core.ranks.ranks import Ranks
from powerband.core.recipe import load_object

TIMEOUT_S = 150
PATHS = [str(Path(powerband.__file__).parents[1]), str(Path(__file__).parents[1])]
RECIPES = [f"powerband.recipes.{name}.train" for name in ("gym", "snakes", "libero")]
multiprocessing.set_forkserver_preload([__name__, *RECIPES, "accelerate", "diffusers.schedulers"])


def on_ranks(work: Callable, world_size: int, folder: Path, *args) -> list[dict]:
    """Calls ``work(ranks, *args) -> dict of tensors`` on every rank and returns the results in rank order."""
    _start_server()
    arguments = (work, world_size, _free_port(), str(folder), args)
    mp.start_processes(_work_on_one_rank, arguments, nprocs=world_size, start_method="forkserver")
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(world_size)]


class CommandOnRanks:
    """A command of powerband on two or more ranks, as a launcher starts it.

    Args:
        words: The command line after ``powerband``.
        folder: Folder for what the ranks print.
        main: Function that runs the command, as ``module:name``.
        own: Further words of each rank.
        variables: Environment variables of the ranks.
    """

    def __init__(
        self,
        words: list[str],
        folder: Path,
        main: str = "powerband.cli.main:main",
        own: Sequence[list[str]] = ([], []),
        **variables: str,
    ) -> None:
        folder.mkdir()
        self.folder, port, context = folder, _free_port(), multiprocessing.get_context("forkserver")
        _start_server()
        each = [{**_rank(rank, len(own), port), **variables} for rank in range(len(own))]
        arguments = [
            (main, [*words, *more], str(folder), environment) for more, environment in zip(own, each, strict=True)
        ]
        self.processes = [context.Process(target=_command_on_one_rank, args=args) for args in arguments]
        for process in self.processes:
            process.start()

    def wait_for_line(self, text: str) -> None:
        """Waits until rank 0 has printed `text`."""
        deadline = time.monotonic() + TIMEOUT_S
        while text not in self.printed():
            assert time.monotonic() < deadline and self.processes[0].is_alive(), self.printed() + self.errors()
            time.sleep(0.05)

    def send_signal(self, number: signal.Signals) -> None:
        """Sends a signal to all ranks."""
        for process in self.processes:
            os.kill(process.pid, number)

    def finish(self) -> list[int]:
        """Waits for the ranks, and returns their exit statuses."""
        deadline = time.monotonic() + TIMEOUT_S
        try:
            for process in self.processes:
                process.join(max(0.0, deadline - time.monotonic()))
            assert not any(process.is_alive() for process in self.processes), self.printed() + self.errors()
        finally:
            for process in self.processes:
                process.kill()
        return [process.exitcode for process in self.processes]

    def printed(self) -> str:
        """Standard output of all ranks so far, rank by rank."""
        return self._text("out")

    def errors(self) -> str:
        """Standard error of all ranks so far, rank by rank."""
        return self._text("err")

    def _text(self, kind: str) -> str:
        files = [self.folder / f"{kind}{rank}" for rank in range(len(self.processes))]
        return "".join(file.read_text() for file in files if file.exists())


def _start_server() -> None:
    """Starts the server if it does not run. It imports modules by PYTHONPATH, and ignores ``sys.path`` of this process.

    It has no launcher's variables, and one thread: a process that has started threads of OpenMP must not fork.
    """
    before = dict(os.environ)
    os.environ.update(PYTHONPATH=os.pathsep.join(PATHS), OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="")
    try:
        forkserver.ensure_running()
    finally:
        os.environ.clear()
        os.environ.update(before)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _rank(rank: int, world_size: int, port: int) -> dict[str, str]:
    """Variables by which a launcher tells a process its rank."""
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    sizes = {"WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": str(world_size)}
    return {"RANK": str(rank), "LOCAL_RANK": str(rank), **sizes, **address}


def _work_on_one_rank(rank: int, work: Callable, world_size: int, port: int, folder: str, args: tuple) -> None:
    torch.set_num_threads(1)
    os.environ.update(_rank(rank, world_size, port))
    ranks = Ranks.from_environment(["cpu"], timeout_s=60)
    torch.save(work(ranks, *args), Path(folder) / f"{rank}.pt")
    ranks.barrier()
    ranks.close()


def _command_on_one_rank(main: str, words: list[str], folder: str, variables: dict[str, str]) -> None:
    os.environ.update(variables)
    for number, kind in ((1, "out"), (2, "err")):
        file = os.open(Path(folder) / f"{kind}{variables['RANK']}", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        os.dup2(file, number)
    sys.exit(load_object(main)(words))
