"""ParallelAgents: a PettingZoo parallel environment as one Gymnasium environment with an agent axis."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from powerband.core.errors import ConfigError


class ParallelAgents(gymnasium.Env):
    """A parallel environment of PettingZoo whose A agents have equal spaces.

    Observations, actions and rewards have an agent axis, in the order of ``possible_agents``. An agent that has left
    the episode observes zeros, gets the reward 0, and its action is ignored. The episode terminates when every agent
    has terminated. It is truncated when no agent is left and at least one of them was truncated.

    Args:
        env: Object with the interface of ``pettingzoo.ParallelEnv``.

    Attributes:
        num_agents: Number of agents, A.

    Raises:
        ConfigError: The agents have different spaces, or spaces that cannot be stacked.
    """

    def __init__(self, env: Any) -> None:
        self.env, self.agents, self.metadata = env, list(env.possible_agents), env.metadata
        self.num_agents = len(self.agents)
        observed, acting = (
            [space(agent) for agent in self.agents] for space in (env.observation_space, env.action_space)
        )
        if any(space != observed[0] for space in observed) or any(space != acting[0] for space in acting):
            differing = dict(zip(self.agents, zip(observed, acting, strict=True), strict=True))
            raise ConfigError(
                f"The agents of {env} need equal spaces, but these differ: {differing}. Pad them, for example with "
                f"pad_observations_v0 and pad_action_space_v0 of the package supersuit."
            )
        self.observation_space = self._stacked_space(observed[0])
        self.action_space = self._stacked_actions(acting[0])
        self._zero = _zeros(observed[0])

    def _stacked_space(self, space: Any) -> Any:
        if isinstance(space, spaces.Dict):
            return spaces.Dict({key: self._stacked_space(part) for key, part in space.items()})
        if isinstance(space, spaces.Box):
            shape = (self.num_agents, *([1] * len(space.shape)))
            return spaces.Box(np.tile(space.low, shape), np.tile(space.high, shape), dtype=space.dtype)
        if isinstance(space, spaces.Discrete) and space.start == 0:
            return spaces.MultiDiscrete([int(space.n)] * self.num_agents)
        raise ConfigError(
            f"An agent's observation space {space} is not supported. Supported are Box, Discrete and Dict. Convert it "
            f"with a wrapper of the package supersuit."
        )

    def _stacked_actions(self, space: Any) -> Any:
        if isinstance(space, spaces.Discrete) and space.start == 0:
            return spaces.MultiDiscrete([int(space.n)] * self.num_agents)
        if isinstance(space, spaces.Box):
            return self._stacked_space(space)
        raise ConfigError(
            f"An agent's action space {space} is not supported. Supported are Discrete and Box. Convert it with a "
            f"wrapper of the package supersuit."
        )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Starts an episode. Returns the observations of all agents (A, ...), and an empty info."""
        super().reset(seed=seed)  # wrappers such as sticky actions draw from the generator of this environment
        obs, _ = self.env.reset(seed=seed, options=options)
        self._left = dict.fromkeys(self.agents, False)
        return self._stacked(obs), {}

    def step(self, action: Any) -> tuple[Any, np.ndarray, bool, bool, dict[str, Any]]:
        """Steps all agents with actions (A, ...).

        Returns:
            Observations (A, ...), rewards (A,) float32, terminated, truncated, and an empty info.
        """
        present = set(self.env.agents)
        chosen = {agent: action[index] for index, agent in enumerate(self.agents) if agent in present}
        obs, reward, terminated, truncated, _ = self.env.step(chosen)
        for agent in present:
            self._left[agent] |= bool(truncated.get(agent, False)) and not terminated.get(agent, False)
        over = not self.env.agents
        cut = any(self._left.values())
        rewards = np.array([reward.get(agent, 0.0) for agent in self.agents], np.float32)
        return self._stacked(obs), rewards, over and not cut, over and cut, {}

    def render(self) -> Any:
        """Renders the environment as PettingZoo does."""
        return self.env.render()

    def close(self) -> None:
        """Closes the environment."""
        self.env.close()

    def _stacked(self, obs: dict[str, Any]) -> Any:
        return _stack([obs.get(agent, self._zero) for agent in self.agents])


def _stack(parts: list[Any]) -> Any:
    if isinstance(parts[0], dict):
        return {key: _stack([part[key] for part in parts]) for key in parts[0]}
    return np.stack([np.asarray(part) for part in parts])


def _zeros(space: Any) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _zeros(part) for key, part in space.items()}
    return np.zeros(space.shape, space.dtype)
