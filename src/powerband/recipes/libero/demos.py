"""Stage demos of libero: records scripted demonstrators in the simulator, and keeps the episodes that succeed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from powerband.core.errors import ConfigError
from powerband.core.ranks.ranks import refuse_several
from powerband.core.run.run import Run
from powerband.core.telemetry.console import count_progress_bar
from powerband.data.recorded.recording import Recording
from powerband.data.recorded.shards import read_manifest, read_shards
from powerband.envs.workers.seeds import episode_seed
from powerband.envs.workers.supervision import Supervision
from powerband.recipes.libero.config import Config
from powerband.recipes.libero.env.gymnasium_env import CAMERAS, HZ
from powerband.recipes.libero.env.scripted_policy import ScriptedDemonstrator, task_script
from powerband.recipes.libero.env.tasks import LiberoNotInstalled, LiberoTask
from powerband.recipes.libero.env.vec_env import make_libero_vec_env, num_simulators

VERSION = 2
MAX_FAILURES_PER_SUCCESS = 5
"""Failed episodes of a task per successful one above which recording stops."""
START_S = 900.0
"""Seconds after which a simulator that has not answered is restarted. Its first start simplifies the meshes, which
takes minutes on a busy machine."""
STATE_FIELDS = ("joints", "gripper", "eef_pos", "eef_quat")
POLICY_FIELDS = ("eef_pos", "eef_quat", "poses", "rotations", "goals_met")
"""Observations that the scripted demonstrator uses."""


def demos(config: Config, run: Run) -> None:
    """Records demonstrations of every task of the configuration, one folder per task.

    Raises:
        ConfigError: ``demo_episodes`` is 0, which means all episodes of a recording that exists.
    """
    refuse_several(run.ranks, "demos")
    if not config.demo_episodes:
        raise ConfigError("demo_episodes=0 records nothing in the stage demos. Write demo_episodes=1 or more.")
    _record_tasks(config, run, config.selected_tasks())


def record_missing(config: Config, run: Run) -> None:
    """Records the tasks of the configuration that have no finished recording, as the stage demos does.

    It records none if the folder has recordings of other tasks only, which are then the training data. Nor does it if
    the folder has recordings and LIBERO is not installed.
    """
    folder = demos_folder(config, run.dir)
    recorded = {path.parent.name for path in folder.glob("*/manifest.json")}
    try:
        tasks = config.selected_tasks()
    except LiberoNotInstalled:
        if recorded:
            return
        raise
    missing = [task for task in tasks if task.key not in recorded]
    if missing and (not recorded or any((folder / task.key).exists() for task in tasks)):
        run.console.note(
            f"{folder} lacks demonstrations of {len(missing)} of {len(tasks)} task(s). They are recorded first "
            f"(record_missing=true)."
        )
        _record_tasks(config, run, missing)


def _record_tasks(config: Config, run: Run, tasks: Iterable[LiberoTask]) -> None:
    for task in tasks:
        folder = record(config, task, demos_folder(config, run.dir), run.console.note, lambda: run.received_signal)
        if run.received_signal:
            return
        run.console.note(f"{task.instruction}: the recording is finished, in {folder}")


def demos_folder(config: Config, run_dir: Path) -> Path:
    """Returns the folder of the recordings, ``demos_dir`` or ``demos`` in `run_dir`; it has one sub-folder per task."""
    return Path(config.demos_dir) if config.demos_dir else run_dir / "demos"


def record(
    config: Config,
    task: LiberoTask,
    parent: Path,
    note: Callable[[str], object] = print,
    received_signal: Callable[[], str] = lambda: "",
) -> Path:
    """Records episodes of `task` until `demo_episodes` have succeeded, and packs the successful ones into shards.

    A finished recording with the same settings is kept unchanged. Fields of a recorded step: ``agentview`` and
    ``wrist`` (pixels, pixels, 3) uint8; ``joints``, ``gripper``, ``eef_pos`` and ``eef_quat`` as in the observations of
    `LiberoEnv`; ``action`` (7,); ``start`` int64, the seed of the episode.

    Args:
        config: Configuration of the run.
        task: Task to demonstrate.
        parent: Folder in which the folder of the task lies.
        note: Prints a message for the user.
        received_signal: Returns the name of a signal that ends the recording before its next step, or "". The finished
            episodes stay, and the next call continues.

    Returns:
        The folder of the task.

    Raises:
        ConfigError: The task has no script, the script rarely succeeds, or the folder holds a finished recording with
            other settings.
        ShardError: The folder holds data that is not this recording.
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
        stored = read_manifest(folder)["facts"]
        if stored == facts:
            count = len(read_shards(folder, ["episode"], verify=False)["episode"].unique())
            if count < config.demo_episodes:
                note(
                    f"{folder} has {count} episodes, and demo_episodes={config.demo_episodes} asks for more. A "
                    f"finished recording stays as it is: name another folder with demos_dir=."
                )
            return folder
        raise ConfigError(
            f"{folder} was recorded with other settings ({_difference(stored, facts)}). Write the same settings, or "
            f"name another folder with demos_dir=."
        )
    recording = Recording(folder, facts)
    missing = config.demo_episodes - len(recording.numbers)
    note(f"{task.instruction}: {len(recording.numbers)} of {config.demo_episodes} episodes are in {folder}")
    if missing > 0 and config.quality == "coarse":
        note("The first start of a scene on a machine simplifies its meshes, which takes up to a minute of one core.")
    if missing > 0:
        session = _DemonstrationSession(config, task, recording, missing, note)
        try:
            session.play(received_signal)
        finally:
            session.close()
        note(f"{task.instruction}: the script solved {session.summary}")
        if signal := received_signal():
            note(f"{signal} ended the recording. The same command continues it.")
            return folder
    return recording.pack()


def _difference(stored: dict[str, Any], current: dict[str, Any]) -> str:
    names = (name for name in current if stored.get(name) != current[name])
    return ", ".join(f"{name} {stored.get(name)}, here {current[name]}" for name in names)


class _DemonstrationSession:
    """Scripted demonstrators that play episodes of one task in parallel, and the recording of those that succeed.

    Args:
        config: Configuration of the run.
        task: Task to demonstrate.
        recording: Recording that the episodes are added to.
        count: Number of successful episodes to record.
        note: Prints a message for the user.
    """

    def __init__(
        self, config: Config, task: LiberoTask, recording: Recording, count: int, note: Callable[[str], object]
    ) -> None:
        self.config, self.task, self.recording, self.count = config, task, recording, count
        places, script = task_script(task)
        self.first = max(recording.numbers, default=-1) + 1  # above all numbers, because one may have been removed
        self.seed = config.run.seed + 7919 * self.first  # a resumed recording starts from other states than before
        rows = min(num_simulators(config.num_workers), count)
        kwargs: dict[str, Any] = {"benchmark": task.benchmark, "task": str(task.index), "chunk": 1, "frames": 1}
        kwargs |= {"poses": places, "pixels": config.pixels, "quality": config.quality, "max_steps": config.max_steps}
        self.env = make_libero_vec_env(
            [kwargs] * rows,
            config.num_workers,
            seed=self.seed,
            supervision=Supervision(deadline_s=START_S),
            on_failure=lambda failure: note(str(failure)),
        )
        self.demonstrators = [
            ScriptedDemonstrator(script, np.random.default_rng([self.seed, row])) for row in range(rows)
        ]
        self.solved = self.failed = 0
        self.episodes = [0] * rows
        self.steps: list[list[dict[str, Tensor]]] = [[] for _ in range(rows)]

    @property
    def summary(self) -> str:
        """Text with the number of successful episodes among all played, such as ``3 of 4 episodes``."""
        return f"{self.solved} of {self.solved + self.failed} episodes"

    def play(self, received_signal: Callable[[], str]) -> None:
        """Plays and records until `count` episodes have succeeded, or until `received_signal` returns a name.

        Raises:
            ConfigError: More than `MAX_FAILURES_PER_SUCCESS` episodes failed per successful one.
        """
        rows = len(self.demonstrators)
        noise = np.random.default_rng([self.seed, rows])
        obs = self.env.reset(self.seed)
        with count_progress_bar(f"recording {self.task.key}", self.count, "episodes") as on_progress:
            while self.solved < self.count and not received_signal():
                action = np.stack([self._action(obs, row) for row in range(rows)])
                for row in range(rows):
                    self.steps[row].append(_step_fields(obs, row, action[row]))
                executed = action.copy()
                executed[:, :6] += self.config.demo_noise * noise.standard_normal((rows, 6))
                step = self.env.step(torch.from_numpy(executed).unsqueeze(1))
                for row in step.ended.nonzero()[:, 0].tolist():
                    lost = step.lost is not None and bool(step.lost[row])
                    self._end_episode(row, success=bool(step.terminated[row]) and not lost)
                    on_progress(self.solved)
                if self.failed > MAX_FAILURES_PER_SUCCESS * (self.solved + 4):
                    raise ConfigError(
                        f"The script of {self.task.name} solved only {self.summary}. Raise max_steps (now "
                        f"{self.config.max_steps}), lower demo_noise (now {self.config.demo_noise:g}), or name another "
                        f"task."
                    )
                obs = step.obs

    def close(self) -> None:
        """Ends the simulators."""
        self.env.close()

    def _action(self, obs: dict[str, Tensor], row: int) -> np.ndarray:
        return self.demonstrators[row].act({name: obs[name][row].numpy() for name in POLICY_FIELDS})

    def _end_episode(self, row: int, success: bool) -> None:
        """Records the finished episode of environment `row` if it succeeded, and prepares for its next episode."""
        steps = self.steps[row]
        if success and self.solved < self.count:
            fields = {name: torch.stack([step[name] for step in steps]) for name in steps[0]}
            fields["start"] = torch.full((len(steps),), episode_seed(self.seed, row, self.episodes[row]))
            self.recording.add(self.first + self.solved, fields)
            self.solved += 1
        else:
            self.failed += 1
        self.steps[row] = []
        self.episodes[row] += 1
        self.demonstrators[row].reset(solved=success)


def _step_fields(obs: dict[str, Tensor], row: int, action: np.ndarray) -> dict[str, Tensor]:
    """Returns the fields of one recorded step: images and state of environment `row`, and its action (7,)."""
    images = {name: obs["images"][row, 0, camera].clone() for camera, name in enumerate(CAMERAS)}
    state = {name: obs[name][row].clone() for name in STATE_FIELDS}
    return {**images, **state, "action": torch.from_numpy(action)}
