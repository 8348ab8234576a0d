"""Stage expert: trains SAC on one task, or on the tasks of MT10 or MT50 at once."""

from __future__ import annotations

import json
from typing import Any

from powerband.algos.sac import SAC
from powerband.core.run.hooks import RunHooks
from powerband.core.run.run import Run
from powerband.data.replay import Replay
from powerband.data.types import Step
from powerband.loops.off_policy import off_policy
from powerband.recipes.metaworld.algos.expert import sac_tensors
from powerband.recipes.metaworld.config import Config
from powerband.recipes.metaworld.env.gymnasium_env import VALIDATION_GOAL_SEED
from powerband.recipes.metaworld.env.tasks import TASK_SETS
from powerband.recipes.metaworld.evaluation import GoalEvaluator
from powerband.recipes.metaworld.policies import greedy_policy
from powerband.recipes.metaworld.project_folder import save_policy, stage_folder
from powerband.recipes.metaworld.stages.demonstrations import Demonstrations
from powerband.recipes.metaworld.stages.rank_setup import make_training_env, scaled_sac_settings
from powerband.recipes.metaworld.transitions.sampler import TransitionSampler, add_labels, write_transitions


def expert(config: Config, run: Run) -> dict[str, Any]:
    """Trains an expert and evaluates it, and saves transitions of the training, labelled by the trained expert.

    Returns:
        Success rate and mean return of the final evaluation, as `GoalEvaluator.final` returns them; empty if a signal
        ended the run.
    """
    env = make_training_env(config, run)
    try:
        settings = scaled_sac_settings(config, run)
        learner = SAC(env.spec, settings, run.context)
        sampler = TransitionSampler(run, config, env.num_envs)
        run.register("collector", sampler, redistribute=sampler.redistribute)
        demonstrations = Demonstrations(config, run, env) if config.demo_share else None

        def after_step(step: Step, replay: Replay) -> None:
            if demonstrations is not None:
                demonstrations.after_step(step)
            sampler.after_step(step, replay)

        with (
            GoalEvaluator(config, goal_seed=VALIDATION_GOAL_SEED) as validation,
            GoalEvaluator(config) as evaluator,
        ):
            hooks = RunHooks(
                lambda: validation.figures(greedy_policy(learner, run.device), config.eval_episodes),
                "powerband.recipes.metaworld.stages.evaluator:open_evaluator",
            )
            off_policy(
                run,
                env,
                learner,
                config.off_policy,
                after_step=after_step,
                hooks=hooks,
                replace_actions=None if demonstrations is None else demonstrations.replace,
            )
            if run.received_signal:
                return {}
            run.export_policy(learner.policy_state())
            final = evaluator.final(run, greedy_policy(learner, run.device), config.final_episodes)
    finally:
        env.close()
    folder = stage_folder(config, "experts", config.task)
    if run.ranks.leads:
        save_policy(folder, config, sac_tensors(learner))
        (folder / "evaluation.json").write_text(json.dumps({**final, "env_steps": run.env_steps}, indent=2))
    if sampler.chunks and config.task not in TASK_SETS:
        labelled = add_labels(sampler.rows(), learner)
        write_transitions(config, run, "experts", labelled, "expert", config.sac.gamma)
    return final
