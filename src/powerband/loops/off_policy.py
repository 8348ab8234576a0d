"""The off-policy loop: act, send, due updates, recv, store. One page, for DDPG and SAC alike.

Serial (the reference): the updates that a transition makes due run right after it was stored. With ``overlap`` they
run between `send` and `recv`, while the simulators step: the same number of updates in the same order, but they see
the replay as it was before the step under way, one step of lag.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from powerband.core.compile import GraphedUpdates, tensors_in
from powerband.core.config import ConfigError
from powerband.core.noise import Noise
from powerband.core.run import Run
from powerband.core.scaling import per_rank
from powerband.core.schedule import UpdateSchedule
from powerband.data.episodes import EpisodeTracker
from powerband.data.replay import Replay
from powerband.data.types import Learner, Step, TensorSpec, Tree, VecEnv, tree_map
from powerband.loops.learning import Learning
from powerband.loops.position import Position, env_accounts


@dataclass(frozen=True)
class OffPolicyConfig:
    num_envs: int = 16
    """Environments stepped together, over all ranks."""
    global_batch_size: int = 256
    """Transitions of one update, over all ranks."""
    batch_size_per_rank: int = 0
    """The batch of each rank instead of the one over all ranks; 0 leaves it to global_batch_size."""
    replay_size: int = 100_000
    """Transitions kept, over all ranks."""
    update_interval: int = 1
    """Updates fall due each time this many transitions have entered replay, summed over ranks."""
    updates_per_interval: int = 0
    """Updates that fall due each time; 0 means as many as update_interval, which is one update a transition."""
    warmup: int = 1_000
    """Transitions that enter replay before the first update, over all ranks."""
    random_steps: int = 0
    """Transitions with uniformly drawn continuous actions at the start, over all ranks."""
    anneal_from: float = 1.0
    """Share of the budget from which on learning rates fall linearly to 0 at its end; 1 leaves them as they are."""
    graph_updates: int = 0
    """On CUDA, updates with their sampling in one graph replay, checked against eager; 0 launches each by itself."""

    def check(self, world_size: int) -> None:
        """Refuses sizes that cannot be shared among `world_size` ranks, and a batch that is larger than the replay.

        Raises:
            ConfigError: Names the size, the limit and values that fit.
        """
        if not 0 <= self.anneal_from <= 1:
            raise ConfigError(
                f"anneal_from={self.anneal_from} is outside 0 to 1. Write anneal_from=0.5, or 1 for never."
            )
        per_rank("num_envs", self.num_envs, world_size)
        capacity = per_rank("replay_size", self.replay_size, world_size)
        batch = self.batch_size_per_rank or per_rank("global_batch_size", self.global_batch_size, world_size)
        if batch > capacity:
            raise ConfigError(
                f"a batch of {batch} is larger than the replay of {capacity} transitions (each rank): it is drawn from "
                f"the replay. Lower global_batch_size, or raise replay_size to {batch * world_size} or more."
            )
        self.schedule()

    def batch_words(self, rows: int, world_size: int, sequences: bool = False) -> str:
        """The word that makes batches of `rows` on each rank."""
        if self.batch_size_per_rank:
            return f"batch_size_per_rank={rows}"
        return f"global_batch_size={rows * world_size}" + (f" ({rows} on each rank)" if world_size > 1 else "")

    def schedule(self) -> UpdateSchedule:
        """The owner of the update ratio, built from these words."""
        return UpdateSchedule(self.update_interval, self.updates_per_interval or None, self.warmup)


def off_policy(
    run: Run,
    env: VecEnv,
    learner: Learner,
    config: OffPolicyConfig,
    after_step: Callable[[Step, Replay], object] | None = None,
) -> None:
    """Trains `learner` on `env` until the run's budget is spent.

    Args:
        run: Device, counters, clock, metrics, checkpoints.
        env: This rank's environments.
        learner: Acts and updates.
        config: Sizes, over all ranks, and the update ratio.
        after_step: Is shown each step of the environments once it is in the replay.

    Raises:
        ConfigError: Sizes that do not divide by the ranks, or a batch larger than the replay.
    """
    world = run.ranks.world_size
    batch_size = config.batch_size_per_rank or per_rank("global_batch_size", config.global_batch_size, world)
    capacity = per_rank("replay_size", config.replay_size, world)
    overlap = run.settings.overlap
    if overlap and not env.spec.overlappable:
        warnings.warn("overlap=true has no effect: this environment steps inside this process.", stacklevel=2)
        overlap = False

    if config.anneal_from < 1 and not hasattr(learner, "lr"):
        raise ConfigError("anneal_from has no effect on this algorithm: it has no rate to set. Leave it out.")
    initial_lr = float(learner.lr) if config.anneal_from < 1 else 0.0
    learning = Learning(run, learner, config)
    obs = env.reset(run.settings.seed)
    carry = learner.initial_carry(env.num_envs)
    explorer = run.noise("random actions", env.num_envs)
    sampler = run.noise("replay", batch_size)
    _, extras, _ = learning.act(obs, carry, explore=False)
    fields = _fields(env, extras)
    replay = learning.allocated(
        "replay_size",
        capacity,
        lambda rows: Replay(rows, env.num_envs, run.device, fields),
        lambda: Replay(env.num_envs, env.num_envs, "cpu", fields).rows[0].nbytes,
    )
    schedule = config.schedule()
    tracker = EpisodeTracker(env.num_envs, env.spec.num_agents, env.device)
    position = Position(obs, carry)

    def sampled_update() -> dict[str, Tensor]:
        with run.clock("sample"):
            batch = replay.sample(batch_size, sampler)
        return learning.update(batch)

    updates = GraphedUpdates(
        sampled_update,
        run.device,
        state=lambda: tensors_in([learner.state_dict(), run.noise.state_dict()]),
        k=config.graph_updates,
    )

    run.attach("learner", learner, shared=True)
    for name, part in {
        "env": env, "replay": replay, "schedule": schedule, "tracker": tracker, "position": position
    }.items():  # fmt: skip
        run.attach(name, part)
    run.banner(_sizes(env, config, batch_size, schedule, overlap, world))
    if run.restore():
        position.resume(env, tracker)

    def update(due: int) -> None:
        with run.clock("update"):
            for losses, made in updates.run(due):
                run.learned(losses, made)

    clock = run.clock
    sending, arriving = env_accounts(env)
    while run.running:
        if config.anneal_from < 1:
            learner.lr = initial_lr * min(1.0, (1.0 - run.progress) / (1.0 - config.anneal_from))
        with clock("act"):
            action, extras, carry = learning.act(position.obs, position.carry)
            if run.env_steps < config.random_steps:
                action = _uniform(explorer, env)
        with clock(sending):
            env.send(action)
        if overlap:
            update(position.owed)
        with clock(arriving):
            step = env.recv()
        with clock("store"):
            replay.add(
                {
                    "obs": position.obs,
                    "action": action,
                    "reward": step.reward,
                    "terminated": step.terminated,
                    "next_obs": step.next_obs(),
                    **extras,
                },
                step.lost,
            )
            tracker.add(step, run.metrics)
            position.move(step, carry)
            if after_step is not None:
                after_step(step, replay)
        due = schedule.due(env.num_envs * world)
        if overlap:
            due, position.owed = position.owed, due
        else:
            update(due)
        run.tick(env.num_envs * world, due)
    run.finish()


def _sizes(
    env: VecEnv, config: OffPolicyConfig, batch: int, schedule: UpdateSchedule, overlap: bool, world: int
) -> dict[str, str]:
    """Lines of the start banner; sizes are over all ranks, and what a per-rank reading would give stands beside."""
    each = f"{batch * world} over {world} rank(s) = {batch} each"
    other = (
        f" (read as a size of each rank, {batch * world} would be {batch * world * world} in all)" if world > 1 else ""
    )
    return {
        "environments": f"{env.num_envs * world} over {world} rank(s) = {env.num_envs} each",
        "batch": each + other,
        "replay": f"{config.replay_size} transitions over all ranks, learning after {config.warmup}",
        "annealing": f"learning rates fall to 0 from {config.anneal_from:.0%} of the budget on"
        if config.anneal_from < 1
        else "none",
        "update ratio": f"{schedule.updates_per_interval} updates every {schedule.update_interval} transitions: "
        f"{schedule.ratio:g} updates a transition, {'while simulators step' if overlap else 'serial'}",
    }


def _fields(env: VecEnv, extras: dict[str, Tensor]) -> dict[str, Tree]:
    """Specs of one replay row: the transition, and beside it what the learner's `act` gave."""
    agents = () if env.spec.num_agents is None else (env.spec.num_agents,)
    return {
        "obs": env.spec.obs,
        "action": env.spec.action,
        "reward": TensorSpec(agents),
        "terminated": TensorSpec((), torch.bool),
        "next_obs": env.spec.obs,
        **tree_map(lambda tensor: TensorSpec(tuple(tensor.shape[1:]), tensor.dtype), extras),
    }


def _uniform(noise: Noise, env: VecEnv) -> Tensor:
    """Continuous actions (N, ...) drawn uniformly within the bounds of the action space."""
    low, high = env.spec.low.to(env.device), env.spec.high.to(env.device)
    return low + (high - low) * noise.uniform(*env.spec.action.shape)
