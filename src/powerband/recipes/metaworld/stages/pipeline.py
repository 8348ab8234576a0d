"""Stage pipeline: runs all stages in order, each as a command in a separate process."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from powerband.core.config import to_json
from powerband.core.errors import ConfigError
from powerband.core.run.run import Run
from powerband.recipes.metaworld.config import Config
from powerband.recipes.metaworld.project_folder import stage_command


def pipeline(config: Config, run: Run) -> dict[str, Any]:
    """Runs all stages that are not complete yet.

    Returns:
        A dict: ``done``, the names of the stages that ran, such as "expert-reach"; and ``project``, the project folder.

    Raises:
        ConfigError: A stage failed; its own message is printed before.
    """
    steps = [("expert", task) for task in config.tasks] + [("online_distill", task) for task in config.tasks]
    steps += [("represent", ""), ("distill", ""), ("evaluate", ""), ("student", config.tasks[0])]
    project = Path(config.project)
    project.mkdir(parents=True, exist_ok=True)
    settings = run.dir / "pipeline.yaml"
    shared = json.loads(to_json(replace(config, run=replace(config.run, env_steps=0, run_dir="", resume=""))))
    settings.write_text(json.dumps(shared, indent=1), encoding="utf-8")  # JSON is YAML
    done = []
    for number, (stage, task) in enumerate(steps, start=1):
        name = "-".join(filter(None, (stage, task)))
        folder, mark = project / "runs" / name, project / "runs" / f"{name}.done"
        run.console.note(f"stage {number} of {len(steps)}: {name}" + (" is done already" if mark.exists() else ""))
        if mark.exists():
            continue
        arguments = ["train", "metaworld", stage, "--config", str(settings)]
        arguments += [f"run_dir={folder}", f"project={project}", *([f"task={task}"] if task else [])]
        if (folder / "checkpoints").exists():
            arguments = ["train", "metaworld", stage, f"resume={folder}"]
        elif folder.exists():  # the stage ended before its first checkpoint: keep its log
            attempts = len(list(folder.parent.glob(f"{name}-ended-*")))
            folder.rename(folder.parent / f"{name}-ended-{attempts + 1}")
        status = subprocess.run([sys.executable, "-m", "powerband", *arguments]).returncode
        if status or run.received_signal:
            raise ConfigError(
                f"Stage {name} ended with status {status}; the reason is printed above. Complete stages are kept: "
                f"write {stage_command(config, 'pipeline')} again to continue."
            )
        mark.write_text("")
        done.append(name)
    return {"done": done, "project": str(project)}
