"""Texts: shortens user input that a message repeats, so that every message stays one short line."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

SHOWN = 80
"""Longest text that a message repeats."""
SHOWN_PATH = 160
"""Longest path of a file that a message repeats."""
MAX_TEXT = 10_000
"""Longest value of an option, in characters."""


def shortened(text: object, limit: int = SHOWN) -> str:
    """Returns `text` as one printable line of at most `limit` characters; a longer one loses its middle.

    Control characters, line breaks and other characters that cannot be printed become escapes such as ``\\x00``.
    """
    full = str(text)
    half = (limit - 3) // 2
    if len(full) > limit:
        return f"{_printable(full[:half])[:half]}...{_printable(full[-half:])[-half:]}"
    line = _printable(full)
    return line if len(line) <= limit else f"{line[:half]}...{line[-half:]}"


def printable(text: str) -> str:
    """Returns `text` with escapes in place of what a terminal cannot print or would obey; line breaks stay."""
    return "\n".join(map(_printable, text.split("\n")))


def _printable(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def counted(number: int, noun: str) -> str:
    """A number with a noun that takes a plural s, such as "1 core" and "2 cores"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def some_of(names: Iterable[str], limit: int = 12) -> str:
    """Joins the first `limit` names by commas, and adds the number of the remaining names, as in "a, b and 3 more"."""
    listed = [shortened(name) for name in names]
    more = f" and {len(listed) - limit} more" if len(listed) > limit else ""
    return ", ".join(listed[:limit]) + more


def path_problem(path: str) -> str:
    """Returns why `path` cannot be the path of a file, such as a name that is too long; "" for a possible path."""
    if "\0" in path:
        return "a path contains no NUL character"
    if len(os.fsencode(path)) >= 4096 or any(len(os.fsencode(part)) > 255 for part in path.split("/")):
        return "a path has fewer than 4096 bytes, and each of its names at most 255"
    try:
        Path(path).expanduser()
    except RuntimeError:
        return f"this machine has no user {shortened(path.split('/')[0].removeprefix('~'))}"
    return ""
