"""Children that tests kill. One process imports torch and forks each of them, so that they start without importing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import traceback
from pathlib import Path

import torch

from powerband.cli import main as cli
from powerband.core.run.checkpoints.checkpoint_writer import CheckpointWriter
from powerband.recipes.snakes import train as imported_before_the_fork  # noqa: F401

FLOATS = 400_000
ENDED = "-- the child has ended --"


class Forks:
    """Process whose children call one function of this module; a context manager that ends the process.

    Args:
        function: Name of the function.
    """

    def __init__(self, function: str) -> None:
        paths = os.pathsep.join(path for path in sys.path if path)
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
        command = [sys.executable, __file__, function]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen(command, env=environment, text=True, **pipes)

    def __enter__(self) -> Forks:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.stdin.close()
        self.process.kill()
        self.process.wait()

    def start(self, *arguments: str | int) -> None:
        """Starts a child with these arguments of the function."""
        print(json.dumps(arguments), file=self.process.stdin, flush=True)
        self.pid = int(self.readline())

    def readline(self) -> str:
        """Returns the next line that the child prints."""
        line = self._line()
        assert line != ENDED, "the child ended by itself"
        return line

    def kill(self) -> list[str]:
        """Kills the child with SIGKILL and returns the lines that it printed and nobody has read."""
        os.kill(self.pid, signal.SIGKILL)
        return [line for line in iter(self._line, ENDED) if line]

    def _line(self) -> str:
        line = self.process.stdout.readline()
        assert line, "the process that forks has ended"
        return line.rstrip("\n")


def save_forever(run_dir: str, step: int) -> None:
    """Writes one checkpoint after another, and prints the step of each when it is complete."""
    while True:
        step += 1
        writer = CheckpointWriter(Path(run_dir), step)
        tree = {"x": torch.full((FLOATS,), float(step)), "step": step}
        files = writer.write("shared", tree) | writer.write("rank0", tree)
        writer.write_manifest(files, {"world_size": 1})
        writer.publish()
        print(step, flush=True)


def resume_forever(run_dir: str) -> None:
    """Continues a run of snakes without an end."""
    cli.main(["train", "snakes", f"resume={run_dir}", "env_steps=100000000", "log_interval_s=0.2"])


def main(function: str) -> None:
    for line in sys.stdin:
        pid = os.fork()
        if not pid:
            try:
                print(os.getpid(), flush=True)
                globals()[function](*json.loads(line))
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        os.waitpid(pid, 0)
        print(f"\n{ENDED}", flush=True)  # the child may have been killed within a line


if __name__ == "__main__":
    main(sys.argv[1])
