"""On-policy loop: collect a rollout, compute returns, update in epochs of mini-batches. For PPO, COMA and MAPPO."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import cast

import torch

from powerband.core.run.hooks import RunHooks
from powerband.core.run.run import Run
from powerband.data.episode_tracker import EpisodeTracker
from powerband.data.rollout import Rollout, minibatches
from powerband.data.types import EpochLearner, OnPolicyLearner, ScheduledLearner, ValueLearner, VecEnv
from powerband.loops.config import OnPolicyConfig
from powerband.loops.support.changed_ranks import continue_episodes, register_episodes
from powerband.loops.support.collector import RolloutCollector
from powerband.loops.support.guarded_learner import GuardedLearner
from powerband.loops.support.loop_state import LoopState
from powerband.loops.support.returns import GaeReturns, ReturnsEstimator
from powerband.loops.support.reward_scale import RewardScale


def on_policy(
    run: Run,
    env: VecEnv,
    learner: OnPolicyLearner,
    config: OnPolicyConfig,
    after_update: Callable[[], None] | None = None,
    returns: ReturnsEstimator | None = None,
    hooks: RunHooks | None = None,
) -> None:
    """Trains `learner` on rollouts of `env` until the run's budget of environment steps or time is spent.

    Args:
        run: Run of this rank (process of the training), with device, counters, metrics and checkpoints.
        env: Environments of this rank.
        learner: Learner to train.
        config: Sizes over all ranks, and settings of the returns.
        after_update: Called after the updates of each rollout, for example for snapshots of self-play; None calls
            nothing.
        returns: Estimator of returns and advantages; None is generalised advantage estimation, for which `learner`
            must be a `ValueLearner`.
        hooks: Functions that the run calls for evaluations and before checkpoints; None calls nothing.

    Raises:
        ConfigError: The mini-batches do not divide the rollout.
    """
    if run.settings.overlap:
        warnings.warn(
            "overlap=true has no effect with this algorithm, which updates only between rollouts. Leave it out, or "
            "write on_policy.double_buffer=true.",
            stacklevel=2,
        )
    world, clock = run.ranks.world_size, run.clock
    guarded = GuardedLearner(run, learner, config)
    collector = RolloutCollector(run, env, guarded, config.double_buffer)
    obs = env.reset(run.settings.seed)
    position = LoopState(obs, learner.initial_carry(env.num_envs))
    tracker = EpisodeTracker(env.num_envs, env.spec.num_agents, env.device)
    rollout = Rollout(config.num_steps, env.num_envs, run.device)
    recurrent = position.carry is not None
    if returns is None:
        critic = cast(ValueLearner, learner)  # a learner without values comes with its own `returns`
        returns = GaeReturns(run, critic, config.gamma, config.gae_lambda, config.normalize_advantage)
    rows = (1 if recurrent else config.num_steps) * env.num_envs * returns.rows_per_step
    count, size = config.split(rows, world, recurrent)
    shuffle = run.noise("shuffle", rows)
    whole_epochs = isinstance(learner, EpochLearner) and not recurrent and learner.updates_epochs(size)
    scheduled = learner if isinstance(learner, ScheduledLearner) else None
    initial_lr = float(learner.lr)
    run.register("learner", learner, shared=True)
    register_episodes(run, env, tracker, position)
    scale = _reward_scale(run, env, config)
    samples = config.num_steps * env.num_envs * world
    each = f"{size * world} sequences = {size * world * config.num_steps} rows" if recurrent else f"{size * world} rows"
    resumed = run.begin(
        {
            "environments": f"{env.num_envs * world} over {world} rank(s) = {env.num_envs} each",
            "rollout": f"{config.num_steps} steps x {env.num_envs * world} = {samples} samples over all ranks, "
            f"{config.epochs} epochs of {count} mini-batches of {each}",
            "annealing": "learning rate falls linearly to 0" if config.anneal_lr else "none",
        },
        hooks,
    )
    if resumed:
        continue_episodes(run, env, tracker, position, scale)

    while run.running:
        if config.anneal_lr or scheduled is not None:
            progress = run.progress  # on all ranks, which agree on it
            if config.anneal_lr:
                learner.lr = initial_lr * max(1.0 - progress, 0.0)
            if scheduled is not None:
                scheduled.set_progress(progress)
        carry_at_start = position.carry
        for t, collected in enumerate(collector.collect(position, config.num_steps)):
            step = collected.step
            with clock("store"):
                rollout.store(
                    t,
                    {
                        "obs": collected.obs,
                        "action": collected.action,
                        "reward": step.reward if scale is None else scale(step),
                        **collected.extras,
                    },
                )
                rollout.store(t, {"terminated": step.terminated, "truncated": step.truncated})
                tracker.add(step, run.metrics)
            returns.after_step(t, rollout, step, collected.carry)
            position.advance(step, collected.carry)
        data = returns.finish(rollout, position.obs, position.carry)
        for _ in range(config.epochs):
            if whole_epochs:
                with clock("update"):
                    run.learned(guarded.update_epoch(data, shuffle.permutation(), size), count)
                continue
            batches = minibatches(data, size, shuffle, recurrent, carry_at_start)
            for _ in range(count):
                with clock("sample"):
                    batch = next(batches)
                with clock("update"):
                    run.learned(guarded.update(batch, data))
        with clock("update"):
            learner.after_rollout(rollout.data["obs"])
            if scale is not None:
                scale.after_rollout()
        if after_update is not None:
            after_update()
        run.tick(config.num_steps * env.num_envs * world)
    run.finish()


def _reward_scale(run: Run, env: VecEnv, config: OnPolicyConfig) -> RewardScale | None:
    """Creates and registers the scale of rewards; None if rewards are not changed."""
    if not config.normalize_reward and not config.clip_reward:
        return None
    agents = () if env.spec.num_agents is None else (env.spec.num_agents,)
    like = torch.zeros(env.num_envs, *agents, device=run.device)
    scale = RewardScale(run.ranks, like, config.gamma, config.normalize_reward, config.clip_reward)
    run.register("reward scale", scale, redistribute=lambda states: scale.load_statistics(states[0]))
    return scale
