"""Evaluation: plays episodes with a policy, and computes confidence intervals of the results."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from powerband.core.errors import ConfigError
from powerband.data.types import Tree, VecEnv, broadcast_rows

Policy = Callable[[Tree, Tensor | None], tuple[Tensor, Tensor | None]]
"""Function (observations, recurrent state or None) -> (actions, next recurrent state or None)."""
MAX_LOST = 10
"""Failures of the simulator of one environment, in as many episodes in a row, after which the evaluation ends."""
MAX_STEPS = 100_000
"""Steps without an end of an episode after which the evaluation ends, if the environment has no time limit."""


def evaluate(
    env: VecEnv,
    policy: Policy,
    episodes: int,
    seed: int,
    carry: Tensor | None = None,
    on_progress: Callable[[float], object] | None = None,
) -> dict[str, Tensor]:
    """Plays episodes with a policy, and returns the result of each episode.

    Every environment plays the same number of episodes, so that short episodes are not favoured. An episode whose
    simulator fails is no result; its environment plays another one.

    Args:
        env: N environments; this function resets them.
        policy: Function (observations, carry) -> (actions, next carry), which should not explore.
        episodes: Number of episodes, rounded up to a multiple of N.
        seed: Seed of the environments.
        carry: Initial recurrent state (N, ...) of the policy; None for a policy without recurrent state.
        on_progress: Called at each step with the number of episodes played, including fractions of unfinished episodes;
            None calls nothing.

    Returns:
        Dict of tensors (episodes,) with one entry per episode, in the order in which they ended: ``env`` (index of the
        environment), ``return`` (sum of rewards, mean over agents), ``length`` in steps, and the episode metrics of
        the environment, such as ``success``.

    Raises:
        ConfigError: The simulator of an environment failed in MAX_LOST episodes in a row, or an episode without a time
            limit did not end within MAX_STEPS steps.
    """
    rounds = math.ceil(episodes / env.num_envs)
    obs = env.reset(seed)
    index = torch.arange(env.num_envs)
    finished = torch.zeros(env.num_envs, dtype=torch.int64)
    total = torch.zeros(env.num_envs)
    length = torch.zeros(env.num_envs)
    lost = torch.zeros(env.num_envs, dtype=torch.int64)
    rows: dict[str, list[Tensor]] = {}
    while int(finished.min()) < rounds:
        action, carry = policy(obs, carry)
        step = env.step(action)
        reward = step.reward.cpu()
        total += reward if reward.dim() == 1 else reward.mean(1)
        length += 1
        ended = step.ended.cpu()
        complete = ended if step.lost is None else ended & ~step.lost.cpu()
        lost = torch.where(complete, 0, lost + (ended & ~complete))
        if int(lost.max()) >= MAX_LOST:
            raise ConfigError(
                f"Environment {int(lost.argmax())} cannot be evaluated: its simulator failed in {MAX_LOST} episodes "
                f"in a row. Correct the environment. The function reproduce_failure in "
                f"powerband.envs.workers.supervision repeats an episode that failed."
            )
        if env.spec.max_episode_steps is None and int(length.max()) > MAX_STEPS:
            raise ConfigError(
                f"Environment {int(length.argmax())} cannot be evaluated: its episode did not end within "
                f"{MAX_STEPS:,} steps, and it has no time limit. Register the environment with max_episode_steps."
            )
        counted = complete & (finished < rounds)
        if counted.any():
            figures = {
                "env": index,
                "return": total,
                "length": length,
                **{key: value.cpu() for key, value in step.episode.items()},
            }
            for key, value in figures.items():
                rows.setdefault(key, []).append(value[counted].clone())
        finished += complete
        total[ended] = 0
        length[ended] = 0
        if on_progress is not None:
            unfinished = length / env.spec.max_episode_steps if env.spec.max_episode_steps else 0
            on_progress(float((finished + unfinished).clamp(max=rounds).sum()))
        if carry is not None:
            carry = carry * broadcast_rows(~step.ended, carry)
        obs = step.obs
    return {key: torch.cat(parts) for key, parts in rows.items()}


def wilson_interval(successes: float, trials: int, z: float = 1.96) -> tuple[float, float]:
    """Returns (low, high), the Wilson score interval of a success rate; both are 0 to 1.

    The interval is also valid if none or all trials succeed. Source: Wilson 1927.

    Args:
        successes: Number of successful trials.
        trials: Number of trials; the interval of 0 trials is 0 to 1.
        z: Quantile of the standard normal distribution; 1.96 gives 95 % confidence.
    """
    if trials == 0:
        return 0.0, 1.0
    share = successes / trials
    centre = (share + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials)) / (1 + z * z / trials)
    return max(0.0, centre - half), min(1.0, centre + half)


def mean_interval(values: Tensor, z: float = 1.96) -> tuple[float, float, float]:
    """Returns (mean, low, high): the mean of n independent values and its normal confidence interval.

    Args:
        values: Values (n,). With a single value, low and high are NaN.
        z: Half the width of the interval in standard errors; 1.96 gives 95 % confidence.
    """
    values = values.double()
    mean = float(values.mean())
    half = z * float(values.std()) / math.sqrt(len(values)) if len(values) > 1 else float("nan")
    return mean, mean - half, mean + half
