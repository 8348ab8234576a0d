"""Best checkpoint: finds the stored checkpoint of a run whose evaluation during training had the highest score.

The run marks it. In runs of earlier versions, a checkpoint has the score of the last evaluation up to its step.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from powerband.core.run.checkpoints.checkpoint import checkpoints_in
from powerband.core.run.checkpoints.checkpoint_marks import BEST, read_mark
from powerband.core.run_folder import find_run
from powerband.core.telemetry.metrics_file import MetricsReader


def best_checkpoint(run: str, score: str) -> tuple[Path | None, str]:
    """Finds the best stored checkpoint of a run.

    Args:
        run: Run folder, a path inside it, or ``last``.
        score: Result of the evaluation during training, such as success; larger is better. "" if there is none.

    Returns:
        The folder of the checkpoint and its score as a text; None and the reason if no checkpoint has a score.
    """
    folder = find_run(run)
    mark = read_mark(folder, BEST)
    if mark is not None and score in mark.figures:
        path = folder / "checkpoints" / str(mark.step)
        return path, f"{score} {mark.figures[score]:.4g}, the best of its evaluations"
    steps = [int(path.name) for path in checkpoints_in(folder / "checkpoints")]
    evaluations = _evaluations(folder / "metrics.jsonl", f"eval/{score}") if score else []
    scores = {step: [value for at, value in evaluations if at <= step][-1:] for step in steps}
    scored = [(values[0], step) for step, values in scores.items() if values]
    if not scored:
        fix = "Train for longer, or with eval_interval=N to evaluate every N steps"
        return None, f"no stored checkpoint has an evaluation. {fix}"
    value, step = max(scored)
    return folder / "checkpoints" / str(step), f"{score} {value:.4g}, the best of {len(scored)} stored checkpoint(s)"


def _evaluations(path: Path, name: str) -> list[tuple[int, float]]:
    """Returns (environment steps, value) of each evaluation in the metrics file `path`; damaged lines are skipped."""
    found: list[tuple[int, float]] = []
    with contextlib.suppress(OSError):  # it is missing, or no regular file
        for line in MetricsReader(path).read(ended=True):
            if line.get(name) is not None:
                found.append((int(line["env_steps"]), float(line[name])))
    return found
