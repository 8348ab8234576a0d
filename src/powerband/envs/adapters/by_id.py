"""Creates one Gymnasium environment from its id. This file imports no torch, because worker processes import it."""

from __future__ import annotations

import difflib
from typing import Any

from powerband.core.errors import ConfigError


def make_gym(env_id: str, **env_kwargs: Any) -> Any:
    """Creates one Gymnasium environment.

    Args:
        env_id: An id such as "Pendulum-v1", or "module:EnvId-v0" if importing the module registers the id.
        env_kwargs: Keyword arguments of the environment.

    Raises:
        ConfigError: The id is unknown, an argument is not supported, or a package is not installed.
    """
    import gymnasium
    from gymnasium import error

    try:
        return gymnasium.make(env_id, disable_env_checker=True, **env_kwargs)
    except (error.DependencyNotInstalled, ModuleNotFoundError) as missing:
        raise ConfigError(
            f"env_id={env_id!r} needs a package that is not installed: {missing}. "
            f"Install it, or powerband[gym] for the environments of Gymnasium."
        ) from missing
    except error.Error as unknown:
        near = difflib.get_close_matches(env_id.rpartition(":")[2], list(gymnasium.registry), n=3, cutoff=0.5)
        raise ConfigError(
            f"env_id={env_id!r} is not registered with Gymnasium ({unknown}). Nearest: {', '.join(near) or 'none'}. "
            f"For your own environment, write 'module:EnvId-v0'; importing `module` must register it."
        ) from unknown
    except TypeError as unsupported:
        raise ConfigError(
            f"env_id={env_id!r} does not accept env_kwargs={env_kwargs}: {unsupported}. Remove that argument."
        ) from unsupported
