"""Stages student and student_finetune: train SAC with the collective network, which is distilled from all experts.

In both, the collective policy can act in a share of the training episodes (``student.guide_share``).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import nn

from powerband.algos.sac import SAC
from powerband.algos.settings import SACConfig
from powerband.core.run.run import Run
from powerband.data.types import EnvSpec, VecEnv
from powerband.recipes.metaworld.algos.expert import load_sac_tensors, sac_tensors
from powerband.recipes.metaworld.algos.student import StudentLearner, observed_keys
from powerband.recipes.metaworld.config import Config
from powerband.recipes.metaworld.env.encoded import EncodedVecEnv
from powerband.recipes.metaworld.nets.collective import CollectiveActorCritic
from powerband.recipes.metaworld.policies import encoded_env
from powerband.recipes.metaworld.project_folder import load_encoder_and_collective
from powerband.recipes.metaworld.stages.demonstrations import Demonstrations, collective_demonstrator
from powerband.recipes.metaworld.stages.online import save_result, train_online
from powerband.recipes.metaworld.stages.rank_setup import make_training_env, scaled_sac_settings


def student(config: Config, run: Run) -> dict[str, Any]:
    """Trains SAC with a reward bonus for actions of the collective policy, which is distilled from all experts.

    Returns:
        Success rate and mean return of the final evaluation, as `GoalEvaluator.final` returns them; empty if a signal
        ended the run.
    """
    return _train(config, run, finetune=False)


def student_finetune(config: Config, run: Run) -> dict[str, Any]:
    """Trains SAC from the weights of the collective network, which is distilled from all experts.

    Returns:
        Success rate and mean return of the final evaluation, as `GoalEvaluator.final` returns them; empty if a signal
        ended the run.
    """
    return _train(config, run, finetune=True)


def _train(config: Config, run: Run, finetune: bool) -> dict[str, Any]:
    encoder, collective = load_encoder_and_collective(config, run.device)

    own = config.student
    keys = ("z", "s") if finetune else observed_keys(own)

    def encoded(env: VecEnv) -> EncodedVecEnv:
        return encoded_env(env, encoder, keys)

    env = encoded(make_training_env(config, run))
    try:
        settings = scaled_sac_settings(config, run)
        guide = None
        if own.guide_share:
            demonstrator = collective_demonstrator(collective, env)
            guide = Demonstrations(
                run, env, demonstrator, own.guide_share, own.guide_noise, own.guide_handover, config.horizon
            )
        learner: SAC | StudentLearner
        if finetune:
            learner = finetuned_sac(collective, env.spec, settings, run)
            final = train_online(config, run, env, learner, guide, wrap_env=encoded, open_evaluator="")
        else:
            learner = StudentLearner(own, collective, env.spec, settings, run.context)
            final = train_online(config, run, env, learner, guide, actor=learner.sac)
    finally:
        env.close()
    if final is None:
        return {}
    save_result(config, run, "students", learner.policy_state(), final)
    return final


def finetuned_sac(collective: CollectiveActorCritic, spec: EnvSpec, settings: SACConfig, run: Run) -> SAC:
    """Builds SAC with the weights of the collective network; the target critics start as copies of the critics.

    Args:
        collective: The collective network; its layer widths replace ``settings.hidden``.
        spec: Observation and action spaces of the environments.
        settings: Hyper-parameters of SAC.
        run: The run, which provides device, precision and random numbers.
    """
    widths = tuple(layer.out_features for layer in collective.actor.hidden if isinstance(layer, nn.Linear))
    # The collective network has its own widths and no layer norms, and learned from observations that are not scaled.
    sac = SAC(spec, replace(settings, hidden=widths, layer_norm=False, obs_scale=1.0), run.context)
    tensors = sac_tensors(sac)
    for part, net in (("actor", collective.actor), ("critic", collective.critic)):
        tensors |= {f"{part}.{name}": tensor for name, tensor in net.state_dict().items()}
    tensors |= {f"target_{name}": tensor for name, tensor in tensors.items() if name.startswith("critic.")}
    load_sac_tensors(sac, tensors)
    return sac
