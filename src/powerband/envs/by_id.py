"""One Gymnasium environment by its id. No torch here: worker processes import this file and stay small."""

from __future__ import annotations

import difflib
from typing import Any


def make_gym(env_id: str, **env_kwargs: Any) -> Any:
    """One Gymnasium environment.

    Raises:
        ValueError: An unknown id, an argument that it does not take, or a package that it needs and that is missing.
    """
    import gymnasium
    from gymnasium import error

    try:
        return gymnasium.make(env_id, disable_env_checker=True, **env_kwargs)
    except (error.DependencyNotInstalled, ModuleNotFoundError) as missing:
        raise ValueError(
            f"env_id={env_id!r} needs a package that is not installed: {missing}. "
            f"Install it, or powerband[gym] for Gymnasium's own environments."
        ) from missing
    except error.Error as wrong:
        near = difflib.get_close_matches(env_id.rpartition(":")[2], list(gymnasium.registry), n=3, cutoff=0.5)
        raise ValueError(
            f"env_id={env_id!r} is not registered with Gymnasium ({wrong}). "
            f"Nearest: {', '.join(near) or 'none'}. Your own environment is named 'module:EnvId-v0', where importing "
            f"`module` registers it."
        ) from wrong
    except TypeError as wrong:
        raise ValueError(f"env_id={env_id!r} does not take env_kwargs={env_kwargs}: {wrong}") from wrong
