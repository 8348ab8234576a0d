"""Export of a trained team as a submission folder of the Jidi platform."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from powerband.core.config.texts import SHOWN_PATH, shortened
from powerband.core.errors import ConfigError
from powerband.recipes.snakes.env.observations import OBSERVATIONS
from powerband.recipes.snakes.learners import checkpoint_and_config, load

COPIED = ("submission.py", "agent.py", "board.py")
"""Files of this package that are copied to the folder."""
ACTOR = ("encoder.", "net.norm.mean", "net.norm.var", "net.trunk.", "net.head.")
"""Beginnings of the names of the parameters of PPO that its policy reads."""


def write_submission(run: Path, folder: Path) -> list[str]:
    """Writes the policy of a run as a submission folder, which needs numpy only.

    Args:
        run: Run folder or checkpoint.
        folder: The new folder.

    Returns:
        Names of the files in the folder: those in `COPIED`, ``actor.npz`` with the weights, and ``agent.json``.

    Raises:
        ConfigError: `folder` exists or cannot be written, or `run` has no policy of snakes.
    """
    if os.path.lexists(folder):
        raise ConfigError(
            f"export: {shortened(folder, SHOWN_PATH)} exists and is not overwritten. Name another folder, or remove it."
        )
    learner, observation = load(run)
    checkpoint, config = checkpoint_and_config(run)
    ppo = config.algo == "ppo"
    weights = {name: value for name, value in learner.policy_state().items() if not ppo or name.startswith(ACTOR)}
    settings = {
        "algo": "ppo" if ppo else "ddpg",
        "observation": observation,
        "activation": config.ppo.activation if ppo else "relu",
        "moves": OBSERVATIONS[observation].num_actions,
        "checkpoint": f"{checkpoint.parent.parent.name}/checkpoints/{checkpoint.name}",
    }
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".submission-") as unfinished:
            _write_files(Path(unfinished), settings, weights)
            shutil.copytree(unfinished, folder)
    except OSError as error:
        raise ConfigError(
            f"export: {shortened(folder, SHOWN_PATH)} cannot be written ({error.strerror}). Name another folder."
        ) from error
    return sorted(path.name for path in folder.iterdir())


def _write_files(folder: Path, settings: dict, weights: dict[str, Tensor]) -> None:
    for name in COPIED:
        shutil.copy(Path(__file__).parent / name, folder / name)
    (folder / "agent.json").write_text(json.dumps(settings, indent=2), encoding="utf-8")
    arrays: dict[str, Any] = {name: value.detach().cpu().numpy() for name, value in weights.items()}
    np.savez(folder / "actor.npz", **arrays)
