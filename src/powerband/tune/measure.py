"""Measure: one short run of a recipe's real loop in a folder that is thrown away, and what its window saw."""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from powerband.core import memory
from powerband.core.run import Run
from powerband.tune.facts import Facts
from powerband.tune.knobs import Knobs
from powerband.tune.ledger import Ledger
from powerband.tune.window import Measured, Window


class Recipe(Protocol):
    """What a recipe's module gives; the command line hands it over."""

    STAGES: dict[str, Any]


@dataclass(frozen=True)
class Measurement:
    """What one short run showed.

    Attributes:
        ledgers, facts: One a rank, in rank order.
        steps_per_s: Environment steps a second over all ranks, in the window.
        leads: True in the process that prints.
        interrupted: Name of the signal that ended the window early, "" for none.
    """

    ledgers: list[Ledger]
    facts: list[Facts]
    leads: bool
    interrupted: str = ""

    @property
    def steps_per_s(self) -> float:
        return self.facts[0].env_steps / max(self.ledgers[0].wall_s, 1e-9)


def measure(recipe: Recipe, stage: str, config: Any, seconds: float, probe: bool = True) -> Measurement | None:
    """Runs `stage` of a recipe until its window of `seconds` is over.

    What costs start-up time and changes no rate is shortened: warm-up and random actions end with the first steps.
    Nothing that the run writes is kept.

    Args:
        recipe: The recipe's module.
        stage: Name of the stage.
        config: Its whole configuration.
        seconds: Length of the window.
        probe: Time updates of other batches after it.

    Returns:
        None where the run ended by itself before anything could be measured.
    """
    memory.give_back()  # what an earlier run in this process had is no need of this one
    knobs = Knobs(recipe, config)
    window = Window(probe, count=not knobs.get("compile") and not knobs.get("graph_updates"))
    with tempfile.TemporaryDirectory(prefix="powerband-profile-") as folder:
        config = knobs.shortened(run_dir=str(Path(folder) / "run"), seconds=seconds)
        with contextlib.redirect_stdout(io.StringIO()), _environment_kept():
            try:
                with Run.start(config, recipe="profile", stage=stage, argv=[]) as run:
                    window.attend(run)
                    recipe.STAGES[stage](run.config, run)
            except Measured:
                pass
            finally:
                window.close()
    if not window.ledgers:
        return None
    return Measurement(window.ledgers, window.facts, run.ranks.leads, window.interrupted)


def as_measured(config: Any, found: Measurement) -> Any:
    """The configuration with what ``precision=auto`` was in that run: the runs beside it compute alike."""
    return replace(config, run=replace(config.run, precision=found.facts[0].precision or config.run.precision))


@contextlib.contextmanager
def _environment_kept() -> Iterator[None]:
    """Puts the thread variables back that a run sets for its children: the next run would take them for the user's."""
    before = {name: os.environ.get(name) for name in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS")}
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
