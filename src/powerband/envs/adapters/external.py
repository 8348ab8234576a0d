"""ExternalVecEnv: a vector of environments from another library behind the VecEnv protocol."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from powerband.data.types import EnvHalf, Step, Tree
from powerband.envs.adapters.spec import env_spec, nested
from powerband.envs.workers.seeds import episode_seed
from powerband.envs.workers.spaces import Spaces


class ExternalStep(NamedTuple):
    """Result of one step of N environments as numpy arrays (N, ...), one row per environment.

    Attributes:
        obs: Array or nested dict of arrays: current observations; in rows whose episode ended, the first of the next.
        reward: Rewards (N,).
        terminated: Bools (N,), True if the task ended.
        truncated: Bools (N,), True if a limit cut the episode.
        final_obs: Last observations of episodes, valid in rows whose episode ended; None if no episode ended.
        info: Further values (N, ...) by name.
    """

    obs: Any
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    final_obs: Any
    info: dict[str, Any]


class ExternalVector(Protocol):
    """Source of an `ExternalVecEnv`: N environments of another library, which it steps and resets.

    Attributes:
        num_envs: Number of environments N.
        spaces: Observation and action spaces of one environment.
        overlappable: True if the environments step in other threads or processes between `send` and `recv`.
    """

    num_envs: int
    spaces: Spaces

    @property
    def overlappable(self) -> bool: ...
    def reset(self, seeds: list[int]) -> Any:
        """Resets all environments with one seed each. Returns the observations (N, ...)."""

    def send(self, action: np.ndarray) -> None:
        """Starts a step with the actions (N, ...) of all environments."""

    def recv(self, next_seeds: Callable[[np.ndarray], list[int]]) -> ExternalStep:
        """Waits for the step, and resets the environments whose episode ended.

        Args:
            next_seeds: Function that returns one reset seed per environment for a mask (N,) bool, True for those that
                ended.
        """

    def close(self) -> None:
        """Closes the source; may be called again."""


class ExternalVecEnv:
    """N environments of another library behind the protocol `VecEnv`. Resuming a run truncates the current episodes.

    Args:
        source: Vector of environments, such as `GymnasiumVector` or `EnvPoolVector`.
        device: Device of observations, rewards and flags.
        seed: Seed of the run.
        first_env: Index of the first environment among those of all ranks (processes of the training).
        episode_metrics: Names of `info` values that ``Step.episode`` contains at the end of an episode.

    Attributes:
        resumed: (N,) bool, True for environments whose episode continued after `load_state_dict`; here always False.
    """

    def __init__(
        self,
        source: ExternalVector,
        *,
        device: torch.device | str = "cpu",
        seed: int = 0,
        first_env: int = 0,
        episode_metrics: tuple[str, ...] = (),
    ) -> None:
        self.source, self.device, self.seed, self.first_env = source, torch.device(device), seed, first_env
        self.num_envs, self.episode_metrics = source.num_envs, episode_metrics
        self.halves: tuple[EnvHalf, ...] = ()
        self.spec = env_spec(source.spaces, "truncated", source.overlappable)
        self.resumed = torch.ones(self.num_envs, dtype=torch.bool)
        self._episode = np.zeros(self.num_envs, np.int64)
        self._paths = source.spaces.obs_paths()

    def reset(self, seed: int | None = None) -> Tree:
        """Starts episode 0 of every environment.

        Args:
            seed: New seed of the run; None keeps the current one.

        Returns:
            Observations (N, ...).
        """
        self.seed = self.seed if seed is None else seed
        self._episode[:] = 0
        self._obs = self._tree(self.source.reset(self._seeds(self._episode)))
        return self._obs

    def observe(self) -> Tree:
        """Returns the current observations (N, ...)."""
        return self._obs

    def send(self, action: Tensor) -> None:
        """Starts a step with actions (N, ...); continuous actions are clipped to the bounds."""
        action = action.detach().cpu()
        if self.spec.low is not None:
            action = torch.clamp(action, self.spec.low, self.spec.high)
        spaces = self.source.spaces
        self.source.send(spaces.in_own_type(action.numpy() + spaces.action.start))

    def recv(self) -> Step:
        """Waits for the step of all environments and returns its result."""
        step = self.source.recv(lambda ended: self._seeds(self._episode + ended))
        ended = step.terminated | step.truncated
        self._episode += ended
        self._obs = self._tree(step.obs)
        return Step(
            obs=self._obs,
            reward=self._tensor(step.reward, "float32"),
            terminated=self._tensor(step.terminated, "bool"),
            truncated=self._tensor(step.truncated, "bool"),
            final_obs=None if step.final_obs is None else self._tree(step.final_obs),
            episode={name: self._metric(step.info, name, ended) for name in self.episode_metrics},
        )

    def step(self, action: Tensor) -> Step:
        """Calls `send`, then `recv`."""
        self.send(action)
        return self.recv()

    def state_dict(self) -> dict[str, Any]:
        """Returns the seed, and the index of the current episode of each environment."""
        return {"seed": self.seed, "episode": torch.from_numpy(self._episode.copy())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Starts the episode after the saved one in every environment."""
        self.seed = state["seed"]
        self._episode = state["episode"].numpy() + 1
        self._obs = self._tree(self.source.reset(self._seeds(self._episode)))
        self.resumed = torch.zeros(self.num_envs, dtype=torch.bool)
        warnings.warn(
            f"The {self.num_envs} episodes that ran at the checkpoint were truncated, because these environments "
            f"cannot restore a state. New episodes have begun.",
            stacklevel=2,
        )

    def worker_statistics(self) -> dict[str, Any]:
        """Returns no measurements, because the source has no worker processes."""
        return {}

    def close(self) -> None:
        """Closes the source; may be called again."""
        self.source.close()

    def _seeds(self, episode: np.ndarray) -> list[int]:
        """Computes one reset seed per environment for the indices (N,) of their episodes."""
        return [episode_seed(self.seed, self.first_env + row, int(index)) for row, index in enumerate(episode)]

    def _tree(self, obs: Any) -> Tree:
        """Converts observations to tensors on the device, with discrete values counted from 0."""
        leaves = []
        for path, leaf in self._paths:
            value = obs
            for key in path:
                value = value[key]
            value = np.asarray(value) - leaf.start if leaf.start else value
            leaves.append((path, self._tensor(value, leaf.dtype)))
        return nested(leaves)

    def _tensor(self, array: Any, dtype: str) -> Tensor:
        """Copies an array, because sources may reuse it. For few rows, numpy copies faster than torch."""
        return torch.from_numpy(np.array(array, dtype, order="C")).to(self.device)

    def _metric(self, info: dict[str, Any], name: str, ended: np.ndarray) -> Tensor:
        if name not in info:
            assert not ended.any(), f"metric {name!r} is not in the info of an episode that ended: {sorted(info)}"
            return torch.zeros(self.num_envs, device=self.device)
        return self._tensor(info[name], "float32")
