"""Schemas: JSON Schema 2020-12 of the output of ``powerband profile -- COMMAND`` and of ``powerband audit``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

NAMES = ("profile", "audit")


def schema(name: str) -> dict[str, Any]:
    """Returns the schema of a command's JSON object.

    Args:
        name: One of `NAMES`.
    """
    assert name in NAMES, name
    return json.loads((Path(__file__).parent / f"{name}.schema.json").read_text(encoding="utf-8"))
