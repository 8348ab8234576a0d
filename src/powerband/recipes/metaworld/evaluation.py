"""Evaluates policies on the 50 goals of a Meta-World task; prints tables of success rates and records videos."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from powerband.core.errors import ConfigError
from powerband.core.evaluation_context import evaluation_context
from powerband.core.run.run import Run
from powerband.core.run_folder import find_run
from powerband.core.telemetry.console import count_progress_bar
from powerband.data.types import VecEnv
from powerband.loops.evaluate import Policy, evaluate, mean_interval, wilson_interval
from powerband.recipes.metaworld.config import Config, Evaluation
from powerband.recipes.metaworld.env.gymnasium_env import GOAL_SEED, MetaWorldEnv
from powerband.recipes.metaworld.env.tasks import GOALS, TASK_SETS, expand_task
from powerband.recipes.metaworld.env.vec_env import make_metaworld_vec_env
from powerband.recipes.metaworld.policies import greedy_policy, load_run_policy, random_policy, scripted_policies
from powerband.report.evaluation_table import result_path, write_table

EVAL_ENVS = 10
"""Number of environments that evaluate one task; each plays every tenth of the 50 goals."""
EVAL_SEED = 10_000
"""Seed of the environments of evaluations during training; ``powerband eval`` uses another."""


class GoalEvaluator:
    """Evaluates policies on the 50 goals of a Meta-World task, with environments of the metaworld package.

    A goal is one of 50 fixed sets of positions of the target and the objects. The environments are created at the first
    evaluation, and later evaluations use them again. Use this class as a context manager, which closes them.

    Args:
        config: Determines the task and the length of an episode.
        wrap_env: Function that wraps the environments, for a policy that needs more than the plain observation; None
            does not wrap them.
        workers: Worker processes of the environments; -1 starts one per core, 0 steps in this process.
        seed: Seed of the environments.
        goal_seed: Seed of the 50 goals. Evaluations during training use other goals than reported results.
    """

    def __init__(
        self,
        config: Config,
        wrap_env: Callable[[VecEnv], VecEnv] | None = None,
        workers: int = 0,
        seed: int = EVAL_SEED,
        goal_seed: int = GOAL_SEED,
    ) -> None:
        self.config, self.wrap_env, self.workers, self.seed = config, wrap_env, workers, seed
        self.goal_seed = goal_seed
        self.env: VecEnv | None = None

    def __enter__(self) -> GoalEvaluator:
        return self

    def __exit__(self, *_: object) -> None:
        if self.env is not None:
            self.env.close()

    def play(self, policy: Policy, episodes: int, label: str = "") -> dict[str, Tensor]:
        """Plays episodes. The cycle of goals continues from call to call.

        Args:
            policy: Policy that acts, without exploration.
            episodes: Number of episodes; it is rounded up to a multiple of the number of environments.
            label: Label of a progress bar; empty shows none.

        Returns:
            Name -> tensor (episodes,): ``success`` (0 or 1), ``return`` (sum of rewards), ``length`` in steps, and
            ``env``, the index of the environment that played the episode.
        """
        if self.env is None:
            tasks = len(expand_task(self.config.task))
            num_envs = tasks if tasks > 1 else min(EVAL_ENVS, episodes)
            simulated = self.config.simulated_tasks()
            env = make_metaworld_vec_env(simulated, num_envs, self.workers, cycle_goals=True, goal_seed=self.goal_seed)
            self.env = env if self.wrap_env is None else self.wrap_env(env)
        with count_progress_bar(label, episodes, "episodes") as on_progress:
            return evaluate(self.env, policy, episodes, self.seed, on_progress=on_progress)

    def figures(self, policy: Policy, episodes: int) -> dict[str, float]:
        """Computes the success rate of a policy over `episodes` episodes, spread evenly over all tasks.

        Returns:
            Success rate, mean return and number of episodes, as `summary` returns them.
        """
        return summary(self.play(policy, episodes), GOALS * len(expand_task(self.config.task)))

    def by_task(self, policy: Policy, episodes: int, label: str) -> list[dict[str, Any]]:
        """Computes the success rate of a policy for each task, over `episodes` episodes of each.

        Every call begins with the first goal. A progress bar shows `label`.

        Returns:
            One dict per task: ``task``, the name of the task, and the entries that `summary` returns.
        """
        tasks = expand_task(self.config.task)
        played = self.play(policy, episodes * len(tasks), label)
        assert self.env is not None
        place = played["env"] // (self.env.num_envs // len(tasks))
        if episodes % GOALS:  # the next call would continue the cycle of goals
            self.env.close()
            self.env = None
        return [
            {"task": task, **summary({name: values[place == index] for name, values in played.items()}, GOALS)}
            for index, task in enumerate(tasks)
        ]

    def final(self, run: Run, policy: Policy, episodes: int) -> dict[str, float]:
        """Evaluates a policy at the end of a stage, prints the result, and writes ``final.json`` to the run folder.

        Only the first rank (process of the run) plays; the other ranks wait for it.

        Args:
            run: The run that ends.
            policy: Policy that acts, without exploration.
            episodes: Number of episodes; 0 evaluates nothing.

        Returns:
            Success rate, mean return and number of episodes, as `summary` returns them. Empty on other ranks than the
            first, and if `episodes` is 0.
        """
        if not run.ranks.leads or not episodes:
            run.ranks.barrier()
            return {}
        figures = self.figures(policy, episodes)
        (run.dir / "final.json").write_text(json.dumps({**figures, "env_steps": run.env_steps}, indent=2))
        low, high = figures["success_low"], figures["success_high"]
        run.console.note(
            f"{self.config.task}: success in {figures['success']:.0%} of {figures['episodes']} episodes on the 50 "
            f"goals (95 % interval {low:.0%} to {high:.0%}), mean return {figures['return']:,.0f}"
        )
        run.ranks.barrier()
        return figures


def summary(played: dict[str, Tensor], goals: int) -> dict[str, float]:
    """Computes the success rate with its 95 % interval, the mean return, and the number of episodes.

    A deterministic policy repeats an episode exactly if it plays a goal again. The interval is therefore that of one
    episode per goal if there are more episodes than goals.

    Args:
        played: Results of `GoalEvaluator.play`, among them ``success`` and ``return`` (episodes,).
        goals: Number of goals over all tasks.

    Returns:
        A dict: ``success``, the rate in 0..1; ``success_low`` and ``success_high``, the ends of its interval;
        ``return``, the mean sum of rewards of an episode; and ``episodes``, their number.
    """
    successes, trials = float(played["success"].sum()), len(played["success"])
    different = min(trials, goals)
    low, high = wilson_interval(successes / trials * different, different)
    mean, _, _ = mean_interval(played["return"])
    return {"success": successes / trials, "success_low": low, "success_high": high, "return": mean, "episodes": trials}


def interval_text(row: dict[str, Any]) -> str:
    """Formats a success rate with its 95 % interval, such as ``80% [71%, 87%]``.

    Args:
        row: Dict with the entries of `summary`, among them ``success``, ``success_low`` and ``success_high``.
    """
    return f"{row['success']:.0%} [{row['success_low']:.0%}, {row['success_high']:.0%}]"


def format_table(rows: list[dict[str, Any]]) -> str:
    """Formats success rates as a text table with one line per task and one column per policy.

    Args:
        rows: One dict per task and policy: ``task`` and ``policy``, their names, and the entries of `summary`.
    """
    policies = list(dict.fromkeys(row["policy"] for row in rows))
    lines = [f"{'task':<22}" + "".join(f"{name:>22}" for name in policies)]
    for task in dict.fromkeys(row["task"] for row in rows):
        own = {row["policy"]: row for row in rows if row["task"] == task}
        cells = [interval_text(own[name]) if name in own else "-" for name in policies]
        lines.append(f"{task:<22}" + "".join(f"{cell:>22}" for cell in cells))
    return "\n".join(lines)


def evaluate_run(config: Config, folder: Path, options: Evaluation) -> list[dict[str, Any]]:
    """Evaluates the policy of a run on the 50 goals, with a video and an image of each task.

    Args:
        config: Configuration of the run.
        folder: The run folder or one of its checkpoints. For a run folder, the exported policy is evaluated if there is
            one, else the newest checkpoint.
        options: Options of ``powerband eval``.

    Returns:
        One dict per policy and task: ``task`` and ``policy``, their names, the entries of `summary` and, if a video was
        recorded, its path ``video``. The list is also written to ``eval-goals.json`` in `folder`, with the options.

    Raises:
        ConfigError: The run is of another stage than expert and student.
    """
    run = find_run(str(folder))
    stage = json.loads((run / "run.json").read_text(encoding="utf-8"))["stage"]
    if stage not in ("expert", "student"):
        raise ConfigError(
            f"{folder} is a run of the stage {stage}; powerband eval supports the stages expert and student. Write "
            f"powerband train metaworld evaluate project={config.project} to evaluate all policies of the folder."
        )
    context = evaluation_context(options.gpus, options.precision)
    sac = load_run_policy(config, folder, run, stage, context)
    policies: dict[str, Callable[[], Policy]] = {
        "policy": lambda: greedy_policy(sac, context.device),
        "random": lambda: random_policy(options.seed),
        "scripted": lambda: scripted_policies(config.task),
    }
    rows = []
    with GoalEvaluator(config, None, options.workers, options.seed) as evaluator:
        for name in dict.fromkeys(options.policies):
            label = stage if name == "policy" else name
            own = [{**row, "policy": label} for row in evaluator.by_task(policies[name](), options.episodes, label)]
            means = (sum(row[figure] for row in own) / len(own) for figure in ("success", "return"))
            print("{}: success in {:.1%} of episodes on average, mean return {:,.0f}".format(label, *means), flush=True)
            rows += own
    print(format_table(rows))
    for row in rows:
        if options.video and row["policy"] == stage:
            row["video"] = str(record_video(config, row["task"], policies["policy"](), folder, options.size))
            print(f"video: {row['video']}")
    return write_table(folder, "goals", options, rows)


def record_video(config: Config, task: str, policy: Policy, folder: Path, size: int) -> Path:
    """Records a video of one episode with Meta-World's renderer.

    Args:
        config: Determines the length of an episode and the reward version.
        task: Name of the task.
        policy: Policy that acts, without exploration.
        folder: Folder for ``videos/<task>.mp4`` and for ``<task>.png``, the last frame.
        size: Width and height of a frame in pixels.

    Returns:
        Path of the video.
    """
    from powerband.report.media_files import save_image, write_video

    coded = TASK_SETS.get(config.task)
    code = (coded.index(task), len(coded)) if coded else None
    env = MetaWorldEnv(
        task, config.horizon, "cycled", one_hot=code, render_size=size, reward_version=config.reward_version
    )
    frames = []
    try:
        obs, _ = env.reset()
        for step in range(config.horizon):
            action, _ = policy(torch.from_numpy(obs).float().unsqueeze(0), None)
            obs, _, _, truncated, info = env.step(action[0].numpy())
            if step % 2 == 0:
                frames.append(env.render())
            if truncated or (info["success"] and len(frames) > 60):
                break
    finally:
        env.close()
    save_image(result_path(folder, f"{task}.png"), frames[-1])
    return write_video(frames, result_path(folder, f"videos/{task}.mp4"), fps=20)
