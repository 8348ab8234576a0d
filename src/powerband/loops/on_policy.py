"""The on-policy loop: roll out, returns, epochs of mini-batches. One page, for PPO with and without memory and COMA."""

from __future__ import annotations

from collections.abc import Callable

from powerband.core.run.run import Run, RunHooks
from powerband.data.episode_tracker import EpisodeTracker
from powerband.data.rollout import Rollout, minibatches
from powerband.data.types import OnPolicyLearner, VecEnv
from powerband.loops.config import OnPolicyConfig
from powerband.loops.support.collector import RolloutCollector
from powerband.loops.support.guarded_learner import GuardedLearner
from powerband.loops.support.loop_state import LoopState
from powerband.loops.support.returns import GaeReturns, ReturnsEstimator


def on_policy(
    run: Run,
    env: VecEnv,
    learner: OnPolicyLearner,
    config: OnPolicyConfig,
    after_update: Callable[[], None] | None = None,
    returns: ReturnsEstimator | None = None,
    hooks: RunHooks | None = None,
) -> None:
    """Trains `learner` on `env` until the run's budget is spent.

    Args:
        run: Device, counters, clock, metrics, checkpoints.
        env: This rank's environments.
        learner: Acts, gives values, updates.
        config: Sizes over all ranks, and the returns.
        after_update: Called after the updates of each rollout (self-play takes its snapshots there).
        returns: Computes what is learned from a rollout; None is generalised advantage estimation.
        hooks: Functions of the recipe that the run calls: evaluation, preparation of a checkpoint.

    Raises:
        ValueError: Mini-batches that do not divide the rollout.
    """
    world, clock = run.ranks.world_size, run.clock
    learning = GuardedLearner(run, learner, config)
    walk = RolloutCollector(run, env, learning, config.double_buffer)
    obs = env.reset(run.settings.seed)
    position = LoopState(obs, learner.initial_carry(env.num_envs))
    tracker = EpisodeTracker(env.num_envs, env.spec.num_agents, env.device)
    rollout = Rollout(config.num_steps, env.num_envs, run.device)
    memory = position.carry is not None
    if returns is None:
        returns = GaeReturns(run, learner, config.gamma, config.gae_lambda, config.normalize_advantage)
    rows = (1 if memory else config.num_steps) * env.num_envs * returns.rows_per_step
    count, size = config.split(rows, world)
    shuffle = run.noise("shuffle", rows)
    initial_lr = float(learner.lr)
    run.register("learner", learner, shared=True)
    run.register("env", env)
    run.register("tracker", tracker)
    run.register("position", position)
    samples = config.num_steps * env.num_envs * world
    resumed = run.begin(
        {
            "environments": f"{env.num_envs * world} over {world} rank(s) = {env.num_envs} each",
            "rollout": f"{config.num_steps} steps x {env.num_envs * world} = {samples} samples over all ranks, "
            f"{config.epochs} epochs of {count} mini-batches of {size * world} {'sequences' if memory else 'rows'}",
            "annealing": "learning rate falls linearly to 0" if config.anneal_lr else "none",
        },
        hooks,
    )
    if resumed:
        position.resume(env, tracker)

    while run.running:
        if config.anneal_lr:
            learner.lr = initial_lr * max(1.0 - run.progress, 0.0)
        carry_at_start = position.carry
        for t, taken in enumerate(walk.collect(position, config.num_steps)):
            step = taken.step
            with clock("store"):
                rollout.store(t, {"obs": taken.obs, "action": taken.action, "reward": step.reward, **taken.extras})
                rollout.store(t, {"terminated": step.terminated, "truncated": step.truncated})
                tracker.add(step, run.metrics)
            returns.after_step(t, rollout, step, taken.carry)
            position.advance(step, taken.carry)
        data = returns.finish(rollout, position.obs, position.carry)
        for _ in range(config.epochs):
            batches = minibatches(data, size, shuffle, memory, carry_at_start)
            for _ in range(count):
                with clock("sample"):
                    batch = next(batches)
                with clock("update"):
                    run.learned(learning.update(batch, data))
        with clock("update"):
            learner.after_rollout(rollout.data["obs"])
        if after_update is not None:
            after_update()
        run.tick(config.num_steps * env.num_envs * world)
    run.finish()
