"""Records: reads the JSON lines that the instrumented processes of a command have written."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Record:
    """What one process has written.

    Attributes:
        pid, ppid: Ids of the process and of its parent.
        began_ns: Time of its start, on the clock of `time.perf_counter_ns`, which all processes share.
        start: First line: ``argv``, ``executable``, ``python`` (version), ``rank``, ``folder``, and ``kind``, which is
            ``start`` for a new interpreter and ``fork`` for a forked process. The rank is that in torch.distributed,
            else the variable RANK.
        lines: All other lines, each with ``kind`` and ``time_ns``.
    """

    pid: int
    ppid: int
    began_ns: int
    start: dict[str, Any]
    lines: list[dict[str, Any]]

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        """Returns the lines of one kind, the oldest first."""
        return [line for line in self.lines if line["kind"] == kind]

    @property
    def updates(self) -> int:
        """Steps of the optimiser that steps most often, since the start of the process."""
        return max((line["updates"] for line in self.of_kind("times")), default=0)


def read_records(folder: Path, renamed: tuple[str, str] = ("", "")) -> list[Record]:
    """Reads all records of a folder, the oldest process first.

    A process may write at the same time, so an incomplete last line is left out.

    Args:
        folder: Folder of the records.
        renamed: A path in the records, such as that of a copy, and the path to replace it by.
    """
    records = []
    for path in folder.glob("*.jsonl"):
        lines = []
        text_of_file = path.read_text(encoding="utf-8", errors="replace")
        if renamed[0]:
            old, new = (json.dumps(each)[1:-1] for each in renamed)
            text_of_file = text_of_file.replace(old, new)
        for text in text_of_file.splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                lines.append(json.loads(text))
        if lines and lines[0]["kind"] in ("start", "fork"):
            first = lines[0]
            ranks = [line["rank"] for line in lines if line["kind"] == "rank"]
            if ranks:  # that of torch.distributed, which a process without the variable RANK may have too
                first["rank"] = str(ranks[-1])
            records.append(Record(first["pid"], first["ppid"], first["time_ns"], first, lines[1:]))
    return sorted(records, key=lambda record: record.began_ns)
