"""Off-policy loop: fills a replay buffer and runs the updates that are due. For SAC, TD3, FastTD3, DQN and DDPG.

Each iteration chooses actions, sends them, runs due updates, receives the step and stores it.

Serial runs update right after the transition that makes an update due. With ``overlap`` updates run between `send` and
`recv`, while the simulators step. The number and the order of the updates are the same, but overlapped updates
sample the replay before it contains the newest step.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from powerband.core.config.sizes import per_rank
from powerband.core.config.texts import counted
from powerband.core.errors import ConfigError
from powerband.core.noise import Noise
from powerband.core.optim.compile import GraphedUpdates, all_tensors
from powerband.core.run.hooks import RunHooks
from powerband.core.run.run import Run
from powerband.core.schedule import UpdateSchedule
from powerband.data.episode_tracker import EpisodeTracker
from powerband.data.hindsight import GoalReward, Hindsight
from powerband.data.priorities import Priorities
from powerband.data.replay import Replay
from powerband.data.types import (
    Learner,
    PrioritizedLearner,
    StatisticsLearner,
    Step,
    TensorSpec,
    Tree,
    VecEnv,
    tree_map,
)
from powerband.loops.config import OffPolicyConfig
from powerband.loops.support.changed_ranks import continue_episodes, register_episodes
from powerband.loops.support.guarded_learner import GuardedLearner
from powerband.loops.support.loop_state import LoopState, env_accounts
from powerband.loops.support.reward_scale import MAX_SCALED, RewardScale
from powerband.nets.distributions import MultiCategorical, uniform_actions
from powerband.nets.observations.features import action_mask


def off_policy(
    run: Run,
    env: VecEnv,
    learner: Learner,
    config: OffPolicyConfig,
    after_step: Callable[[Step, Replay], object] | None = None,
    hooks: RunHooks | None = None,
    goal_reward: GoalReward | None = None,
    replace_actions: Callable[[Tree, Tensor], Tensor] | None = None,
) -> None:
    """Trains `learner` on `env` with a replay buffer until the run's budget of environment steps or time is spent.

    Args:
        run: Run of this rank (process of the training), with device, counters, metrics and checkpoints.
        env: Environments of this rank.
        learner: Learner to train.
        config: Sizes over all ranks, and the number of updates per transition.
        after_step: Called with each step of the environments and the replay buffer that has stored it; None calls
            nothing.
        hooks: Functions that the run calls for evaluations and before checkpoints; None calls nothing.
        goal_reward: Computes rewards for other goals, for `config.hindsight`; None supports no hindsight.
        replace_actions: Returns the actions that the environments take, from observations and the chosen actions, for
            example to let a demonstrator act in some episodes; None takes the chosen actions.

    Raises:
        ConfigError: A size does not divide by the number of ranks, the batch is larger than the replay buffer, or the
            learner does not support random_steps or prioritised replay, or there is no `goal_reward` for hindsight.
        OutOfMemory: The replay buffer or a batch does not fit into memory; the message names a size that fits.
    """
    world = run.ranks.world_size
    batch_size = config.batch_size_per_rank or per_rank("global_batch_size", config.global_batch_size, world)
    capacity = per_rank("replay_size", config.replay_size, world)
    overlap = run.settings.overlap
    if overlap and not env.spec.overlappable:
        warnings.warn(
            "overlap=true has no effect, because this environment steps in the training process. Leave it out, or "
            "write num_workers=2 if the recipe has worker processes.",
            stacklevel=2,
        )
        overlap = False
    schedule = config.schedule()
    most_due = -(-env.num_envs * world // schedule.update_interval) * schedule.updates_per_interval
    _warn_of_unused(config, run.device, most_due)

    scheduled = config.anneal_from < 1 or config.lr_warmup_updates > 0
    initial_lr = float(learner.lr) if scheduled else 0.0
    guarded = GuardedLearner(run, learner, config)
    obs = env.reset(run.settings.seed)
    carry = learner.initial_carry(env.num_envs)
    explorer = run.noise("random actions", env.num_envs)
    sampler = run.noise("replay", batch_size)
    _, extras, _ = guarded.act(obs, carry, explore=False)
    if config.random_steps and extras:
        raise ConfigError(
            f"off_policy.random_steps={config.random_steps} is not supported by this algorithm, because it stores "
            f"{', '.join(extras)} with each of its actions. Write off_policy.random_steps=0."
        )
    prioritized = learner if isinstance(learner, PrioritizedLearner) else None
    if config.priority_exponent and prioritized is None:
        raise ConfigError(
            f"off_policy.priority_exponent={config.priority_exponent:g} is not supported by this algorithm, which "
            f"reports no errors of single transitions. Write priority_exponent=0, or algo=sac, td3 or dqn in gym."
        )
    if config.hindsight and goal_reward is None:
        raise ConfigError(
            f"off_policy.hindsight={config.hindsight} is not supported by this recipe, which has no goals. Write "
            f"off_policy.hindsight=0, or train a goal environment with gym."
        )
    fields = _fields(env, extras)
    scale = None
    if config.normalize_reward:
        like = fields["reward"].zeros(env.num_envs, device=run.device)
        scale = RewardScale(run.ranks, like, learner.config.gamma, True, 0.0)
        run.register("reward scale", scale, redistribute=lambda states: scale.load_statistics(states[0]))
    replay = guarded.allocate(
        "off_policy.replay_size",
        capacity,
        lambda rows: _replay(run, env, learner, config, fields, rows, goal_reward),
        lambda: Replay(env.num_envs, env.num_envs, "cpu", fields).rows[0].nbytes,
    )
    statistics = learner if isinstance(learner, StatisticsLearner) else None
    tracker = EpisodeTracker(env.num_envs, env.spec.num_agents, env.device)
    position = LoopState(obs, carry)

    clip = config.clip_reward

    def sampled_update() -> dict[str, Tensor]:
        with run.clock("sample"):
            batch = replay.sample(batch_size, sampler)
            if config.hindsight and clip:
                batch["reward"] = batch["reward"].clamp(-clip, clip)
            if scale is not None:
                most = MAX_SCALED * config.n_step
                batch["reward"] = (batch["reward"] * scale.factor).clamp(-most, most)
        losses = guarded.update(batch)
        if replay.priorities is not None:
            assert prioritized is not None
            replay.set_errors(prioritized.errors)
        return losses

    changed = [] if replay.priorities is None else replay.priorities.tensors()
    updates = GraphedUpdates(
        sampled_update,
        run.device,
        state=lambda: all_tensors([learner.state_dict(), run.noise.state_dict(), changed]),
        k=config.graph_updates,
        cycle=learner.cycle,
        any_rank=lambda differs: bool(run.ranks.max_(torch.tensor(int(differs), device=run.device))),
    )

    run.register("learner", learner, shared=True)
    run.register("replay", replay, redistribute=lambda states: replay.load_share(states, run.ranks.rank, world))
    run.register("schedule", schedule, redistribute=lambda states: schedule.load_state_dict(states[0]))
    register_episodes(run, env, tracker, position)
    if run.begin(_sizes(env, config, batch_size, schedule, overlap, world), hooks):
        continue_episodes(run, env, tracker, position, scale)
        replay.cut(~env.resumed)

    def update(due: int) -> None:
        with run.clock("update"):
            for losses, number in updates.run(due):
                run.learned(losses, number)

    clock = run.clock
    send_account, recv_account = env_accounts(env)
    run.ranks.progress.allow_wait(env.spec.recv_limit_s)
    while run.running:
        if scheduled:
            learner.lr = initial_lr * _lr_factor(config, run.progress, run.grad_steps)
        with clock("act"):
            action, extras, carry = guarded.act(position.obs, position.carry)
            if run.env_steps < config.random_steps:
                action = random_actions(explorer, env, position.obs)
            if replace_actions is not None:
                action = replace_actions(position.obs, action)
        with clock(send_account):
            env.send(action)
        if overlap:
            update(position.pending_updates)
        with clock(recv_account):
            step = env.recv()
        with clock("store"):
            reward = step.reward.clamp(-clip, clip) if clip else step.reward
            replay.add(
                {
                    "obs": position.obs,
                    "action": action,
                    "reward": reward,
                    "terminated": step.terminated,
                    "next_obs": step.next_obs(),
                    **extras,
                },
                step.lost,
                step.ended,
            )
            if statistics is not None:
                statistics.update_statistics(position.obs)
            if scale is not None:
                scale.add(reward, step.ended)
                scale.after_rollout()
            tracker.add(step, run.metrics)
            position.advance(step, carry)
            if after_step is not None:
                after_step(step, replay)
        due = schedule.due(env.num_envs * world)
        if overlap:
            due, position.pending_updates = position.pending_updates, due
        else:
            update(due + position.pending_updates)  # a run with overlap may have saved some
            position.pending_updates = 0
        run.tick(env.num_envs * world)
    run.finish()


def _warn_of_unused(config: OffPolicyConfig, device: torch.device, most_due: int) -> None:
    """Warns of options that have no effect with the others or on this device.

    `most_due` is the largest number of updates that one iteration of the loop makes.
    """
    if config.graph_updates > most_due and device.type == "cuda":
        warnings.warn(
            f"off_policy.graph_updates={config.graph_updates} has no effect, because at most {most_due} updates become "
            f"due per step of all environments. Write off_policy.graph_updates={most_due} or less; 0 uses no graph.",
            stacklevel=3,
        )
    if config.graph_updates and device.type != "cuda":
        warnings.warn(
            f"off_policy.graph_updates={config.graph_updates} has no effect on {device}, because only CUDA has graphs. "
            f"Leave it out.",
            stacklevel=3,
        )
    if config.importance_exponent != OffPolicyConfig.importance_exponent and not config.priority_exponent:
        warnings.warn(
            f"off_policy.importance_exponent={config.importance_exponent:g} has no effect without prioritised replay. "
            f"Leave it out, or write off_policy.priority_exponent=0.6.",
            stacklevel=3,
        )


def _sizes(
    env: VecEnv, config: OffPolicyConfig, batch: int, schedule: UpdateSchedule, overlap: bool, world: int
) -> dict[str, str]:
    """Returns the lines of the start banner by label: sizes over all ranks and on each rank, and the update ratio."""
    each = f"{batch * world} over {world} rank(s) = {batch} each"
    other = f" (as a size per rank, {batch * world} would be {batch * world * world} in total)" if world > 1 else ""
    return {
        "environments": f"{env.num_envs * world} over {world} rank(s) = {env.num_envs} each",
        "batch": each + other,
        "replay": f"{config.replay_size} transitions over all ranks, learning after {config.learning_starts}"
        + (f"; {config.n_step}-step returns" if config.n_step > 1 else "")
        + (f"; {config.hindsight} relabelled per unchanged transition" if config.hindsight else "")
        + (f"; prioritised, exponent {config.priority_exponent:g}" if config.priority_exponent else ""),
        "warm-up": f"learning rates rise from 0 in {config.lr_warmup_updates:,} updates"
        if config.lr_warmup_updates
        else "none",
        "annealing": f"learning rates fall to 0 from {config.anneal_from:.0%} of the budget on"
        if config.anneal_from < 1
        else "none",
        "update ratio": f"{counted(schedule.updates_per_interval, 'update')} every "
        f"{counted(schedule.update_interval, 'transition')}: "
        f"{schedule.ratio:g} updates per transition, {'while simulators step' if overlap else 'serial'}",
    }


def _replay(
    run: Run,
    env: VecEnv,
    learner: Learner,
    config: OffPolicyConfig,
    fields: dict[str, Tree],
    rows: int,
    goal_reward: GoalReward | None,
) -> Replay:
    """Creates a replay buffer of `rows` rows with the windows, priorities and relabelling that `config` selects."""
    parts: dict[str, Any] = {"n_step": config.n_step, "gamma": learner.config.gamma} if config.n_step > 1 else {}
    if config.priority_exponent:
        exponents = config.priority_exponent, config.importance_exponent
        parts["priorities"] = Priorities(rows, run.device, *exponents, run.ranks.max_)
    if config.hindsight:
        assert goal_reward is not None
        parts["hindsight"] = Hindsight(rows, env.num_envs, run.device, config.hindsight, goal_reward)
    return Replay(rows, env.num_envs, run.device, fields, **parts)


def _lr_factor(config: OffPolicyConfig, progress: float, updates: int) -> float:
    """Returns the factor on the learning rates: of the warm-up times that of the annealing.

    Args:
        config: Settings of the loop.
        progress: Share of the budget that is used, 0..1.
        updates: Completed updates.
    """
    annealed = min(1.0, (1.0 - progress) / (1.0 - config.anneal_from)) if config.anneal_from < 1 else 1.0
    warm = min(1.0, (updates + 1) / config.lr_warmup_updates) if config.lr_warmup_updates else 1.0
    return annealed * warm


def _fields(env: VecEnv, extras: dict[str, Tensor]) -> dict[str, Tree]:
    """Returns the specs of one transition in the replay buffer, by field; `extras` is the dict that `act` returns."""
    agents = () if env.spec.num_agents is None else (env.spec.num_agents,)
    return {
        "obs": env.spec.obs,
        "action": env.spec.action,
        "reward": TensorSpec(agents),
        "terminated": TensorSpec((), torch.bool),
        "next_obs": env.spec.obs,
        **tree_map(lambda tensor: TensorSpec(tuple(tensor.shape[1:]), tensor.dtype), extras),
    }


def random_actions(noise: Noise, env: VecEnv, obs: Tree) -> Tensor:
    """Samples actions (N, ...) uniformly: within the bounds, or among the actions that the mask in `obs` allows.

    An entry of a continuous action without a lower or an upper bound is drawn from -1 .. 1, or from 1 above or below
    its only bound.
    """
    uniform = noise.uniform(*env.spec.action.shape)
    if heads := env.spec.action_heads:
        logits = uniform.new_zeros(len(uniform), sum(heads))
        return MultiCategorical(logits, heads, action_mask(obs)).sample(uniform)
    if env.spec.num_actions is not None:
        return uniform_actions(uniform, env.spec.num_actions, action_mask(obs))
    assert env.spec.low is not None and env.spec.high is not None
    low, high = env.spec.low.to(env.device), env.spec.high.to(env.device)
    lowest = torch.where(low.isfinite(), low, (high - 1).clamp(max=-1))
    highest = torch.where(high.isfinite(), high, (low + 1).clamp(min=1))
    return lowest + (highest - lowest) * uniform
