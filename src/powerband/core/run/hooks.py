"""RunHooks: functions of a recipe that a run calls at certain points."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class RunHooks:
    """Functions of a recipe that a run calls.

    Attributes:
        evaluate: Runs an evaluation and returns its results, name -> value. It is called on rank 0 when `Evaluations`
            finds one due, and must not change what the training draws or computes. None means no evaluation.
        evaluator: The same evaluation for a process of its own, as ``module:function``: (run folder) -> function
            (checkpoint folder) -> results. It uses one thread and no GPU. "" evaluates in the training process only.
        before_save: Called on all ranks before each checkpoint, for example to gather sharded weights. None calls
            nothing.
        export: Called on rank 0 at each checkpoint. It returns files for other programs, path inside the checkpoint ->
            content, which a resume does not read. None exports nothing.
    """

    evaluate: Callable[[], dict[str, float]] | None = None
    evaluator: str = ""
    before_save: Callable[[], None] | None = None
    export: Callable[[], dict[str, bytes]] | None = None
