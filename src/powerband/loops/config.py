"""Settings of the three training loops: sizes, update ratio and annealing. This file does not import torch.

The strings under the fields are the help texts. Sizes are totals over all ranks unless a name ends with ``_per_rank``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from powerband.core.config.ranges import Count, NonNegative, Range, Share, Size, SizeOrZero, Threads, check_ranges
from powerband.core.config.sizes import per_rank
from powerband.core.errors import ConfigError
from powerband.core.schedule import UpdateSchedule


@dataclass(frozen=True)
@check_ranges
class OffPolicyConfig:
    num_envs: Size = 16
    """Environments, over all ranks."""
    global_batch_size: Size = 256
    """Transitions per update, over all ranks."""
    batch_size_per_rank: SizeOrZero = 0
    """Transitions per update on each rank, instead of global_batch_size; 0 uses global_batch_size."""
    replay_size: Size = 100_000
    """Transitions in the replay buffer, over all ranks."""
    update_interval: Size = 1
    """Transitions, over all ranks, after which updates become due."""
    updates_per_interval: SizeOrZero = 0
    """Updates that become due each time; 0 uses update_interval, which is one update per transition."""
    learning_starts: Count = 1_000
    """Transitions in the replay buffer before the first update, over all ranks."""
    random_steps: Count = 0
    """Transitions with uniformly random actions at the start, over all ranks."""
    clip_reward: NonNegative = 0.0
    """Largest absolute reward that the learner receives; 0 clips nothing. Metrics count unclipped rewards."""
    normalize_reward: bool = False
    """Divide the rewards of batches by the running deviation of the discounted return; the replay buffer and metrics
    have unscaled rewards."""
    n_step: Annotated[int, Range(at_least=1, at_most=10_000)] = 1
    """Steps of the return in the targets: rewards of n transitions, then the value. A window is shorter at the end of
    its episode and at the newest transition."""
    priority_exponent: Share = 0.0
    """Prioritised replay (Schaul et al. 2016): exponent of the last error in the probability of a transition, for
    example 0.6; 0 draws uniformly. For sac, td3 and dqn."""
    importance_exponent: Share = 0.4
    """Exponent of the importance weights of prioritised replay; 1 corrects the sampling completely."""
    hindsight: Annotated[int, Range(at_least=0, at_most=1_000)] = 0
    """Relabelled transitions per unchanged one in a batch, for example 4; 0 relabels none (hindsight experience replay,
    strategy future). It needs a goal environment with a vectorised compute_reward."""
    anneal_from: Share = 1.0
    """Share of the budget after which learning rates fall linearly to 0; 1 keeps them constant."""
    lr_warmup_updates: Count = 0
    """Updates in which the learning rates rise linearly from 0; the rate is set once before the updates of a step."""
    graph_updates: Annotated[int, Range(at_least=0, at_most=10_000)] = 0
    """Updates, with their sampling, per replay of a CUDA graph; replays are checked against eager updates. 0 uses no
    graph."""

    def check(self, world_size: int) -> None:
        """Refuses sizes that do not divide by the number of ranks, and a replay buffer that is too small.

        Args:
            world_size: Number of ranks (processes of the training).

        Raises:
            ConfigError: A size is invalid; the message names the limit and valid values.
        """
        per_rank("off_policy.num_envs", self.num_envs, world_size)
        capacity = per_rank("off_policy.replay_size", self.replay_size, world_size)
        if self.replay_size < self.num_envs:
            raise ConfigError(
                f"off_policy.replay_size={self.replay_size} is below off_policy.num_envs={self.num_envs}, the number "
                f"of transitions per step; both count over all ranks. Write off_policy.replay_size={self.num_envs} or "
                f"more, or fewer environments."
            )
        batch = self.batch_size_per_rank or per_rank("off_policy.global_batch_size", self.global_batch_size, world_size)
        if batch > capacity:
            option = "batch_size_per_rank" if self.batch_size_per_rank else "global_batch_size"
            raise ConfigError(
                f"A batch of {batch} transitions per rank is larger than the replay buffer of {capacity}. Lower "
                f"off_policy.{option}, or write off_policy.replay_size={batch * world_size} or more."
            )
        if self.hindsight and (self.n_step > 1 or self.graph_updates):
            option = f"n_step={self.n_step}" if self.n_step > 1 else f"graph_updates={self.graph_updates}"
            raise ConfigError(
                f"off_policy.hindsight={self.hindsight} does not support off_policy.{option}, because the environment "
                f"computes the reward of each relabelled transition on the host. Write off_policy.n_step=1 and "
                f"off_policy.graph_updates=0."
            )

    @property
    def update_rows(self) -> int:
        """Number of rows in the batch of one update if a single rank (process) trains."""
        return self.batch_size_per_rank or self.global_batch_size

    @property
    def act_rows(self) -> int:
        """Number of rows in one call of `act` if a single rank (process) trains: all environments."""
        return self.num_envs

    def batch_size_setting(self, rows: int, world_size: int, sequences: bool = False) -> str:
        """Returns the command-line setting, as "option=value", for batches of `rows` rows on each rank.

        Args:
            rows: Rows per batch on each rank.
            world_size: Number of ranks.
            sequences: Not used.
        """
        if self.batch_size_per_rank:
            return f"off_policy.batch_size_per_rank={rows}"
        return f"off_policy.global_batch_size={rows * world_size}" + (
            f" ({rows} on each rank)" if world_size > 1 else ""
        )

    def schedule(self) -> UpdateSchedule:
        """Creates the schedule that determines how many updates are due after each step of the environments."""
        return UpdateSchedule(self.update_interval, self.updates_per_interval or None, self.learning_starts)


@dataclass(frozen=True)
@check_ranges
class OnPolicyConfig:
    num_envs: SizeOrZero = 256
    """Environments, over all ranks."""
    num_steps: SizeOrZero = 32
    """Steps of each environment in one rollout."""
    epochs: Size = 2
    """Passes over a rollout."""
    minibatches: Size = 4
    """Mini-batches of equal size per pass."""
    minibatch_rows: SizeOrZero = 0
    """Rows of a mini-batch over all ranks, instead of minibatches; the last one of a pass may be smaller."""
    gamma: Share = 0.99
    """Discount per step."""
    normalize_reward: bool = False
    """Divide rewards by the running deviation of the discounted return; metrics count unscaled rewards."""
    clip_reward: NonNegative = 0.0
    """Largest absolute reward that the learner receives; 0 clips nothing. Metrics count unclipped rewards."""
    gae_lambda: Share = 0.95
    """Trace decay: lambda of generalised advantage estimation, or of TD(lambda) targets."""
    normalize_advantage: bool = True
    """Normalise advantages to mean 0 and standard deviation 1 over the rollout of all ranks."""
    anneal_lr: bool = True
    """Let the learning rate fall linearly to 0 over the budget of environment steps or seconds."""
    double_buffer: bool = False
    """Choose actions for half of the environments while the workers step the other half. The random numbers
    stay the same, and the results up to rounding."""

    def check(self, world_size: int) -> None:
        """Refuses sizes that do not divide by the number of ranks.

        Args:
            world_size: Number of ranks (processes of the training).

        Raises:
            ConfigError: A size is invalid; the message names the limit and valid values.
        """
        for name in ("num_envs", "num_steps"):
            if not getattr(self, name):
                raise ConfigError(f"on_policy.{name}=0 is below 1 in this recipe. Write on_policy.{name}=1 or more.")
        per_rank("on_policy.num_envs", self.num_envs, world_size)
        if self.minibatch_rows:
            per_rank("on_policy.minibatch_rows", self.minibatch_rows, world_size)

    @property
    def update_rows(self) -> int:
        """Number of rows in a mini-batch if a single rank (process) trains."""
        return self.minibatch_rows or self.num_envs * self.num_steps // self.minibatches

    @property
    def act_rows(self) -> int:
        """Number of rows in one call of `act` if a single rank (process) trains: all environments."""
        return self.num_envs

    def split(self, rows: int, world_size: int, sequences: bool = False) -> tuple[int, int]:
        """Returns (number, rows) of the mini-batches of one pass over the rollout of one rank.

        With `minibatch_rows`, the last mini-batch may have fewer rows. A mini-batch of sequences, which are not split,
        has as many of them as fit into `minibatch_rows`, but at least one.

        Args:
            rows: Rows of the rollout on this rank, or sequences of a recurrent policy.
            world_size: Number of ranks.
            sequences: True if `rows` and the result count sequences, the complete rollouts of single environments.

        Raises:
            ConfigError: Mini-batches of equal size do not divide the rollout.
        """
        if self.minibatch_rows:
            size = self.minibatch_rows // world_size
            if sequences:
                size = max(1, size // self.num_steps)
            return -(-rows // size), size
        if rows % self.minibatches:
            raise ConfigError(
                f"on_policy.minibatches={self.minibatches} does not divide the {rows} rows of a rollout on one rank. "
                f"Write a divisor of {rows}."
            )
        return self.minibatches, rows // self.minibatches

    def batch_size_setting(self, rows: int, world_size: int, sequences: bool = False, total: int = 0) -> str:
        """Returns the command-line setting, as "option=value", for mini-batches of at most `rows` rows on each rank.

        Args:
            rows: Rows per mini-batch on each rank.
            world_size: Number of ranks.
            sequences: True if `rows` counts sequences, which are the complete rollouts of single environments.
            total: Rows, or sequences, of the rollout on each rank; 0 counts one per environment and step.
        """
        if self.minibatch_rows:
            rows *= self.num_steps if sequences else 1
            return f"on_policy.minibatch_rows={rows * world_size}" + (
                f" ({rows} on each rank)" if world_size > 1 else ""
            )
        envs = self.num_envs // world_size
        total = total or (envs if sequences else envs * self.num_steps)
        count = next(count for count in range(-(-total // rows), total + 1) if total % count == 0)
        each = f"{total // count} {'sequences' if sequences else 'rows'}"
        return f"on_policy.minibatches={count} ({each}{' on each rank' if world_size > 1 else ''})"


@dataclass(frozen=True)
@check_ranges
class OfflineConfig:
    global_batch_size: Size = 128
    """Recorded rows per update, over all ranks."""
    batch_size_per_rank: SizeOrZero = 0
    """Recorded rows per update on each rank, instead of global_batch_size; 0 uses global_batch_size."""
    place: Literal["auto", "device", "host"] = "auto"
    """Memory that holds the rows: the device, so that a batch is one gather, or the host; auto is the device if the
    rows fit into half of its free memory."""
    loader_threads: Threads = 0
    """Threads that prepare batches ahead of the updates if the rows are in host memory."""

    def refuse_device(self, reason: str) -> None:
        """Raises an error if `place` is ``device``; called for data that cannot be held on the device.

        Args:
            reason: Clause for the message that says why the device cannot hold the data.

        Raises:
            ConfigError: `place` is ``device``.
        """
        if self.place == "device":
            raise ConfigError(
                f"offline.place=device is not supported here: {reason}. Leave it out; offline.loader_threads prepares "
                f"batches ahead of the updates."
            )

    @property
    def update_rows(self) -> int:
        """Number of rows in the batch of one update if a single rank (process) trains."""
        return self.batch_size_per_rank or self.global_batch_size

    @property
    def act_rows(self) -> int:
        """Number of rows in one call of `act`: that of one update, because offline training has no environments."""
        return self.update_rows

    def batch_size_setting(self, rows: int, world_size: int, sequences: bool = False) -> str:
        """Returns the command-line setting, as "option=value", for batches of `rows` rows on each rank.

        Args:
            rows: Rows per batch on each rank.
            world_size: Number of ranks.
            sequences: Not used.
        """
        if self.batch_size_per_rank:
            return f"offline.batch_size_per_rank={rows}"
        return f"offline.global_batch_size={rows * world_size}"

    def batch(self, world_size: int) -> int:
        """Returns the number of rows per update on each of `world_size` ranks.

        Raises:
            ConfigError: The batch does not divide by the number of ranks.
        """
        return self.batch_size_per_rank or per_rank("offline.global_batch_size", self.global_batch_size, world_size)

    def check(self, world_size: int) -> None:
        """Refuses a batch that does not divide by the number of ranks, `world_size`.

        Raises:
            ConfigError: The batch does not divide.
        """
        self.batch(world_size)
