"""The pipeline of metaworld: all stages in order, each a command of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from powerband.core.config import ConfigError, to_json
from powerband.core.run import Run
from powerband.recipes.metaworld import Config
from powerband.recipes.metaworld_project import command


def pipeline(config: Config, run: Run) -> dict:
    """All stages in order, each a command of its own; what is done already is not done again."""
    steps = [("expert", task) for task in config.tasks] + [("online_distill", task) for task in config.tasks]
    steps += [("represent", ""), ("distill", ""), ("evaluate", ""), ("student", config.tasks[0])]
    project = Path(config.project)
    project.mkdir(parents=True, exist_ok=True)
    settings = run.dir / "pipeline.yaml"
    kept = json.loads(to_json(replace(config, run=replace(config.run, env_steps=0, run_dir="", resume=""))))
    settings.write_text(json.dumps(kept, indent=1), encoding="utf-8")  # JSON is YAML
    done = []
    for number, (stage, task) in enumerate(steps, start=1):
        name = "-".join(filter(None, (stage, task)))
        folder, mark = project / "runs" / name, project / "runs" / f"{name}.done"
        run.console.note(f"stage {number} of {len(steps)}: {name}" + (" is done already" if mark.exists() else ""))
        if mark.exists():
            continue
        words = ["train", "metaworld", stage, "--config", str(settings), f"run_dir={folder}", f"project={project}"]
        words += [f"task={task}"] * bool(task)
        if (folder / "checkpoints").exists():
            words = ["train", "metaworld", stage, f"resume={folder}"]
        elif folder.exists():  # it ended before its first checkpoint: what it said stays beside the new attempt
            tries = len(list(folder.parent.glob(f"{name}-ended-*")))
            folder.rename(folder.parent / f"{name}-ended-{tries + 1}")
        status = subprocess.run([sys.executable, "-m", "powerband", *words]).returncode
        if status or run.signalled:
            raise ConfigError(
                f"stage {name} ended with status {status}; it says why above. What is done stays: "
                f"write {command(config, 'pipeline')} again to go on."
            )
        mark.write_text("")
        done.append(name)
    return {"done": done, "project": str(project)}
