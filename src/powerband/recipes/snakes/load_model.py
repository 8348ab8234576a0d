"""Translates ``--load_model``, ``--load_model_run`` and ``--load_model_run_episode`` of the guide to ``resume``.

In the guide's code the first option is a switch, the second the number of a run, and the third the episode at which its
weights were saved.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from powerband.core.config.flags import Flag
from powerband.core.config.saved import named_run
from powerband.core.errors import ConfigError
from powerband.recipes.snakes.config import EPISODE_STEPS

SWITCH, RUN, EPISODE = NAMES = ("load_model", "load_model_run", "load_model_run_episode")


def resumed_run(flags: list[Flag]) -> tuple[list[Flag], list[str]]:
    """Replaces the three options by one flag ``run.resume``.

    Args:
        flags: Flags of one source, such as the command line.

    Returns:
        The flags after the replacement, and notices for the user.

    Raises:
        ConfigError: The run does not exist, or has no checkpoint at or before the episode.
    """
    given = {flag.name: flag for flag in flags if flag.name in NAMES}
    others = [flag for flag in flags if flag.name not in NAMES]
    if not given:
        return flags, []
    shown = ", ".join(str(flag) for flag in given.values())
    value = str(given[SWITCH].value or "true") if SWITCH in given else "true"
    if value.lower() in ("false", "0", "no"):
        return others, [f"{shown}: no run is loaded."]
    named = str(given[RUN].value) if RUN in given else "last" if value.lower() in ("true", "1", "yes") else value
    target = next((path for path in (named, f"runs/{named}", f"runs/run{named}") if os.path.exists(path)), named)
    if EPISODE in given:
        target = str(_checkpoint(named_run(target, RUN), given[EPISODE]))
    notice = f"{shown}: resume={target} here. It continues the run, with its optimiser, replay buffer and counters."
    return [*others, replace(next(iter(given.values())), name="run.resume", value=target)], [notice]


def _checkpoint(folder: Path, episode: Flag) -> Path:
    """Returns the newest checkpoint in the run `folder` at or before an episode, which has 200 steps."""
    if not isinstance(episode.value, str) or not episode.value.isdigit():
        raise ConfigError(f"{episode}: expected the number of an episode. Write --{EPISODE} 2000.")
    limit = int(episode.value) * EPISODE_STEPS
    steps = sorted(int(path.name) for path in (folder / "checkpoints").glob("*") if path.name.isdigit())
    earlier = [step for step in steps if step <= limit]
    if not earlier:
        stored = ", ".join(str(step // EPISODE_STEPS) for step in steps) or "none"
        raise ConfigError(
            f"{episode}: {folder} has no checkpoint at or before step {limit}, the end of that episode over all ranks. "
            f"Episodes with a checkpoint: {stored}. Leave the option out for the newest one."
        )
    return folder / "checkpoints" / str(earlier[-1])
