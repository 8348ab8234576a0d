"""Creates one environment from its id. This file imports no torch, because worker processes import it."""

from __future__ import annotations

import difflib
import importlib
import re
from collections.abc import Mapping
from typing import Any

from powerband.core.config.texts import shortened
from powerband.core.errors import ConfigError
from powerband.envs.adapters.wrapping import Wrapping

ID = re.compile(r"(?:[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:)?[^:]+")
PARALLEL = ":parallel_env"
"""Ending of the id of a PettingZoo environment: the function of its module that creates it."""


def make_gym(env_id: str, wrapping: Wrapping | None = None, env_kwargs: Mapping[str, Any] | None = None) -> Any:
    """Creates one environment, and wraps it.

    Args:
        env_id: A Gymnasium id such as "Pendulum-v1", "module:EnvId-v0" if importing the module registers the id, or
            "module:parallel_env" for a parallel environment of PettingZoo.
        wrapping: Wrappers around the environment; None for none.
        env_kwargs: Keyword arguments of the environment, any names; None for none.

    Raises:
        ConfigError: The id is malformed or unknown, an argument or a wrapper is not supported, or a package is not
            installed.
    """
    if not ID.fullmatch(env_id):
        raise ConfigError(
            f"env_id={shortened(env_id)} is not an id. Write EnvId-v0, 'module:EnvId-v0', or 'module:parallel_env'."
        )
    wrapping, arguments = wrapping or Wrapping(), dict(env_kwargs or {})
    if wrapping.atari:
        arguments = {"frameskip": 1, **arguments}  # the wrapper repeats actions itself
    create = _parallel if env_id.endswith(PARALLEL) else _registered
    try:
        env = create(env_id, arguments)
    except TypeError as error:
        if "argument" not in str(error):
            raise
        if wrapping.atari and "frameskip" in str(error):
            raise ConfigError(
                f"wrap.atari=true needs a game of ALE, such as ALE/Pong-v5, but env_id={env_id!r} is another "
                f"environment ({error}). Leave wrap.atari out."
            ) from error
        raise ConfigError(
            f"env_id={env_id!r} does not accept env_kwargs={arguments}: {error}. Remove that argument."
        ) from error
    try:
        return wrapping.apply(env)
    except BaseException:
        env.close()
        raise


def _parallel(env_id: str, env_kwargs: dict[str, Any]) -> Any:
    """Creates the PettingZoo environment "module:parallel_env"."""
    from powerband.envs.adapters.parallel_env import ParallelAgents

    module, name = env_id.split(":")
    try:
        create = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as missing:
        raise ConfigError(
            f"env_id={env_id!r} cannot be imported: {missing}. Write module:parallel_env, for example "
            f"pettingzoo.butterfly.pistonball_v6:parallel_env, and install the package of the module."
        ) from missing
    return ParallelAgents(create(**env_kwargs))


def _registered(env_id: str, env_kwargs: dict[str, Any]) -> Any:
    """Creates the environment with a Gymnasium id. The ids of Atari games need no module."""
    import gymnasium
    from gymnasium import error

    if env_id.startswith("ALE/"):
        env_id = f"ale_py:{env_id}"
    try:
        return gymnasium.make(env_id, disable_env_checker=True, **env_kwargs)
    except (error.DependencyNotInstalled, ModuleNotFoundError) as missing:
        module = env_id.partition(":")[0]
        cause = missing.__cause__ or missing
        if ":" in env_id and getattr(cause, "name", None) == module.partition(".")[0]:
            raise ConfigError(
                f"env_id={env_id!r}: Python finds no module {module}. Install its package. If it is a file of your "
                f"own, write PYTHONPATH=FOLDER before the command, with the folder of {module.partition('.')[0]}.py."
            ) from missing
        raise ConfigError(
            f"env_id={env_id!r} needs a package that is not installed: {missing}. "
            f"Install it, or powerband[gym] for the environments of Gymnasium. For a module of your own, add its "
            f"folder to PYTHONPATH; the current folder is searched with PYTHONPATH=. only."
        ) from missing
    except error.Error as unknown:
        near = difflib.get_close_matches(env_id.rpartition(":")[2], list(gymnasium.registry), n=3, cutoff=0.5)
        raise ConfigError(
            f"env_id={env_id!r} is not registered with Gymnasium ({unknown}). Nearest: {', '.join(near) or 'none'}. "
            f"For your own environment, write 'module:EnvId-v0'; importing `module` must register it."
        ) from unknown
