"""Browser: serves a page on the loopback address on which a person plays against a policy.

The page asks for each move, so the game pauses while the page is closed.
"""

from __future__ import annotations

from typing import Any

from powerband.recipes.snakes.by_hand.game import GameByHand
from powerband.report.local_page import LocalPage, Routes, page_files

MAX_REQUEST_BYTES = 1024


def game_routes(game: GameByHand, moves_per_s: float) -> Routes:
    """Returns the routes of the page of a game: ``state``, ``move``, ``new`` and ``quit``, which ends the page.

    Each of them answers with the position. The body of ``move`` has ``wanted``, which maps a snake, as text, to a
    direction 0..3.

    Args:
        game: The game.
        moves_per_s: Moves per second; 0 waits for a key before each move.
    """

    def post(action: str, body: dict[str, Any]) -> dict[str, Any] | None:
        if action == "move":
            game.move(_wanted_moves(game, body.get("wanted", {})))
        elif action == "new":
            game.new()
        elif action not in ("state", "quit"):
            return None
        return game.position()

    assert __package__ is not None
    files = page_files(__package__)
    kind, page = files[""]
    files[""] = kind, page.replace(b"MOVES_PER_S", str(moves_per_s).encode())
    return Routes(files, lambda path: None, post, MAX_REQUEST_BYTES, end="quit")


def _wanted_moves(game: GameByHand, wanted: Any) -> dict[int, int]:
    """Returns the moves, snake -> direction, that a request wants.

    Raises:
        ValueError: The request is invalid.
    """
    if not isinstance(wanted, dict) or any(type(move) is not int for move in wanted.values()):
        raise ValueError("wanted must map a snake to a direction")
    moves = {int(snake): move for snake, move in wanted.items()}
    if not set(moves) <= set(game.human) or not set(moves.values()) <= set(range(4)):
        raise ValueError("wanted must map a snake of the person to a direction 0..3")
    return moves


def play_in_browser(game: GameByHand, moves_per_s: float, port: int) -> None:
    """Serves the page until the person ends the game there or presses Ctrl-C here.

    Raises:
        ConfigError: The port is in use.
    """
    LocalPage(game_routes(game, moves_per_s), port).serve()
