"""Evaluator: the process that evaluates checkpoints of a run while the run goes on.

It runs as ``python -m powerband.core.run.evaluations.evaluator REFERENCE RUN_FOLDER``. It reads the path of a
checkpoint per line from stdin, and writes a JSON object per checkpoint to stdout: ``figures`` (name -> value) or
``error``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import TextIO

LOW_PRIORITY = 10
"""Niceness. A process of 19 would get nearly nothing while others compute, and the end of the run waits for it."""


def evaluate_checkpoints(reference: str, run_dir: Path, paths: TextIO, results: TextIO) -> None:
    """Evaluates each checkpoint that `paths` names, until its end.

    Args:
        reference: The function of the recipe, see `RunHooks.evaluator`.
        run_dir: The run folder.
        paths: Path of a checkpoint per line.
        results: Receives a JSON object per checkpoint.
    """
    from powerband.core.recipe import load_object

    evaluate = None
    for line in paths:
        try:
            evaluate = evaluate or load_object(reference)(run_dir)
            answer: dict[str, object] = {
                "figures": {name: float(value) for name, value in evaluate(Path(line.strip())).items()}
            }
        except Exception as error:
            import traceback

            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {str(error)[:500]}"}
        results.write(json.dumps(answer) + "\n")
        results.flush()


def main() -> None:
    """Prepares the process: low priority, one thread, no GPU, and stdout free for the results."""
    from powerband.core.machine.parent_death import signal_at_parent_death

    signal_at_parent_death(signal.SIGKILL)
    os.nice(LOW_PRIORITY)
    results = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a simulator prints goes to the log
    import torch

    torch.set_num_threads(1)
    evaluate_checkpoints(sys.argv[1], Path(sys.argv[2]), sys.stdin, results)


if __name__ == "__main__":
    main()
