"""SettledVecEnv: a foreign vector source, its autoreset settled, behind the VecEnv protocol."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from powerband.data.types import Step, Tree
from powerband.envs.seeds import episode_seed
from powerband.envs.spaces import Spaces
from powerband.envs.spec import env_spec, nested


class Settled(NamedTuple):
    """One settled step as numpy arrays (N, ...): `obs` to act on next, `final_obs` None where no row ended."""

    obs: Any
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    final_obs: Any
    info: dict[str, Any]


class Source(Protocol):
    """What `SettledVecEnv` stands on: a vector source whose steps are settled."""

    num_envs: int
    spaces: Spaces
    overlappable: bool

    def reset(self, seeds: list[int]) -> Any: ...
    def send(self, action: np.ndarray) -> None: ...
    def recv(self, next_seeds: Callable[[np.ndarray], list[int]]) -> Settled: ...
    def close(self) -> None: ...


class SettledVecEnv:
    """A settled source behind the VecEnv protocol. A resume ends its live episodes as truncations.

    Args:
        source: `GymnasiumSource` or `PoolSource`.
        device: Where observations are delivered.
        seed: Seed of the run.
        first_env: Global index of the first environment.
        figures: Names of `info` values at the end of an episode that are reported in ``Step.episode``.

    Attributes:
        resumed: (N,) bool: after `load_state_dict`, the rows whose live episode goes on: none.
    """

    def __init__(
        self,
        source: Source,
        *,
        device: torch.device | str = "cpu",
        seed: int = 0,
        first_env: int = 0,
        figures: tuple[str, ...] = (),
    ) -> None:
        self.source, self.device, self.seed, self.first_env = source, torch.device(device), seed, first_env
        self.num_envs, self.figures = source.num_envs, figures
        self.spec = env_spec(source.spaces, "truncated", source.overlappable)
        self.resumed = torch.ones(self.num_envs, dtype=torch.bool)
        self._episode = np.zeros(self.num_envs, np.int64)
        self._paths = source.spaces.obs_paths()

    def reset(self, seed: int | None = None) -> Tree:
        """Starts episode 0 of every environment under `seed` (None: the seed it has). Returns obs (N, ...)."""
        self.seed = self.seed if seed is None else seed
        self._episode[:] = 0
        self._obs = self._tree(self.source.reset(self._seeds(self._episode)))
        return self._obs

    def observe(self) -> Tree:
        """Tree (N, ...): what to act on next."""
        return self._obs

    def send(self, action: Tensor) -> None:
        """Hands over actions (N, ...), clipped to ``spec.low .. spec.high`` where they are continuous."""
        action = action.detach().cpu()
        if self.spec.low is not None:
            action = torch.clamp(action, self.spec.low, self.spec.high)
        spaces = self.source.spaces
        self.source.send((action.numpy() + spaces.action.start).astype(spaces.action_dtype))

    def recv(self) -> Step:
        """Waits for all environments; every row is a real transition."""
        settled = self.source.recv(lambda ended: self._seeds(self._episode + ended))
        ended = settled.terminated | settled.truncated
        self._episode += ended
        self._obs = self._tree(settled.obs)
        return Step(
            obs=self._obs,
            reward=self._tensor(settled.reward, "float32"),
            terminated=self._tensor(settled.terminated, "bool"),
            truncated=self._tensor(settled.truncated, "bool"),
            final_obs=None if settled.final_obs is None else self._tree(settled.final_obs),
            episode={name: self._figure(settled.info, name, ended) for name in self.figures},
        )

    def step(self, action: Tensor) -> Step:
        """`send`, then `recv`."""
        self.send(action)
        return self.recv()

    def state_dict(self) -> dict:
        """Which episode every environment is in."""
        return {"seed": self.seed, "episode": torch.from_numpy(self._episode.copy())}

    def load_state_dict(self, state: dict) -> None:
        """Begins the episode after the saved one in every environment; `observe` gives what to act on."""
        self.seed = state["seed"]
        self._episode = state["episode"].numpy() + 1
        self._obs = self._tree(self.source.reset(self._seeds(self._episode)))
        self.resumed = torch.zeros(self.num_envs, dtype=torch.bool)
        warnings.warn(
            f"{self.num_envs} live episodes end as truncations: this source cannot take them up.",
            stacklevel=2,
        )

    def close(self) -> None:
        """Closes the source; may be called again."""
        self.source.close()

    def _seeds(self, episode: np.ndarray) -> list[int]:
        return [episode_seed(self.seed, self.first_env + row, int(index)) for row, index in enumerate(episode)]

    def _tree(self, obs: Any) -> Tree:
        leaves = []
        for path, leaf in self._paths:
            value = obs
            for key in path:
                value = value[key]
            value = np.asarray(value) - leaf.start if leaf.start else value
            leaves.append((path, self._tensor(value, leaf.dtype)))
        return nested(leaves)

    def _tensor(self, array: Any, dtype: str) -> Tensor:
        """A copy: sources may write into their arrays again. Of few rows numpy makes one sooner than torch."""
        return torch.from_numpy(np.array(array, dtype, order="C")).to(self.device)

    def _figure(self, info: dict[str, Any], name: str, ended: np.ndarray) -> Tensor:
        if name not in info:
            assert not ended.any(), f"figure {name!r} is not in the info of an episode that ended: {sorted(info)}"
            return torch.zeros(self.num_envs, device=self.device)
        return self._tensor(info[name], "float32")
