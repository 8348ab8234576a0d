"""Terminal: plays a game by hand with escape sequences and single keys, which also works over ssh."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from powerband.core.errors import ConfigError
from powerband.recipes.snakes.by_hand.game import GameByHand
from powerband.recipes.snakes.env.rules.game import COLS, MAX_STEPS, ROWS

KEYS = {
    **{f"\x1b{prefix}{letter}": (0, move) for prefix in "[O" for letter, move in zip("ABDC", range(4), strict=True)},
    **dict(zip("wsad", ((1, move) for move in range(4)), strict=True)),
    **dict(zip("ikjl", ((2, move) for move in range(4)), strict=True)),
}
"""Key -> (snake of the person, direction): arrows, then w s a d, then i k j l."""
QUIT, NEW, PAUSE = ("q", "\x03", "\x04"), "n", "p"
COLOURS = (27, 33, 75, 160, 202, 215)
"""Colours of the six snakes, of the palette of 256."""
SIZE = (2 * COLS + 2, ROWS + 5)
"""Columns and rows that the picture needs."""


def play_in_terminal(game: GameByHand, moves_per_s: float) -> None:
    """Plays until the person presses q.

    Args:
        game: The game.
        moves_per_s: Moves per second; 0 waits for a key before each move.

    Raises:
        ConfigError: Input or output is not a terminal, or the terminal is too small.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ConfigError("play=terminal needs a terminal. Over ssh, write ssh -t; or write play=browser.")
    columns, rows = os.get_terminal_size(sys.stdout.fileno())
    if columns < SIZE[0] or rows < SIZE[1]:
        raise ConfigError(
            f"The terminal has {columns} columns and {rows} rows; the game needs {SIZE[0]} and {SIZE[1]}. Enlarge it."
        )
    with _single_keys() as descriptor:
        _play(game, descriptor, moves_per_s)


def _play(game: GameByHand, descriptor: int, moves_per_s: float) -> None:
    wanted: dict[int, int] = {}
    interval_s = 1 / moves_per_s if moves_per_s else 0.0
    paused, next_at = False, time.monotonic() + interval_s
    while True:
        _show(picture(game.position(), paused))
        waits = moves_per_s == 0 or paused or game.result is not None
        pressed = _read_keys(descriptor, None if waits else max(0.0, next_at - time.monotonic()))
        steered = False
        for key in pressed:
            if key in QUIT:
                return
            if key == NEW and game.result is not None:
                game.new()
                wanted.clear()
                steered, next_at = False, time.monotonic() + interval_s
            paused = not paused if key == PAUSE else paused
            if key in KEYS:
                index, move = KEYS[key]
                snake = game.human[min(index, len(game.human) - 1)]
                wanted[snake], steered = move, True
        due = steered if moves_per_s == 0 else time.monotonic() >= next_at
        if game.result is None and not paused and due:
            game.move(wanted)
            wanted.clear()
            next_at = time.monotonic() + interval_s


def picture(position: dict[str, Any], paused: bool = False) -> str:
    """Draws a position as lines of text with colours; a cell has two columns. The person's heads are ``()``."""
    cells = [["  "] * COLS for _ in range(ROWS)]
    for row, col in position["beans"]:
        cells[row][col] = "\x1b[32m* \x1b[0m"
    for snake, body in enumerate(position["bodies"]):
        for k, (row, col) in reversed(list(enumerate(body))):
            text = "  " if k else "()" if snake in position["human"] else "<>"
            cells[row][col] = f"\x1b[48;5;{COLOURS[snake]}m\x1b[97;1m{text}\x1b[0m"
    scores, result = position["scores"], position["result"]
    own, other = sum(scores[:3]), sum(scores[3:])
    if result is not None:
        own, other = result["score"], result["opponent_score"]
    state = (
        f"{result['outcome']}: n new game, q quit" if result else "paused: p goes on" if paused else "p pause  q quit"
    )
    keys = "arrows or wasd" if len(position["human"]) == 1 else "arrows, wasd, ikjl"
    edge = "+" + "-" * 2 * COLS + "+"
    lines = [f" you {own} : {other} policy   move {position['step_count']} / {MAX_STEPS}", edge]
    lines += [f"|{''.join(row)}|" for row in cells]
    return "\n".join([*lines, edge, f" {keys}   {state}"])


def _show(text: str) -> None:
    """Draws `text` over the last picture."""
    lines = [f"{line}\x1b[K" for line in text.split("\n")]
    sys.stdout.write("\x1b[H" + "\r\n".join(lines) + "\x1b[J")
    sys.stdout.flush()


def _read_keys(descriptor: int, timeout_s: float | None) -> list[str]:
    """Returns the keys pressed within `timeout_s` seconds, at once after the first; None waits for a key."""
    if not select.select([descriptor], [], [], timeout_s)[0]:
        return []
    text = os.read(descriptor, 1024).decode(errors="replace")
    if not text:
        return ["q"]  # the terminal was closed
    if text == "\x1b" and select.select([descriptor], [], [], 0.05)[0]:  # a slow line splits an arrow key
        text += os.read(descriptor, 1024).decode(errors="replace")
    keys = []
    while text:
        size = 3 if text[:3] in KEYS else 1
        keys.append(text[:size])
        text = text[size:]
    return keys


@contextmanager
def _single_keys() -> Iterator[int]:
    """Switches the terminal to single keys on a screen of its own, and restores it afterwards."""
    try:
        import termios
        import tty
    except ImportError as error:
        raise ConfigError("play=terminal needs Linux, macOS or WSL. Write play=browser.") from error
    descriptor = sys.stdin.fileno()
    saved = termios.tcgetattr(descriptor)
    try:
        tty.setraw(descriptor)
        sys.stdout.write("\x1b[?1049h\x1b[?25l\x1b[2J")
        yield descriptor
    finally:
        sys.stdout.write("\x1b[?25h\x1b[?1049l")
        sys.stdout.flush()
        termios.tcsetattr(descriptor, termios.TCSADRAIN, saved)
