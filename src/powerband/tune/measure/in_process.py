"""Measurement in this process: a short run of a recipe's real loop in a temporary folder."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from powerband.core.errors import Interrupted
from powerband.core.machine import memory
from powerband.core.recipe import Recipe
from powerband.core.run.run import Run
from powerband.tune.knobs import Knobs
from powerband.tune.measure.facts import WindowFacts
from powerband.tune.measure.ledger import Ledger
from powerband.tune.measure.window import MeasurementWindow, WindowFinished


@dataclass(frozen=True)
class Measurement:
    """Result of one short run.

    Attributes:
        ledgers: Wall time per account (category of time) of each rank, in rank order.
        facts: Other figures of each rank, such as its environment steps, in rank order.
        leads: Whether this process is the leading rank, which prints the result.
        interrupted: Name of the signal that ended the measurement early; "" if none did.
    """

    ledgers: list[Ledger]
    facts: list[WindowFacts]
    leads: bool
    interrupted: str = ""

    @property
    def steps_per_s(self) -> float:
        """Environment steps per second over all ranks."""
        return self.facts[0].env_steps / max(self.ledgers[0].wall_s, 1e-9)


def measure(recipe: Recipe, stage: str, config: Any, seconds: float, probe: bool = True) -> Measurement | None:
    """Measures a short run of a recipe in this process, and discards everything that the run writes.

    The measured window begins after the first updates. The settings ``random_steps`` and ``learning_starts`` are
    reduced, because they delay the updates and do not change the rate.

    Args:
        recipe: Recipe to run.
        stage: Name of the stage (function of the recipe) to run, such as ``train``.
        config: Configuration of the run.
        seconds: Length of the window.
        probe: Also time single updates, with several batch sizes, after the window.

    Returns:
        The measurement, or None if the run ended before anything was measured.

    Raises:
        Interrupted: A signal ended the run before anything was measured.
    """
    memory.release_unused()  # so that memory of an earlier run in this process is not counted
    knobs = Knobs(recipe, config)
    count_syncs = not knobs.get("compile") and not knobs.get("graph_updates")
    window = MeasurementWindow(probe, count_syncs)
    with tempfile.TemporaryDirectory(prefix="powerband-profile-") as folder:
        config = knobs.for_measurement(run_dir=str(Path(folder) / "run"), seconds=seconds)
        with contextlib.redirect_stdout(io.StringIO()), _restored_environment():
            try:
                with Run.start(config, recipe="profile", stage=stage, argv=[], observer=window) as run:
                    recipe.run_stage(stage, run.config, run)
            except WindowFinished:
                pass
            finally:
                window.close()
    if not window.ledgers:
        if run.received_signal:
            raise Interrupted(run.received_signal)
        return None
    return Measurement(window.ledgers, window.facts, run.ranks.leads, window.interrupted)


def with_measured_precision(config: Any, measured: Measurement) -> Any:
    """Returns the configuration with the precision that ``auto`` chose, so that later runs use the same precision."""
    return replace(config, run=replace(config.run, precision=measured.facts[0].precision or config.run.precision))


@contextlib.contextmanager
def _restored_environment() -> Iterator[None]:
    """Restores the environment variables for threads that a run sets, so that they do not count as set by the user.

    The variable of numba stays if the run has imported numba. Numba reads it again before it compiles a function, and
    refuses another value than the one with which its threads were started.
    """
    before = {name: os.environ.get(name) for name in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS")}
    imported = "numba" in sys.modules
    try:
        yield
    finally:
        if not imported and "numba" in sys.modules:
            del before["NUMBA_NUM_THREADS"]
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
