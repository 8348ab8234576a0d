"""Stage expert: trains SAC on one task, or on the tasks of MT10 or MT50 at once."""

from __future__ import annotations

from typing import Any

from powerband.algos.sac import SAC
from powerband.core.run.run import Run
from powerband.recipes.metaworld.algos.expert import sac_tensors
from powerband.recipes.metaworld.config import Config
from powerband.recipes.metaworld.env.tasks import TASK_SETS
from powerband.recipes.metaworld.stages.demonstrations import Demonstrations, scripted_demonstrator
from powerband.recipes.metaworld.stages.online import save_result, train_online
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
        demonstrations = None
        if config.demo_share:
            demonstrations = Demonstrations(
                run,
                env,
                scripted_demonstrator(config, env.num_envs),
                config.demo_share,
                config.demo_noise,
                config.demo_handover,
                config.horizon,
            )

        final = train_online(config, run, env, learner, demonstrations, after_step=sampler.after_step)
    finally:
        env.close()
    if final is None:
        return {}
    save_result(config, run, "experts", sac_tensors(learner), final)
    if sampler.chunks and config.task not in TASK_SETS:
        labelled = add_labels(sampler.rows(), learner)
        write_transitions(config, run, "experts", labelled, "expert", config.sac.gamma)
    return final
