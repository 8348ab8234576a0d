"""Wrapping: the wrappers around a Gymnasium environment, as settings. This file imports no torch (worker processes).

The wrappers are those of Gymnasium. They are applied in the order of the fields of `Wrapping`.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Annotated, Any

from powerband.core.config.ranges import Frames, Range, ShareBelowOne, check_ranges
from powerband.core.errors import ConfigError

ATARI_SCREEN = 84
"""Side of the frames that `atari` produces, in pixels."""


@dataclass(frozen=True)
@check_ranges
class Wrapping:
    """Settings that choose the Gymnasium wrappers of the training and the evaluation environments."""

    atari: bool = False
    """Atari preprocessing (Machado et al. 2018): up to 30 no-op actions after a reset, 4 repeats of each action, grey
    frames of 84 x 84 pixels."""
    sticky_actions: ShareBelowOne = 0.0
    """Probability that the environment repeats the previous action instead of the chosen one."""
    action_repeat: Annotated[int, Range(at_least=1, at_most=10_000)] = 1
    """Steps of the environment per action; their rewards are added."""
    image_size: Annotated[int, Range(at_least=0, at_most=4096)] = 0
    """Side to which images are resized, in pixels; 0 keeps their size."""
    grayscale: bool = False
    """Convert RGB images to grey images."""
    wrappers: tuple[str, ...] = ()
    """Your own wrappers as module:Name, the innermost first. Each is called with the environment."""
    time_aware: bool = False
    """Add the elapsed share of the time limit to the observation."""
    frame_stack: Frames = 1
    """Newest observations that one observation contains."""
    action_mask: bool = False
    """Add the mask of allowed actions to the observation, from the method action_masks() of the environment or from
    the entry action_mask of its info."""

    def apply(self, env: Any) -> Any:
        """Wraps a Gymnasium environment.

        Raises:
            ConfigError: A wrapper does not suit the environment, or cannot be imported.
        """
        from gymnasium import wrappers

        from powerband.envs.workers.spaces import steps_per_action  # imports NumPy, and this file serves the help

        has_agents = getattr(getattr(env, "unwrapped", env), "num_agents", None) is not None
        if self.atari:
            env = _wrapped("wrap.atari", wrappers.AtariPreprocessing, env, screen_size=ATARI_SCREEN)
        if self.sticky_actions:
            env = wrappers.StickyAction(env, self.sticky_actions)
        if self.action_repeat > 1:
            if has_agents:
                raise ConfigError(
                    f"wrap.action_repeat={self.action_repeat} does not suit {env}, whose agents have a reward each: it "
                    f"supports one reward per step. Write wrap.action_repeat=1."
                )
            env = wrappers.RepeatAction(env, self.action_repeat)
        if self.image_size:
            size = (self.image_size, self.image_size)
            env = _wrapped("wrap.image_size", wrappers.ResizeObservation, env, size)
        if self.grayscale:
            env = _wrapped("wrap.grayscale", wrappers.GrayscaleObservation, env)
        for name in self.wrappers:
            env = _wrapped(f"wrap.wrappers={name}", _imported(name), env)
        if self.time_aware:
            settings = {"flatten": False, "normalize_time": True}
            env = _wrapped("wrap.time_aware", wrappers.TimeAwareObservation, env, **settings)
            env.max_timesteps = -(-env.max_timesteps // steps_per_action(env))  # it counts actions, the limit steps
        if self.frame_stack > 1:
            if has_agents:
                raise ConfigError(
                    f"wrap.frame_stack={self.frame_stack} does not suit {env}, whose observations begin with an agent "
                    f"axis: stacked frames would take its place. Write wrap.frame_stack=1, and stack the frames of "
                    f"each agent inside the environment, for PettingZoo with frame_stack_v1 of the package supersuit."
                )
            env = _wrapped("wrap.frame_stack", wrappers.FrameStackObservation, env, self.frame_stack)
        if self.action_mask:
            from powerband.envs.adapters.action_mask import ActionMask

            env = ActionMask(env)
        self._check_masks(env)
        return env

    def _check_masks(self, env: Any) -> None:
        """Refuses repeated actions in an environment with action masks, because a new mask may exclude them.

        Raises:
            ConfigError: `sticky_actions` or `action_repeat` is set, and the observations contain a mask.
        """
        from gymnasium.spaces import Dict

        if not isinstance(env.observation_space, Dict) or "action_mask" not in env.observation_space.spaces:
            return
        for name, value, off in (("sticky_actions", self.sticky_actions, 0), ("action_repeat", self.action_repeat, 1)):
            if value > off:
                raise ConfigError(
                    f"wrap.{name}={value:g} does not suit {env}, whose action masks change with each step: it would "
                    f"repeat actions that the newest mask excludes. Write wrap.{name}={off}, or train without masks."
                )


def _wrapped(option: str, wrapper: Any, env: Any, *arguments: Any, **settings: Any) -> Any:
    """Returns ``wrapper(env, ...)``; an exception becomes a ConfigError that names `option`."""
    from gymnasium.error import DependencyNotInstalled

    try:
        return wrapper(env, *arguments, **settings)
    except DependencyNotInstalled as missing:
        raise ConfigError(
            f"{option} needs a package that is not installed: {missing}. Install it with pip."
        ) from missing
    except (AssertionError, AttributeError, TypeError, ValueError) as error:
        detail = str(error) or type(error).__name__
        raise ConfigError(f"{option} does not suit {env}: {detail}. Leave {option.partition('=')[0]} out.") from error


def _imported(name: str) -> Any:
    """Imports ``module:Name``.

    Raises:
        ConfigError: The name has another form, or the module or its attribute does not exist.
    """
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"wrap.wrappers={name} cannot be imported: {error}. Write module:Name, for example "
            f"gymnasium.wrappers:ClipAction, and install the module or add its folder to PYTHONPATH."
        ) from error
