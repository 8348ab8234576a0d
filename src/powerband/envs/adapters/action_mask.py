"""ActionMask: adds the mask of allowed discrete actions to the observation of a Gymnasium environment."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from powerband.core.errors import ConfigError


class ActionMask(gymnasium.Wrapper):
    """Environment whose observations have the entry ``action_mask``, (K,) int8, 1 for each allowed one of K actions.

    The mask of a MultiDiscrete action has the choices of all its entries one after the other, as in SB3-Contrib.

    The mask comes from the method ``action_masks()`` of the environment, as in SB3-Contrib, or from
    ``info["action_mask"]``, as in Gymnasium's Taxi. An observation that is not a dict becomes the entry ``obs``.

    Raises:
        ConfigError: The actions are not discrete, or, at the first reset, the environment provides no mask.
    """

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        if not isinstance(env.action_space, spaces.Discrete | spaces.MultiDiscrete):
            raise ConfigError(
                f"wrap.action_mask needs discrete actions; {env} has {env.action_space}. Write wrap.action_mask=false."
            )
        self._method = env.get_wrapper_attr("action_masks") if env.has_wrapper_attr("action_masks") else None
        observed = env.observation_space
        self._is_dict = isinstance(observed, spaces.Dict)
        entries = dict(observed.spaces) if isinstance(observed, spaces.Dict) else {"obs": observed}
        acting = env.action_space
        self._width = int(acting.n if isinstance(acting, spaces.Discrete) else acting.nvec.sum())
        self.observation_space = spaces.Dict({**entries, "action_mask": spaces.MultiBinary(self._width)})

    def reset(self, **settings: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Resets the environment. Returns the observation with the mask, and the info."""
        obs, info = self.env.reset(**settings)
        return self._with_mask(obs, info), info

    def step(self, action: Any) -> tuple[dict[str, Any], Any, bool, bool, dict[str, Any]]:
        """Steps the environment. Returns the usual five values; the observation contains the mask."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        return self._with_mask(obs, info), reward, terminated, truncated, info

    def _with_mask(self, obs: Any, info: dict[str, Any]) -> dict[str, Any]:
        if self._method is None and "action_mask" not in info:
            raise ConfigError(
                f"wrap.action_mask=true, but {self.env} has neither the method action_masks() nor "
                f"info['action_mask']. Add one of them to the environment, or write wrap.action_mask=false."
            )
        mask = np.asarray(info["action_mask"] if self._method is None else self._method(), np.int8)
        if mask.shape != (self._width,):
            raise ConfigError(
                f"The action mask of {self.env} has the shape {mask.shape}. Return one entry per choice: "
                f"({self._width},)."
            )
        return {**(obs if self._is_dict else {"obs": obs}), "action_mask": mask}
