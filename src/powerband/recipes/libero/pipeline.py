"""Stage pipeline of libero: records demonstrations, trains on them, and evaluates the policy with a video."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from powerband.core.run.run import Run
from powerband.core.run.stage_sequence import StageCommand, continue_command, run_stages, write_shared_settings
from powerband.recipes.libero.config import Config


def pipeline(config: Config, run: Run) -> dict[str, Any]:
    """Runs the stages demos and train and then ``powerband eval``, each unless it is complete with the same tasks.

    The stage demos is left out if the option ``data`` names the demonstrations.

    Returns:
        A dict: ``done``, the names of the stages that ran; and ``project``, the project folder.

    Raises:
        ConfigError: A stage failed; its own message is printed before.
    """
    project, settings = Path(config.project), write_shared_settings(config, run)
    demos = f"demos_dir={config.demos_dir or project / 'demos'}"
    shared = ("--config", str(settings), demos)
    stages = ("train",) if config.data else ("demos", "train")
    chosen = {"benchmark": config.benchmark, "tasks": list(config.tasks), "data": config.data}
    commands = [StageCommand(stage, ("train", "libero", stage, *shared), chosen) for stage in stages]
    commands.append(StageCommand("evaluate", ("eval", str(project / "runs" / "train"))))
    done = run_stages(run, commands, project, continue_command("libero", settings, project))
    return {"done": done, "project": str(project)}
