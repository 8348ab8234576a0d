"""Demonstrations of sketchnav: what the follower of the shortest way sees and does on the episodes of train."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from powerband.core.console import count_shown
from powerband.data.recording import Recording
from powerband.envs.sketchnav.env import EXACT, SketchNavEnv
from powerband.envs.sketchnav.episodes import VERSION, Episodes
from powerband.envs.sketchnav.world import FORWARD, NUM_ACTIONS, STOP
from powerband.recipes.sketchnav_sets import episodes_of, seed_of

if TYPE_CHECKING:
    from powerband.core.run import Run
    from powerband.recipes.sketchnav import Config

ROWS = 32


def pictures_of(config: Config) -> tuple[str, ...]:
    """Pictures of the camera that the policy of `config` sees."""
    return tuple(name for name, used in (("rgb", config.net.use_rgb), ("depth", config.net.use_depth)) if used)


def demos(config: Config, run: Run) -> None:
    """Records the follower of the shortest way on the episodes of train."""
    run.console.note(f"whole recording: {record(config, run)}")


def record(config: Config, run: Run) -> Path:
    """Records the episodes of train that are not there yet, and packs them; returns the folder.

    Rows: ``rgb`` and ``depth`` as far as `net` sees them, ``gps``, ``compass`` as `SketchNavEnv` gives them, ``action``
    (uint8) of the follower, ``episode``; the steps of an episode follow one another, STOP is its last.
    """
    folder = Path(config.demos_dir) if config.demos_dir else run.dir / "demos"
    episodes = episodes_of(config, "train", run.console)
    facts = {
        "version": VERSION,
        "seed": seed_of(config),
        "pixels": config.pixels,
        "scenes": json.loads(json.dumps(asdict(config.scenes))),
        "rules": asdict(config.rules),
    }
    facts["noise"] = config.demo_noise
    if config.sensors != EXACT:  # recordings of an older version say nothing of sensors, and had these
        facts["sensors"] = asdict(config.sensors)
    facts["fields"] = kept = [*pictures_of(config), "gps", "compass"]
    recording = Recording(folder, facts)
    there = set(recording.numbers)
    count = min(config.demo_episodes or len(episodes), len(episodes))
    wanted = [number * len(episodes) // count for number in range(count)]  # of all plans alike
    left = torch.tensor([number for number in wanted if number not in there], dtype=torch.int64)
    run.console.note(f"{count - len(left):,} of {count:,} episodes are recorded in {folder}")
    if len(left):
        _walk(config, episodes, left, kept, recording)
    return recording.pack()


def _walk(config: Config, episodes: Episodes, left: Tensor, kept: list[str], recording: Recording) -> None:
    """Walks the episodes `left`, each to its end; what the follower would do is recorded, whatever is done."""
    rows = min(ROWS, len(left))
    words = {"in_turns": True, "order": left, "seed": recording.facts["seed"], "sensors": config.sensors}
    env = SketchNavEnv(rows, episodes, config.rules, pixels=config.pixels, **words)
    live: list[list[dict[str, Tensor]]] = [[] for _ in range(rows)]
    waiting, done, obs = set(left.tolist()), 0, env.observe()
    with count_shown("recording", len(left), "episodes") as tell:
        while waiting:
            action = env.expert()
            taken = _disturbed(action, env, recording.facts["noise"], recording.facts["seed"])
            for row in range(rows):
                seen = {name: obs[name][row].clone() for name in kept}
                live[row].append({**seen, "action": action[row].to(torch.uint8)})
            numbers = obs["episode"].tolist()
            step = env.step(taken)
            for row in step.ended.nonzero()[:, 0].tolist():
                if numbers[row] in waiting:
                    fields = {name: torch.stack([each[name] for each in live[row]]) for name in live[row][0]}
                    recording.add(numbers[row], fields)
                    waiting.remove(numbers[row])
                    done += 1
                    tell(done)
                live[row] = []
            obs = step.obs


def _disturbed(action: Tensor, env: SketchNavEnv, share: float, seed: int) -> Tensor:
    """Actions (N,), a `share` of them replaced by a random move; STOP stays.

    From where a mistake leads, the follower shows the way back, which an undisturbed one never does. Source: Laskey et
    al. 2017. Drawn by episode and step: a recording that is gone on with is the same.
    """
    if share <= 0:
        return action
    taken = action.clone()
    for row, (episode, made) in enumerate(zip(env.agents.episode.tolist(), env.agents.made.tolist(), strict=True)):
        rng = np.random.default_rng([seed, episode, made])
        if taken[row] != STOP and rng.random() < share:
            taken[row] = int(rng.integers(FORWARD, NUM_ACTIONS))
    return taken
