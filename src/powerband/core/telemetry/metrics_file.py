"""MetricsReader: reads the lines of ``metrics.jsonl``, and counts the damaged ones instead of failing at them.

A killed run leaves half a line. A damaged disk or another program leaves NUL bytes, garbage or numbers that are none.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from powerband.core.json_shape import fits
from powerband.core.regular_files import regular_file

COUNTERS = {"env_steps": float, "grad_steps": float, "time_s": float}
"""Entries that every line has."""
MAX_LINE_BYTES = 2**20
"""Longest line that is read."""


class MetricsReader:
    """Reads the lines of a file that a run may still be writing. Each call of `read` continues at the end of the last.

    Args:
        path: The file; it may not exist yet.

    Attributes:
        damaged: Number of skipped lines so far.
        offset: Number of bytes read so far.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.damaged, self.offset = path, 0, 0

    def read(self, ended: bool = False) -> Iterator[dict[str, Any]]:
        """Yields the new lines.

        Args:
            ended: Whether nobody writes the file any more. Otherwise a last line without its end waits for the next
                call.

        Raises:
            OSError: The file cannot be read.
        """
        with regular_file(self.path) as file:
            file.seek(self.offset)
            while text := file.readline(MAX_LINE_BYTES):
                too_long = len(text) == MAX_LINE_BYTES
                if too_long:
                    _skip_rest(file, text)
                elif not text.endswith(b"\n") and not ended:
                    return
                self.offset = file.tell()
                line = None if too_long else _parsed(text)
                if line is not None:
                    yield line
                elif text.strip():
                    self.damaged += 1

    @property
    def note(self) -> str:
        """Sentence about the skipped lines; "" if there are none."""
        lines = f"{self.damaged} damaged line{'s' if self.damaged > 1 else ''}"
        return f"{self.path}: {lines} skipped." if self.damaged else ""


def _skip_rest(file: io.BufferedReader, text: bytes) -> None:
    while text and not text.endswith(b"\n"):
        text = file.readline(MAX_LINE_BYTES)


def _parsed(text: bytes) -> dict[str, Any] | None:
    """Returns the line if it is an object of numbers and nulls with all counters, else None."""
    try:
        line = json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError):
        return None
    if not fits(line, COUNTERS) or not all(fits(value, (float, None)) for value in line.values()):
        return None
    return line if all(line[name] >= 0 for name in COUNTERS) else None
