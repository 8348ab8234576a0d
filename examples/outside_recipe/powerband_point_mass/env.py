"""PointMassEnv: many point masses that are stepped together as tensors.

The rows follow the `VecEnv` protocol of powerband: `recv` starts a new episode in each row that ended, and returns the
last observation of the old episode in `final_obs`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from powerband.core.noise import Noise
from powerband.data.types import EnvHalf, EnvSpec, Step, TensorSpec

REACHED = 0.1
"""Distance at which the goal counts as reached."""


class PointMassEnv:
    """N points in the square [-1, 1]^2 that move towards a goal.

    Observations are the position and the vector to the goal, (N, 4). Actions are velocities (N, 2) in [-1, 1]. The
    reward is minus the distance per step, and 1 for reaching the goal, which ends the episode.

    Args:
        num_envs: Number of points N.
        horizon: Steps of an episode.
        speed: Distance per step at full velocity.
        seed: Seed of positions and goals.
        first_env: Global index of the first row; rows draw by their global index, whatever rank they are on.
        device: Device of all tensors.
    """

    halves: Sequence[EnvHalf] = ()

    def __init__(
        self,
        num_envs: int,
        horizon: int = 50,
        speed: float = 0.1,
        seed: int = 0,
        first_env: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        self.num_envs, self.horizon, self.speed = num_envs, horizon, speed
        self.device = torch.device(device)
        bound = torch.ones(2)
        self.spec = EnvSpec(
            obs=TensorSpec((4,)),
            action=TensorSpec((2,)),
            low=-bound,
            high=bound,
            max_episode_steps=horizon,
            resume="exact",
        )
        self.resumed = torch.ones(num_envs, dtype=torch.bool)
        self._ids = torch.arange(first_env, first_env + num_envs)
        self._position = torch.zeros(num_envs, 2, device=self.device)
        self._goal = torch.zeros(num_envs, 2, device=self.device)
        self._steps = torch.zeros(num_envs, dtype=torch.int64, device=self.device)
        self._action = torch.zeros(num_envs, 2, device=self.device)
        self._set_seed(seed)

    def _set_seed(self, seed: int) -> None:
        self._seed, self._noise = seed, Noise(seed, "point-mass/episode", self._ids, self.device)

    def reset(self, seed: int | None = None) -> Tensor:
        """Starts a new episode in every row and returns the observations (N, 4)."""
        if seed is not None:
            self._set_seed(seed)
        self.resumed.fill_(True)
        self._begin(torch.ones(self.num_envs, dtype=torch.bool, device=self.device))
        return self.observe()

    def observe(self) -> Tensor:
        """Current observations (N, 4)."""
        return torch.cat([self._position, self._goal - self._position], 1)

    def send(self, action: Tensor) -> None:
        """Accepts the velocities (N, 2) of the next step."""
        if action.shape != (self.num_envs, 2):
            raise ValueError(f"The action has shape {tuple(action.shape)}; expected ({self.num_envs}, 2).")
        self._action = action

    def recv(self) -> Step:
        """Moves every point and starts new episodes where one ended."""
        self._position = (self._position + self.speed * self._action.clamp(-1, 1)).clamp(-1, 1)
        self._steps += 1
        distance = (self._goal - self._position).norm(dim=1)
        terminated = distance < REACHED
        truncated = ~terminated & (self._steps >= self.horizon)
        ended = terminated | truncated
        final = self.observe() if bool(ended.any()) else None
        self._begin(ended)
        return Step(
            obs=self.observe(),
            reward=terminated.float() - 0.1 * distance,
            terminated=terminated,
            truncated=truncated,
            final_obs=final,
            episode={"success": terminated.float()},
        )

    def step(self, action: Tensor) -> Step:
        """Calls `send`, then `recv`."""
        self.send(action)
        return self.recv()

    def _begin(self, rows: Tensor) -> None:
        """Draws position and goal of `rows` (N,) bool; every row draws at every step, so that ranks agree."""
        draws = 2 * self._noise.uniform(4) - 1
        self._position = torch.where(rows.unsqueeze(1), draws[:, :2], self._position)
        self._goal = torch.where(rows.unsqueeze(1), draws[:, 2:], self._goal)
        self._steps.masked_fill_(rows, 0)

    def worker_statistics(self) -> dict[str, Any]:
        """Empty: the environments step in this process."""
        return {}

    def state_dict(self) -> dict:
        return {
            "position": self._position,
            "goal": self._goal,
            "steps": self._steps,
            "seed": self._seed,
            "noise": self._noise.state_dict(),
        }

    def load_state_dict(self, state: dict) -> None:
        """Restores `state_dict`; live episodes continue exactly."""
        self._position, self._goal = state["position"].to(self.device), state["goal"].to(self.device)
        self._steps.copy_(state["steps"])
        self._set_seed(int(state["seed"]))
        self._noise.load_state_dict(state["noise"])
        self.resumed.fill_(True)

    def close(self) -> None:
        """Does nothing: there are no processes to end."""
