"""Stage evaluate: tabulates success rates per task of the expert, the collective and the scripted policy.

The collective policy is distilled from all experts. The scripted policies are those of the metaworld package.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from powerband.core.errors import ConfigError
from powerband.core.run.run import Run
from powerband.recipes.metaworld.config import Config
from powerband.recipes.metaworld.evaluation import GoalEvaluator, format_table, interval_text
from powerband.recipes.metaworld.policies import collective_policy, greedy_policy, scripted_policies
from powerband.recipes.metaworld.project_folder import MissingStage, load_expert


def evaluate(config: Config, run: Run) -> dict[str, Any]:
    """Evaluates all policies in the folder ``config.project``, and writes ``evaluation.json`` there.

    Returns:
        {"rows": the list that `policy_rows` returns}; an empty dict on other ranks (processes) than the first, and if
        ``config.final_episodes`` is 0.
    """
    run.begin({"episodes": f"{config.final_episodes} per policy and task, cycling through the 50 goals"})
    if not run.ranks.leads:
        return {}
    if not config.final_episodes:
        run.console.note("final_episodes=0: no policy is evaluated.")
        return {}
    rows = policy_rows(config, run)
    (Path(config.project) / "evaluation.json").write_text(json.dumps(rows, indent=2))
    run.console.note(format_table(rows))
    return {"rows": rows}


def policy_rows(config: Config, run: Run) -> list[dict[str, Any]]:
    """Evaluates each policy on each task. A missing expert or collective network is left out, with a note.

    Returns:
        One dict per task and policy: ``task``, ``policy`` (expert, collective or scripted), and the success rate, mean
        return and number of episodes, as `evaluation.summary` returns them.

    Raises:
        ConfigError: The option ``tasks`` is empty.
    """
    rows = []
    for task in config.tasks:
        for name in ("expert", "collective", "scripted"):
            encoded = None
            try:
                if name == "expert":
                    policy = greedy_policy(load_expert(config, task))
                elif name == "collective":
                    policy, encoded = collective_policy(config)
                else:
                    policy = scripted_policies(task)
            except MissingStage as missing:
                run.console.note(str(missing))
                continue
            with GoalEvaluator(replace(config, task=task), encoded) as evaluator:
                rows.append({"task": task, "policy": name, **evaluator.figures(policy, config.final_episodes)})
            run.console.note(f"{task}, {name} policy: success {interval_text(rows[-1])} (95 % interval)")
    if not rows:
        raise ConfigError("The option tasks is empty. Name the tasks to evaluate, for example tasks=reach,door-open.")
    return rows
