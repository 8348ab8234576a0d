"""Routes of the drawing page: what a person may ask the agent to do."""

from __future__ import annotations

from typing import Any

from powerband.recipes.sketchnav.drawing.walker import Walker
from powerband.report.local_page import Routes, page_files

MAX_REQUEST_BYTES = 8 * 2**20
"""Largest body of a request; a page of 512 x 512 pixels has less than 1.5 MiB."""


def drawing_routes(walker: Walker) -> Routes:
    """Returns the routes of the page that controls an agent.

    ``plans`` describes the plans, ``start`` begins an episode, and ``step`` executes an action.
    """

    def get(path: str) -> Any:
        return walker.describe() if path == "plans" else None

    def post(path: str, request: dict[str, Any]) -> Any:
        if path == "start":
            return walker.start(request)
        return walker.step() if path == "step" else None

    assert __package__ is not None
    return Routes(page_files(__package__), get, post, MAX_REQUEST_BYTES)
