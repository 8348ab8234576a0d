"""EnvGoalReward: the reward function of a Gymnasium goal environment, for hindsight relabelling."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from powerband.core.errors import ConfigError

GOALS = ("achieved_goal", "desired_goal")
ROWS = 3
"""Goals with which the functions are tried."""


class EnvGoalReward:
    """Calls ``compute_reward(achieved, desired, info)`` of an environment for many transitions at once.

    If the environment also has ``compute_terminated`` and it answers per transition, relabelled transitions get its
    answers; otherwise they keep their ends.

    Args:
        env: Wrapped environment, as in training. It is reset a few times and makes one step, and stays open.

    Raises:
        ConfigError: The observations have no goals, or the environment has no such function, or the function does not
            accept several goals at once, or a step has another reward than the function computes.
    """

    def __init__(self, env: Any) -> None:
        from gymnasium import spaces

        space = env.observation_space
        if not isinstance(space, spaces.Dict) or any(name not in space.spaces for name in GOALS):
            raise _refusal(f"the observation space is {space}, without {' and '.join(GOALS)}")
        if not env.has_wrapper_attr("compute_reward"):
            raise _refusal("the environment has no method compute_reward(achieved_goal, desired_goal, info)")
        self.dtype = space[GOALS[0]].dtype
        self._reward = env.get_wrapper_attr("compute_reward")
        has_ends = env.has_wrapper_attr("compute_terminated")
        self._terminated = env.get_wrapper_attr("compute_terminated") if has_ends else None
        found = [env.reset(seed=seed)[0] for seed in range(ROWS)]
        achieved, desired = (np.stack([np.asarray(obs[name]) for obs in found]) for name in GOALS)
        # Achieved goals are mixed in, so that some rewards differ.
        desired[0] = achieved[0]
        try:
            together = np.asarray(self._reward(achieved, desired, {}), np.float64)
            each = np.array([float(self._reward(a, d, {})) for a, d in zip(achieved, desired, strict=True)])
            ends = None if self._terminated is None else self._terminated(achieved, desired, {})
        except Exception as error:
            raise _refusal(f"compute_reward or compute_terminated raised {type(error).__name__}: {error}") from error
        if together.shape != (ROWS,) or not np.allclose(together, each, rtol=1e-4, atol=1e-6):
            raise _refusal(
                f"compute_reward is not vectorised: for {ROWS} pairs of goals it returned {together.tolist()}, and "
                f"{each.tolist()} for each pair alone"
            )
        if np.asarray(ends).shape != (ROWS,):
            self._terminated = None
        self._check_step(env)

    def _check_step(self, env: Any) -> None:
        """Refuses an environment whose steps have other rewards than its function, for example those of a wrapper."""
        obs, _ = env.reset(seed=0)
        mask = obs.get("action_mask")
        env.action_space.seed(0)
        obs, reward, *_ = env.step(env.action_space.sample(None if mask is None else np.asarray(mask, np.int8)))
        computed = float(self._reward(*(obs[name] for name in GOALS), {}))
        if not np.isclose(float(reward), computed, rtol=1e-4, atol=1e-6):
            raise ConfigError(
                f"off_policy.hindsight does not suit {env}: a step had the reward {float(reward):g}, but "
                f"compute_reward returns {computed:g} for its goals, so that a batch would mix two kinds of rewards. "
                f"Leave out the wrapper that changes the reward, or change compute_reward with it, or write "
                f"off_policy.hindsight=0."
            )

    def __call__(self, achieved: Tensor, desired: Tensor) -> tuple[Tensor, Tensor | None]:
        """Computes rewards (B,) and ends (B,), None without ``compute_terminated``, of goals (B, ...)."""
        goals = [tensor.cpu().numpy().astype(self.dtype) for tensor in (achieved, desired)]
        reward = torch.as_tensor(np.asarray(self._reward(*goals, {}), np.float32)).to(achieved.device)
        if self._terminated is None:
            return reward, None
        return reward, torch.as_tensor(np.asarray(self._terminated(*goals, {}), np.bool_)).to(achieved.device)


def _refusal(reason: str) -> ConfigError:
    return ConfigError(
        f"off_policy.hindsight needs a goal environment with a vectorised compute_reward, but {reason}. Add it, as in "
        f"gymnasium-robotics, or write off_policy.hindsight=0."
    )
