"""Demonstrations of LIBERO: what scripted demonstrators see and do in the simulator, kept where the task was solved."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from powerband.core.config import ConfigError
from powerband.core.console import count_shown
from powerband.data.recording import Recording
from powerband.data.shards import manifest_of
from powerband.envs.libero.env import libero_envs
from powerband.envs.libero.scripted import Demonstrator, script_of
from powerband.envs.libero.single import CAMERAS, HZ
from powerband.envs.libero.tasks import LiberoTask
from powerband.envs.seeds import episode_seed
from powerband.envs.supervision import Fault, Supervision

if TYPE_CHECKING:
    from powerband.core.run import Run
    from powerband.recipes.libero import Config

VERSION = 1
PATIENCE = 5
"""Episodes of one task that may fail for each that is wanted."""
SEEN = ("joints", "gripper", "eef_pos", "eef_quat")


def demos(config: Config, run: Run) -> None:
    """Records the scripted demonstrators on every task of the configuration, one folder a task."""
    for task in config.chosen():
        run.console.note(f"whole recording: {record(config, task, demos_folder(config, run.dir), run.console.note)}")


def demos_folder(config: Config, run_dir: Path) -> Path:
    """Where recordings lie: a folder a task in it."""
    return Path(config.demos_dir) if config.demos_dir else run_dir / "demos"


def record(config: Config, task: LiberoTask, parent: Path, note: Any = print) -> Path:
    """Records episodes of `task` until `demo_episodes` were solved, and packs them; returns the folder.

    Rows: ``agentview`` and ``wrist`` (pixels, pixels, 3) uint8, ``joints``, ``gripper``, ``eef_pos``, ``eef_quat`` as
    `LiberoEnv` gives them, ``action`` (7,), ``start`` (int64): the seed that the episode was reset with.

    Raises:
        ConfigError: There is no script for the task, or it hardly ever solves it.
        ShardError: The folder holds something else.
    """
    folder = parent / task.key
    facts = {
        "version": VERSION,
        "benchmark": task.benchmark,
        "task": task.name,
        "instruction": task.instruction,
        "hz": HZ,
        "image_size": config.pixels,
        "quality": config.quality,
        "cameras": list(CAMERAS),
        "noise": config.demo_noise,
        "seed": config.run.seed,
    }
    if (folder / "manifest.json").exists():
        there = manifest_of(folder)["facts"]
        if there == facts:
            return folder
        raise ConfigError(
            f"{folder} was recorded with other settings ({_difference(there, facts)}). Name another demos_dir."
        )
    recording = Recording(folder, facts)
    wanted = config.demo_episodes - len(recording.numbers)
    note(f"{task.instruction}: {len(recording.numbers)} of {config.demo_episodes} episodes are in {folder}")
    if wanted > 0:
        _perform(config, task, recording, wanted, note)
    return recording.pack()


def _difference(there: dict, here: dict) -> str:
    return ", ".join(f"{name} {there.get(name)}, here {here[name]}" for name in here if there.get(name) != here[name])


def _perform(config: Config, task: LiberoTask, recording: Recording, wanted: int, note: Any) -> None:
    """Solves `wanted` more episodes; those that fail are left out and counted."""
    places, waypoints = script_of(task)
    first = len(recording.numbers)
    seed = config.run.seed + 7919 * first  # one that is gone on with begins elsewhere than it did
    rows = min(config.rows(), wanted)
    words = {"benchmark": task.benchmark, "task": str(task.index), "chunk": 1, "frames": 1, "poses": places}
    words |= {"pixels": config.pixels, "quality": config.quality, "max_steps": config.max_steps}

    def tell(fault: Fault) -> None:
        note(str(fault))

    env = libero_envs([words] * rows, config.num_workers, seed=seed, supervision=Supervision(), tell=tell)
    people = [Demonstrator(waypoints, np.random.default_rng([seed, row])) for row in range(rows)]
    wobble = np.random.default_rng([seed, rows])
    live: list[list[dict[str, Tensor]]] = [[] for _ in range(rows)]
    solved, failed, episodes = 0, 0, [0] * rows
    try:
        obs = env.reset(seed)
        with count_shown(f"recording {task.key}", wanted, "episodes") as count:
            while solved < wanted:
                action = np.stack([person.act(_row(obs, row)) for row, person in enumerate(people)])
                for row in range(rows):
                    seen = {name: obs[name][row].clone() for name in SEEN}
                    frames = {name: obs["pictures"][row, 0, place].clone() for place, name in enumerate(CAMERAS)}
                    live[row].append({**frames, **seen, "action": torch.from_numpy(action[row])})
                taken = action.copy()
                taken[:, :6] += config.demo_noise * wobble.standard_normal((rows, 6))
                step = env.step(torch.from_numpy(taken).unsqueeze(1))
                for row in step.ended.nonzero()[:, 0].tolist():
                    whole = step.lost is None or not step.lost[row]
                    if whole and step.terminated[row] and solved < wanted:
                        start = torch.full((len(live[row]),), episode_seed(seed, row, episodes[row]))
                        fields = {name: torch.stack([each[name] for each in live[row]]) for name in live[row][0]}
                        recording.add(first + solved, {**fields, "start": start})
                        solved += 1
                        count(solved)
                    else:
                        failed += 1
                    live[row], episodes[row] = [], episodes[row] + 1
                    people[row].begin()
                if failed > PATIENCE * (solved + 4):
                    raise ConfigError(
                        f"the script of {task.name} solved {solved} of {solved + failed} episodes: too few. Raise "
                        f"max_steps (now {config.max_steps}), lower demo_noise (now {config.demo_noise:g}), or name "
                        f"another task."
                    )
                obs = step.obs
    finally:
        env.close()
    note(f"{task.instruction}: the script solved {solved} of {solved + failed} episodes")


def _row(obs: dict[str, Tensor], row: int) -> dict[str, np.ndarray]:
    return {name: obs[name][row].numpy() for name in ("eef_pos", "eef_quat", "poses")}
