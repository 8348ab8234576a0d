"""Settings of a trial, from the JSON file that the environment variable ``POWERBAND_TRIAL`` names.

Keys: ``folder`` (copy of the working folder), ``change`` (name -> value; empty for an unchanged run), ``where`` (places
``path:line`` of the calls to change, with paths in the copy; empty for all), ``unit`` and ``until`` (``updates`` or
``env_steps``, and the count at which the run ends; 0 for no end), and ``probe`` (changes to alternate within the run).
"""

from __future__ import annotations

import json
import os
from typing import Any

from powerband_attach import record
from powerband_attach.profile.call_sites import user_place

_settings: dict[str, Any] = {}
_made: set[str] = set()


def load() -> None:
    """Reads the settings of this process."""
    with open(os.environ["POWERBAND_TRIAL"], encoding="utf-8") as file:
        _settings.update(json.load(file))


def get(name: str, default: Any = None) -> Any:
    """Returns the setting `name`."""
    return _settings.get(name, default)


def change(name: str) -> Any:
    """Returns the value of the change `name`; None if this run does not make it."""
    return get("change", {}).get(name)


def made(name: str) -> None:
    """Records once that this process has made the change `name`. A run without this record has failed."""
    if name not in _made:
        _made.add(name)
        record.write("changed", name=name)


def here() -> bool:
    """Returns whether the user's line that is calling now is one of those to change."""
    places = get("where", [])
    return not places or user_place() in places
