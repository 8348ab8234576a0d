"""The on-policy loop: roll out, advantages, epochs of mini-batches. One page, for PPO with and without memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from powerband.core.config import per_rank
from powerband.core.run import Run
from powerband.data.episodes import EpisodeTracker
from powerband.data.rollout import Rollout, gae
from powerband.data.types import Learner, Step, VecEnv, rows_like, tree_map
from powerband.loops.learning import Learning
from powerband.loops.position import Position, env_accounts


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
    gamma: float = 0.99
    """Discount of a step."""
    gae_lambda: float = 0.95
    """Trace decay of generalised advantage estimation."""
    normalize_advantage: bool = True
    """Advantages to mean 0 and deviation 1, over the rollout of all ranks."""
    anneal_lr: bool = True
    """Learning rate falls linearly to zero over the budget (of env steps, or of seconds where that is the budget)."""

    def check(self, world_size: int) -> None:
        """Refuses environments that cannot be shared among `world_size` ranks."""
        per_rank("num_envs", self.num_envs, world_size)

    def batch_words(self, rows: int, world_size: int, sequences: bool = False) -> str:
        """The word that makes mini-batches of `rows` (with memory, whole sequences) or fewer on each rank."""
        envs = self.num_envs // world_size
        total = envs if sequences else envs * self.num_steps
        count = next(count for count in range(-(-total // rows), total + 1) if total % count == 0)
        each = f"{total // count} {'sequences' if sequences else 'rows'}"
        return f"minibatches={count} ({each}{' on each rank' if world_size > 1 else ''})"


def on_policy(
    run: Run, env: VecEnv, learner: Learner, config: OnPolicyConfig, after_update: Callable[[], None] | None = None
) -> None:
    """Trains `learner` on `env` until the run's budget is spent.

    Args:
        run: Device, counters, clock, metrics, checkpoints.
        env: This rank's environments.
        learner: Acts, gives values, updates.
        config: Sizes over all ranks, and the returns.
        after_update: Called after the updates of each rollout (self-play takes its snapshots there).

    Raises:
        ValueError: Mini-batches that do not divide the rollout.
    """
    gamma, world, clock = config.gamma, run.ranks.world_size, run.clock
    sending, arriving = env_accounts(env)
    learning = Learning(run, learner, config)
    obs = env.reset(run.settings.seed)
    position = Position(obs, learner.initial_carry(env.num_envs))
    tracker = EpisodeTracker(env.num_envs, env.spec.num_agents, env.device)
    rollout = Rollout(config.num_steps, env.num_envs, run.device)
    memory = position.carry is not None
    shuffle = run.noise("shuffle", env.num_envs * (1 if memory else config.num_steps))
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
            f"{config.epochs} epochs of {config.minibatches} mini-batches of {samples // config.minibatches}",
            "annealing": "learning rate falls linearly to 0" if config.anneal_lr else "none",
        }
    )
    if run.restore():
        position.resume(env, tracker)

    while run.running:
        if config.anneal_lr:
            learner.lr = initial_lr * max(1.0 - run.progress, 0.0)
        carry_at_start = position.carry
        for t in range(config.num_steps):
            with clock("act"):
                action, extras, carry = learning.act(position.obs, position.carry)
            with clock(sending):
                env.send(action)
            with clock(arriving):
                step = env.recv()
            with clock("store"):
                rollout.store(t, {"obs": position.obs, "action": action, "reward": step.reward, **extras})
                rollout.store(t, {"terminated": step.terminated, "truncated": step.truncated})
                if t:
                    rollout.store(t - 1, {"next_value": extras["value"]})
                tracker.add(step, run.metrics)
            with clock("act"):
                _cut_values(t, rollout, learner, step, carry)
            position.move(step, carry)
        with clock("act"):
            rollout.store(config.num_steps - 1, {"next_value": learner.value(position.obs, position.carry)})
        with clock("returns"):
            data = rollout.data
            # Where an episode was cut, V of its last observation stands in for V of the next episode's first one.
            next_value = torch.where(rows_like(data["truncated"], data["value"]), data["cut_value"], data["next_value"])
            advantage, returns = gae(
                data["reward"],
                data["value"],
                next_value,
                data["terminated"],
                data["truncated"],
                gamma,
                config.gae_lambda,
            )
            data["advantages"] = _normalized(advantage, run) if config.normalize_advantage else advantage
            data["returns"] = returns
        for _ in range(config.epochs):
            batches = rollout.minibatches(config.minibatches, shuffle, memory, carry_at_start)
            for _ in range(config.minibatches):
                with clock("sample"):
                    batch = next(batches)
                with clock("update"):
                    run.learned(learning.update(batch, data))
        with clock("update"):
            learner.observe(data["obs"])
        if after_update is not None:
            after_update()
        run.tick(config.num_steps * env.num_envs * world, config.epochs * config.minibatches)
    run.finish()


def _cut_values(t: int, rollout: Rollout, learner: Learner, step: Step, carry: Tensor | None) -> None:
    """Stores V of the last observation where step t truncated an episode; on the CPU only these rows are evaluated."""
    values = rollout.data.get("cut_value")
    if values is None:
        rollout.store(t, {"cut_value": torch.zeros_like(step.reward)})
        values = rollout.data["cut_value"]
    if step.final_obs is None:
        return
    if step.truncated.device.type != "cpu":
        values[t].copy_(learner.value(step.final_obs, carry))
        return
    rows = step.truncated.nonzero().squeeze(1)
    if len(rows):
        last = tree_map(lambda leaf: leaf.index_select(0, rows), step.final_obs)
        values[t, rows] = learner.value(last, None if carry is None else carry.index_select(0, rows))


def _normalized(advantage: Tensor, run: Run) -> Tensor:
    """Advantages to mean 0 and deviation 1 over the rollouts of all ranks."""
    moments = torch.stack([advantage.mean(), advantage.square().mean()]).double()
    mean, square = run.ranks.average_(moments).float().unbind()
    return (advantage - mean) / ((square - mean * mean).clamp(min=0).sqrt() + 1e-8)
