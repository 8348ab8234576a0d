"""The on-policy loop: roll out, returns, epochs of mini-batches. One page, for PPO with and without memory and COMA."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from powerband.core.config import ConfigError
from powerband.core.run import Run
from powerband.core.scaling import per_rank
from powerband.data.episodes import EpisodeTracker
from powerband.data.rollout import Rollout, minibatches
from powerband.data.types import Learner, VecEnv
from powerband.loops.learning import Learning
from powerband.loops.position import Position
from powerband.loops.returns import Advantages, Returns
from powerband.loops.walk import Walk


@dataclass(frozen=True)
class OnPolicyConfig:
    num_envs: int = 256
    """Environments stepped together, over all ranks."""
    num_steps: int = 32
    """Steps of each environment in one rollout."""
    epochs: int = 2
    """Passes over a rollout."""
    minibatches: int = 4
    """Mini-batches in a pass, of equal size."""
    minibatch_rows: int = 0
    """Rows of a mini-batch over all ranks, instead of a number of them; the last one of a pass may have fewer."""
    gamma: float = 0.99
    """Discount of a step."""
    gae_lambda: float = 0.95
    """Trace decay: lambda of generalised advantage estimation, or of TD(lambda) targets."""
    normalize_advantage: bool = True
    """Advantages to mean 0 and deviation 1, over the rollout of all ranks."""
    anneal_lr: bool = True
    """Learning rate falls linearly to zero over the budget (of env steps, or of seconds where that is the budget)."""
    double_buffer: bool = False
    """Choose actions for the environments of half the workers while the other half's simulators step: the same draws,
    the same learning."""

    def check(self, world_size: int) -> None:
        """Refuses environments that cannot be shared among `world_size` ranks."""
        per_rank("num_envs", self.num_envs, world_size)
        if self.minibatch_rows:
            per_rank("minibatch_rows", self.minibatch_rows, world_size)

    def split(self, rows: int, world_size: int) -> tuple[int, int]:
        """(mini-batches in a pass, rows of each on one rank) of a rollout that has so many `rows` there.

        Raises:
            ConfigError: Equal mini-batches do not divide the rollout.
        """
        if self.minibatch_rows:
            size = self.minibatch_rows // world_size
            return -(-rows // size), size
        if rows % self.minibatches:
            raise ConfigError(
                f"minibatches={self.minibatches} do not divide the {rows} rows that a rank has of a rollout. "
                f"Choose a divisor of {rows}."
            )
        return self.minibatches, rows // self.minibatches

    def batch_words(self, rows: int, world_size: int, sequences: bool = False) -> str:
        """The word that makes mini-batches of `rows` (with memory, whole sequences) or fewer on each rank."""
        if self.minibatch_rows:
            return f"minibatch_rows={rows * world_size}" + (f" ({rows} on each rank)" if world_size > 1 else "")
        envs = self.num_envs // world_size
        total = envs if sequences else envs * self.num_steps
        count = next(count for count in range(-(-total // rows), total + 1) if total % count == 0)
        each = f"{total // count} {'sequences' if sequences else 'rows'}"
        return f"minibatches={count} ({each}{' on each rank' if world_size > 1 else ''})"


def on_policy(
    run: Run,
    env: VecEnv,
    learner: Learner,
    config: OnPolicyConfig,
    after_update: Callable[[], None] | None = None,
    returns: Returns | None = None,
) -> None:
    """Trains `learner` on `env` until the run's budget is spent.

    Args:
        run: Device, counters, clock, metrics, checkpoints.
        env: This rank's environments.
        learner: Acts, gives values, updates.
        config: Sizes over all ranks, and the returns.
        after_update: Called after the updates of each rollout (self-play takes its snapshots there).
        returns: Makes of a rollout what is learned from; None is generalised advantage estimation.

    Raises:
        ValueError: Mini-batches that do not divide the rollout.
    """
    world, clock = run.ranks.world_size, run.clock
    learning = Learning(run, learner, config)
    walk = Walk(run, env, learning, config.double_buffer)
    obs = env.reset(run.settings.seed)
    position = Position(obs, learner.initial_carry(env.num_envs))
    tracker = EpisodeTracker(env.num_envs, env.spec.num_agents, env.device)
    rollout = Rollout(config.num_steps, env.num_envs, run.device)
    memory = position.carry is not None
    if returns is None:
        returns = Advantages(run, learner, config.gamma, config.gae_lambda, config.normalize_advantage)
    rows = (1 if memory else config.num_steps) * env.num_envs * returns.rows_a_step
    count, size = config.split(rows, world)
    shuffle = run.noise("shuffle", rows)
    initial_lr = float(learner.lr)
    run.attach("learner", learner, shared=True)
    run.attach("env", env)
    run.attach("tracker", tracker)
    run.attach("position", position)
    samples = config.num_steps * env.num_envs * world
    run.banner(
        {
            "environments": f"{env.num_envs * world} over {world} rank(s) = {env.num_envs} each",
            "rollout": f"{config.num_steps} steps x {env.num_envs * world} = {samples} samples over all ranks, "
            f"{config.epochs} epochs of {count} mini-batches of {size * world} {'sequences' if memory else 'rows'}",
            "annealing": "learning rate falls linearly to 0" if config.anneal_lr else "none",
        }
    )
    if run.restore():
        position.resume(env, tracker)

    while run.running:
        if config.anneal_lr:
            learner.lr = initial_lr * max(1.0 - run.progress, 0.0)
        carry_at_start = position.carry
        for t, taken in enumerate(walk.steps(position, config.num_steps)):
            step = taken.step
            with clock("store"):
                rollout.store(t, {"obs": taken.obs, "action": taken.action, "reward": step.reward, **taken.extras})
                rollout.store(t, {"terminated": step.terminated, "truncated": step.truncated})
                tracker.add(step, run.metrics)
            returns.after_step(t, rollout, step, taken.carry)
            position.move(step, taken.carry)
        data = returns.finish(rollout, position.obs, position.carry)
        for _ in range(config.epochs):
            batches = minibatches(data, size, shuffle, memory, carry_at_start)
            for _ in range(count):
                with clock("sample"):
                    batch = next(batches)
                with clock("update"):
                    run.learned(learning.update(batch, data))
        with clock("update"):
            learner.observe(rollout.data["obs"])
        if after_update is not None:
            after_update()
        run.tick(config.num_steps * env.num_envs * world, config.epochs * count)
    run.finish()
