"""Stage pipeline: runs all stages in order, each as a command in a separate process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from powerband.core.run.run import Run
from powerband.core.run.stage_sequence import StageCommand, continue_command, run_stages, write_shared_settings
from powerband.recipes.metaworld.config import Config


def pipeline(config: Config, run: Run) -> dict[str, Any]:
    """Runs all stages that are not complete yet. With other tasks, the stages that use several tasks are repeated.

    Returns:
        A dict: ``done``, the names of the stages that ran, such as "expert-reach"; and ``project``, the project folder.

    Raises:
        ConfigError: A stage failed; its own message is printed before.
    """
    steps = [("expert", task) for task in config.tasks] + [("online_distill", task) for task in config.tasks]
    steps += [("represent", ""), ("distill", ""), ("evaluate", ""), ("student", config.tasks[0])]
    project, settings = Path(config.project), write_shared_settings(config, run)
    commands = []
    for stage, task in steps:
        own = [f"project={project}", *([f"task={task}"] if task else [])]
        name = "-".join(filter(None, (stage, task)))
        shared = {"tasks": list(config.tasks)} if stage == "represent" else {}  # the later stages use its encoder
        commands.append(StageCommand(name, ("train", "metaworld", stage, "--config", str(settings), *own), shared))
    done = run_stages(run, commands, project, continue_command("metaworld", settings, project))
    return {"done": done, "project": str(project)}
