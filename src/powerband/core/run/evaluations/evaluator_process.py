"""EvaluatorProcess: starts the process that evaluates checkpoints, sends it checkpoints and receives results."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from powerband.core.ranks.meeting import environment_without_launcher

EVALUATOR = "powerband.core.run.evaluations.evaluator"
"""Module that the process runs."""
LOG = "evaluator.log"
"""File of the run folder with everything that the process prints."""


@dataclass(frozen=True)
class Answer:
    """Result of one evaluation.

    Attributes:
        figures: Name -> value; empty after an error.
        error: What failed; "" if nothing did.
    """

    figures: dict[str, float] = field(default_factory=dict)
    error: str = ""


class EvaluatorProcess:
    """The evaluating process as the run sees it. It evaluates one checkpoint at a time, and ends with the run.

    Args:
        reference: The function of the recipe that evaluates, see `RunHooks.evaluator`.
        run_dir: The run folder.
    """

    def __init__(self, reference: str, run_dir: Path) -> None:
        environment = environment_without_launcher()
        environment["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
        # One core is free, and the GPU belongs to the training.
        environment |= {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        with (run_dir / LOG).open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", EVALUATOR, reference, str(run_dir.absolute())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                start_new_session=True,  # Ctrl-C ends the run, which then ends this process
            )
        self.pid = self._process.pid
        self._received = b""

    def send(self, checkpoint: Path) -> None:
        """Starts the evaluation of the checkpoint in this folder. An ended process answers with an error later."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{checkpoint.absolute()}\n".encode())
            self._process.stdin.flush()

    def answer(self, wait_s: float = 0.0) -> Answer | None:
        """Returns the result of the evaluation, or None if there is none within `wait_s` seconds."""
        assert self._process.stdout is not None
        number = self._process.stdout.fileno()
        if not select.select([number], [], [], wait_s)[0]:
            return None
        part = os.read(number, 65536)
        self._received += part
        if b"\n" in self._received:
            line, _, self._received = self._received.partition(b"\n")
            facts: dict[str, Any] = json.loads(line)
            return Answer(facts.get("figures", {}), facts.get("error", ""))
        return None if part else Answer(error=f"the process ended with status {self._process.wait()}")

    def close(self) -> None:
        """Ends the process, whatever it does."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()
