"""Stage sequence: runs several commands of powerband one after the other, and continues with the first unfinished one.

Each command runs in a process of its own, with a run folder ``runs/<name>`` in the project folder. The file
``runs/<name>.done`` marks it as complete. A stage is repeated, with all later ones, if its settings have changed.
"""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from powerband.core.config import to_json
from powerband.core.errors import ConfigError
from powerband.core.machine.parent_death import signal_at_parent_death
from powerband.core.ranks.meeting import environment_without_launcher
from powerband.core.regular_files import read_object
from powerband.core.run.run import Run

POLL_S = 0.5
"""Seconds between two looks at the signals while a stage runs."""


@dataclass(frozen=True)
class StageCommand:
    """One command of a sequence.

    Attributes:
        name: Name of the stage and, if there is one, of its task, such as expert-reach.
        arguments: Command line after ``powerband``; without the run folder for ``train``.
        settings: Options without a section -> value, as in JSON: a run of the stage with other values is repeated.
    """

    name: str
    arguments: tuple[str, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)

    def for_folder(self, folder: Path) -> list[str]:
        """Returns the command line for a new run in `folder`, or to continue the run that is in it."""
        if self.arguments[0] != "train":
            return [*self.arguments]
        if any(path.name.isdigit() for path in (folder / "checkpoints").glob("*")):
            return [*self.arguments[:3], f"resume={folder}"]
        self.put_aside(folder)  # the stage ended before its first checkpoint: keep its log
        return [*self.arguments, f"run_dir={folder}"]

    def put_aside(self, folder: Path) -> None:
        """Renames the run folder `folder`, if it exists, so that the stage starts again and the run is kept."""
        if folder.exists():
            attempts = len(list(folder.parent.glob(f"{self.name}-ended-*")))
            folder.rename(folder.parent / f"{self.name}-ended-{attempts + 1}")

    def changed_setting(self, folder: Path) -> str:
        """Returns the name of a setting with another value in the run in `folder`; "" without such a run or setting."""
        if not self.settings or not (folder / "config.json").exists():
            return ""
        stored = read_object(folder / "config.json")
        return next((name for name, value in self.settings.items() if stored.get(name) != value), "")


def write_shared_settings(config: Any, run: Run) -> Path:
    """Writes `config`, without what belongs to the single run, to a file for ``--config`` of all stages."""
    path = run.dir / "pipeline.yaml"
    shared = json.loads(to_json(replace(config, run=replace(config.run, env_steps=0, run_dir="", resume=""))))
    path.write_text(json.dumps(shared, indent=1), encoding="utf-8")  # JSON is YAML
    return path


def continue_command(recipe: str, settings: Path, project: Path) -> str:
    """Returns the command line that continues the stage pipeline of `recipe` with the settings of the first start.

    Args:
        recipe: Name of the recipe.
        settings: File of `write_shared_settings`.
        project: The project folder.
    """
    return shlex.join(["powerband", "train", recipe, "pipeline", "--config", str(settings), f"project={project}"])


def run_stages(run: Run, commands: Sequence[StageCommand], project: Path, again: str) -> list[str]:
    """Runs all commands that are not complete yet, or are complete with other settings.

    Args:
        run: The run of the stage that starts the others.
        commands: The commands in their order.
        project: The project folder.
        again: Command line that continues the sequence, for the message.

    Returns:
        The names of the stages that ran to their end. A signal ends the stage that runs, and the sequence with it.

    Raises:
        ConfigError: A stage failed, and its own message is printed before; or this run has several ranks.
    """
    if run.ranks.world_size > 1:
        raise ConfigError(
            f"A pipeline starts each stage as a command of its own, and has {run.ranks.world_size} ranks here. Start "
            f"it with nproc=1, or start the stages one by one on several ranks."
        )
    done: list[str] = []
    (project / "runs").mkdir(parents=True, exist_ok=True)
    _put_changed_aside(run, commands, project / "runs")
    for number, command in enumerate(commands, start=1):
        folder, mark = project / "runs" / command.name, project / "runs" / f"{command.name}.done"
        already = " is done already" if mark.exists() else ""
        run.console.note(f"stage {number} of {len(commands)}: {command.name}{already}")
        if already:
            continue
        status = _run_command(command.for_folder(folder), run)
        if not status:
            mark.write_text("")
            done.append(command.name)
        if run.received_signal:
            run.stop(f"{run.received_signal} in stage {command.name}; write {again} again to continue")
            break
        if status:
            raise ConfigError(
                f"Stage {command.name} ended with status {status}; the reason is printed above. Complete stages are "
                f"kept: write {again} again to continue."
            )
    return done


def _put_changed_aside(run: Run, commands: Sequence[StageCommand], folder: Path) -> None:
    """Renames the run of the first stage whose settings have changed, and those of all later stages, which use it.

    Args:
        run: The run of the stage that starts the others.
        commands: The commands in their order.
        folder: Folder of the runs of all stages.
    """
    for number, command in enumerate(commands):
        if changed := command.changed_setting(folder / command.name):
            run.console.note(
                f"{command.name} and all later stages are repeated, because the option {changed} has changed. Their "
                f"earlier runs are kept as {folder}/NAME-ended-N."
            )
            for later in reversed(commands[number:]):  # a kill between two of them must leave the first change visible
                (folder / f"{later.name}.done").unlink(missing_ok=True)
                later.put_aside(folder / later.name)
            return


def _run_command(arguments: Sequence[str], run: Run) -> int:
    """Runs one command of powerband, passes on a signal to it, and returns its exit status."""
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "powerband", *arguments],
        env=environment_without_launcher(),  # its failure must not look like one of this run
        preexec_fn=partial(signal_at_parent_death, signal.SIGTERM),
    )
    forwarded = False
    while True:
        try:
            return child.wait(POLL_S)
        except subprocess.TimeoutExpired:
            if (
                run.received_signal and not forwarded
            ):  # Ctrl-C has reached it already, and a second one would stop its save
                forwarded = True
                if run.received_signal != signal.SIGINT.name:
                    child.send_signal(signal.Signals[run.received_signal])
