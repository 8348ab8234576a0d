"""Demonstrations of sketchnav: what the follower of the shortest way sees and does on the episodes of train."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from powerband.core.console import count_shown
from powerband.data.recording import Recording
from powerband.envs.sketchnav.env import SketchNavEnv
from powerband.envs.sketchnav.episodes import VERSION
from powerband.recipes.sketchnav_sets import episodes_of

if TYPE_CHECKING:
    from powerband.core.run import Run
    from powerband.recipes.sketchnav import Config

ROWS = 32
KEPT = ("rgb", "depth", "gps", "compass")


def record(config: Config, run: Run) -> Path:
    """Records the episodes of train that are not there yet, and packs them; returns the folder.

    Rows: ``rgb``, ``depth``, ``gps``, ``compass`` as `SketchNavEnv` gives them, ``action`` (uint8) of the follower,
    ``episode``; the steps of an episode follow one another, STOP is its last.
    """
    folder = Path(config.demos_dir) if config.demos_dir else run.dir / "demos"
    episodes = episodes_of(config, "train", run.console)
    facts = {
        "version": VERSION,
        "seed": config.run.seed,
        "pixels": config.pixels,
        "scenes": json.loads(json.dumps(asdict(config.scenes))),
        "rules": asdict(config.rules),
    }
    recording = Recording(folder, facts)
    there = set(recording.numbers)
    left = torch.tensor([number for number in range(len(episodes)) if number not in there], dtype=torch.int64)
    run.console.note(f"{len(there):,} of {len(episodes):,} episodes are recorded in {folder}")
    if len(left):
        _walk(config, episodes, left, recording)
    return recording.pack()


def _walk(config: Config, episodes, left: Tensor, recording: Recording) -> None:
    """Walks the episodes `left`, each to its end."""
    rows = min(ROWS, len(left))
    env = SketchNavEnv(rows, episodes, config.rules, pixels=config.pixels, in_turns=True, order=left)
    live: list[list[dict[str, Tensor]]] = [[] for _ in range(rows)]
    waiting, done, obs = set(left.tolist()), 0, env.observe()
    with count_shown("recording", len(left), "episodes") as tell:
        while waiting:
            action = env.expert()
            for row in range(rows):
                seen = {name: obs[name][row].clone() for name in KEPT}
                live[row].append({**seen, "action": action[row].to(torch.uint8)})
            numbers = obs["episode"].tolist()
            step = env.step(action)
            for row in step.ended.nonzero()[:, 0].tolist():
                if numbers[row] in waiting:
                    fields = {name: torch.stack([each[name] for each in live[row]]) for name in live[row][0]}
                    recording.add(numbers[row], fields)
                    waiting.remove(numbers[row])
                    done += 1
                    tell(done)
                live[row] = []
            obs = step.obs
