"""The checkup: runs the checks of the sections that were asked for, prints the table, and says what failed."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from typing import Any, TextIO

from powerband import __version__
from powerband.doctor.child import describe
from powerband.doctor.row import Row, fail
from powerband.doctor.scope import Check, Scope

SECTIONS = {
    "accelerator": "GPUs, driver, CUDA, memory; processor and vector instructions",
    "precision": "speed of matrix products in fp32, tf32, bf16, fp16",
    "copies": "memory, host to device, device to device",
    "collectives": "two ranks that reduce tensors together",
    "host": "threads, quota, /dev/shm, open files, disk, memory limit, versions",
    "simulators": "which are installed, and how fast they step",
    "rendering": "EGL, OSMesa, GLFW: who really renders, how fast, and on which GPU",
    "recipes": "each recipe's networks: one act and one update",
}
STATUSES = ("ok", "warn", "fail", "skipped")
_COLOURS = {"ok": "32", "warn": "33", "fail": "31", "skipped": "90"}


def checkup(
    sections: list[str],
    scope: Scope,
    *,
    out: TextIO | None,
    progress: TextIO | None = None,
) -> dict[str, Any]:
    """Runs every check of `sections`; one that fails or raises keeps no other from running.

    Args:
        sections: Names of `SECTIONS`, in the order in which they run.
        scope: What is looked at.
        out: Where the table goes, section by section; None prints none.
        progress: A terminal for the line that names what is being measured; None shows none.

    Returns:
        {"powerband", "sections", "rows", "summary": {status: count}, "seconds", "exit_code": 1 where a check failed}.
    """
    started = time.perf_counter()
    rows: list[Row] = []
    for section in sections:
        found = list(_section(section, scope, progress))
        rows += found
        if out is not None:
            print(table(section, found, colour=_is_terminal(out)), file=out, flush=True)
    counts = Counter(row.status for row in rows)
    summary = {status: counts[status] for status in STATUSES}
    seconds = time.perf_counter() - started
    if out is not None:
        print(f"\n{summary_line(summary, seconds)}", file=out, flush=True)
    return {
        "powerband": __version__,
        "sections": sections,
        "rows": [asdict(row) for row in rows],
        "summary": summary,
        "seconds": round(seconds, 2),
        "exit_code": int(summary["fail"] > 0),
    }


def _section(section: str, scope: Scope, progress: TextIO | None) -> Iterator[Row]:
    module = importlib.import_module(f"powerband.doctor.{section}")
    checks: list[Check] = []

    def listed() -> list[Row]:
        checks.extend(module.checks(scope))
        return []

    yield from _guarded(section, section, listed, progress, "")
    for position, (name, check) in enumerate(checks, 1):
        yield from _guarded(section, name, check, progress, f" ({position} of {len(checks)})")


def _guarded(
    section: str, name: str, check: Callable[[], Row | list[Row]], progress: TextIO | None, place: str
) -> list[Row]:
    if progress is not None:
        print(f"\r\x1b[K{section}: {name}{place} ...", end="", file=progress, flush=True)
    started = time.perf_counter()
    try:
        found = check()
    except Exception as error:
        found = fail(
            name, f"the check itself failed: {describe(error)}", "Run it again alone, and report it where it stays."
        )
    seconds = round(time.perf_counter() - started, 3)
    if progress is not None:
        print("\r\x1b[K", end="", file=progress, flush=True)
    listed = found if isinstance(found, list) else [found]
    assert all(row.status in STATUSES and (row.advice or row.status != "fail") for row in listed), listed
    return [replace(row, section=section, seconds=seconds) for row in listed]


def table(section: str, rows: list[Row], colour: bool = False) -> str:
    """The rows of a section, aligned; what to do stands under the row it belongs to."""
    width = max([len(row.name) for row in rows], default=0)
    indent = 2 + width + 2 + len("skipped") + 2
    room = max(40, min(shutil.get_terminal_size((120, 24)).columns, 140) - indent)
    lines = [f"\n{section}"]
    for row in rows:
        status = f"{row.status:<7}"
        status = f"\x1b[{_COLOURS[row.status]}m{status}\x1b[0m" if colour else status
        beside = row.status == "skipped" and row.advice  # nothing is wrong: one line is enough
        first, *more = textwrap.wrap(f"{row.measured}. {row.advice}" if beside else row.measured, room) or [""]
        lines.append(f"  {row.name:<{width}}  {status}  {first}".rstrip())
        lines += [" " * indent + text for text in more]
        if row.advice and not beside:
            lines += [" " * indent + text for text in textwrap.wrap(f"-> {row.advice}", room, subsequent_indent="   ")]
    return "\n".join(lines)


def summary_line(summary: dict[str, int], seconds: float) -> str:
    """One line: how many checks came to what, and the verdict."""
    counts = ", ".join(f"{count} {status}" for status, count in summary.items() if count)
    verdict = "something failed: do what stands under it" if summary["fail"] else "nothing failed"
    return f"{counts or 'nothing checked'} in {seconds:.0f} s: {verdict}."


def _is_terminal(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR")


def run(sections: list[str], recipes: dict[str, Callable[[], Any]], show: bool) -> dict[str, Any]:
    """The verb: every section where none is named; the table on standard output where `show`."""
    scope = Scope(recipes=recipes)
    chosen = [name for name in SECTIONS if name in sections] if sections else list(SECTIONS)
    return checkup(
        chosen, scope, out=sys.stdout if show else None, progress=sys.stderr if sys.stderr.isatty() else None
    )
