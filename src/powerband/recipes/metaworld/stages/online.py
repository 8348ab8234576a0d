"""What the stages expert and student share: the training of SAC on one task, its evaluations, and what they save."""

from __future__ import annotations

import json
from collections.abc import Callable

from torch import Tensor

from powerband.core.run.hooks import RunHooks
from powerband.core.run.run import Run
from powerband.data.replay import Replay
from powerband.data.types import Learner, Step, VecEnv
from powerband.loops.off_policy import off_policy
from powerband.recipes.metaworld.config import Config
from powerband.recipes.metaworld.env.gymnasium_env import VALIDATION_GOAL_SEED
from powerband.recipes.metaworld.evaluation import GoalEvaluator
from powerband.recipes.metaworld.policies import greedy_policy
from powerband.recipes.metaworld.project_folder import save_policy, stage_folder
from powerband.recipes.metaworld.stages.demonstrations import Demonstrations

OPEN_EVALUATOR = "powerband.recipes.metaworld.stages.evaluator:open_evaluator"


def train_online(
    config: Config,
    run: Run,
    env: VecEnv,
    learner: Learner,
    demonstrations: Demonstrations | None,
    *,
    actor: Learner | None = None,
    wrap_env: Callable[[VecEnv], VecEnv] | None = None,
    open_evaluator: str = OPEN_EVALUATOR,
    after_step: Callable[[Step, Replay], object] | None = None,
) -> dict[str, float] | None:
    """Trains a learner on the environments of this rank, evaluates it, and exports its policy.

    Args:
        config: Configuration of the run.
        run: The run.
        env: Environments of this rank.
        learner: Learner to train.
        demonstrations: Who acts in place of the learner in a share of the episodes; None is nobody.
        actor: Learner that acts in evaluations; None is `learner`.
        wrap_env: Adds to the environments of evaluations what `actor` observes; None adds nothing.
        open_evaluator: Function that evaluates checkpoints in a process of its own, if the run asks for it; empty if
            the stage has none.
        after_step: Called after each step of the environments, in addition to that of `demonstrations`.

    Returns:
        Success rate and mean return of the final evaluation, as `GoalEvaluator.final` returns them; None if a signal
        ended the run.
    """
    acting = learner if actor is None else actor

    def after_each_step(step: Step, replay: Replay) -> None:
        if demonstrations is not None:
            demonstrations.after_step(step)
        if after_step is not None:
            after_step(step, replay)

    with (
        GoalEvaluator(config, wrap_env, goal_seed=VALIDATION_GOAL_SEED) as validation,
        GoalEvaluator(config, wrap_env) as evaluator,
    ):
        hooks = RunHooks(
            lambda: validation.figures(greedy_policy(acting, run.device), config.eval_episodes), open_evaluator
        )
        off_policy(
            run,
            env,
            learner,
            config.off_policy,
            after_step=after_each_step,
            hooks=hooks,
            replace_actions=None if demonstrations is None else demonstrations.replace,
        )
        if run.received_signal:
            return None
        run.export_policy(learner.policy_state())
        return evaluator.final(run, greedy_policy(acting, run.device), config.final_episodes)


def save_result(config: Config, run: Run, what: str, tensors: dict[str, Tensor], final: dict[str, float]) -> None:
    """Saves weights and the final evaluation in the project folder, on the first rank.

    Args:
        config: Names the project folder and the task.
        run: The run that ends.
        what: Kind of the policy: ``experts`` or ``students``.
        tensors: Weights to save.
        final: Result of `train_online`.
    """
    if run.ranks.leads:
        folder = stage_folder(config, what, config.task)
        save_policy(folder, config, tensors)
        (folder / "evaluation.json").write_text(json.dumps({**final, "env_steps": run.env_steps}, indent=2))
