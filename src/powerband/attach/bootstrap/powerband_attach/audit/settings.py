"""Settings of an audited run, from the JSON file that the environment variable ``POWERBAND_AUDIT`` names.

Keys: ``changes`` (option id -> new value), ``folder`` (copy of the working folder), ``updates`` and ``env_steps``
(counts at which the run stops; 0 for no limit), ``window_s`` (seconds after the first optimiser step at which a run
without limits stops) and ``most_s`` (seconds after which any run stops).
"""

from __future__ import annotations

import json
import os
from typing import Any

_settings: dict[str, Any] = {}


def load() -> None:
    """Reads the settings of this process."""
    with open(os.environ["POWERBAND_AUDIT"], encoding="utf-8") as file:
        _settings.update(json.load(file))


def get(name: str, default: Any = None) -> Any:
    """Returns the setting `name`."""
    return _settings.get(name, default)


def changes(parser: str) -> dict[str, Any]:
    """Returns the new values for the options of `parser`, by name."""
    start = parser + ":"
    return {key[len(start) :]: value for key, value in get("changes", {}).items() if key.startswith(start)}


def place(path: str, line: int) -> str:
    """Returns ``file:line`` relative to the working folder."""
    folder = os.path.realpath(str(get("folder", "") or os.getcwd()))
    full = os.path.realpath(path)
    return f"{os.path.relpath(full, folder) if full.startswith(folder + os.sep) else full}:{line}"
