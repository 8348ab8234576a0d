"""Checkpoint marks: small files that name the best checkpoint of a run, and those whose evaluation has not ended.

A marked checkpoint is not deleted when newer ones are written. ``checkpoints/best``, ``checkpoints/evaluating`` and
``checkpoints/queued-STEP``, for each checkpoint that is evaluated next, are JSON objects with the entry ``step``, the
environment steps that name the folder of the checkpoint.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from powerband.core.json_shape import fits
from powerband.core.regular_files import read_object, replace_text

BEST, EVALUATING, QUEUED = "best", "evaluating", "queued"


@dataclass(frozen=True)
class Mark:
    """A marked checkpoint.

    Attributes:
        step: Environment steps, which name the folder of the checkpoint.
        figures: Name -> value: the score of the best checkpoint, or the counters of one whose evaluation has not ended.
    """

    step: int
    figures: dict[str, float]


def queued(step: int) -> str:
    """Name of the mark of a checkpoint that waits for its evaluation."""
    return f"{QUEUED}-{step}"


def write_mark(run_dir: Path, name: str, mark: Mark) -> None:
    """Marks a checkpoint of the run in `run_dir`; `name` is `BEST`, `EVALUATING` or a result of `queued`.

    A kill leaves the earlier mark of this name.
    """
    replace_text(run_dir / "checkpoints" / name, json.dumps(asdict(mark)))


def read_mark(run_dir: Path, name: str) -> Mark | None:
    """Reads a mark; None if it is missing or damaged, or if its checkpoint does not exist."""
    facts: dict[str, Any] = read_object(run_dir / "checkpoints" / name)
    step, figures = facts.get("step"), facts.get("figures")
    if (
        type(step) is not int
        or not isinstance(figures, dict)
        or not all(fits(each, float) for each in figures.values())
    ):
        return None
    return Mark(step, figures) if (run_dir / "checkpoints" / str(step)).is_dir() else None


def remove_mark(run_dir: Path, name: str) -> None:
    """Removes a mark, if there is one."""
    (run_dir / "checkpoints" / name).unlink(missing_ok=True)


def read_marks(run_dir: Path) -> dict[str, Mark]:
    """All marks of a run, by name."""
    names = (BEST, EVALUATING, *(path.name for path in (run_dir / "checkpoints").glob(f"{QUEUED}-*")))
    return {name: mark for name in names if (mark := read_mark(run_dir, name)) is not None}


def marked_steps(run_dir: Path) -> set[int]:
    """Steps of the checkpoints that must stay."""
    return {mark.step for mark in read_marks(run_dir).values()}
