"""Checkup: runs the checks of the requested sections, prints their table and reports how many failed."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TextIO, get_args

from powerband import __version__
from powerband.doctor.check_result import CheckResult, Status, fail
from powerband.doctor.context import Check, CheckContext
from powerband.doctor.subprocess_call import describe

SECTIONS = {
    "accelerator": "GPUs, driver, CUDA and memory; processor and vector instructions",
    "precision": "speed of matrix products in fp32, tf32, bf16 and fp16",
    "copies": "speed of copies in memory, from host to device and between devices",
    "collectives": "all-reduce between two ranks",
    "host": "threads, CPU quota, /dev/shm, open files, disk, memory limit, versions",
    "simulators": "installed simulators and their speed",
    "rendering": "EGL, OSMesa and GLFW: renderer, speed and GPU of each",
    "recipes": "networks of each recipe: one act and one update",
}
STATUSES: tuple[Status, ...] = get_args(Status)
_COLOURS = {"ok": "32", "warn": "33", "fail": "31", "skipped": "90"}


def checkup(
    sections: list[str],
    context: CheckContext,
    *,
    out: TextIO | None,
    progress: TextIO | None = None,
) -> dict[str, Any]:
    """Runs every check of the machine in `sections`. A check that fails or raises does not stop the remaining checks.

    Args:
        sections: Names from `SECTIONS`, in the order in which they run.
        context: Devices, recipes and folders to check.
        out: Stream for the table, written section by section; None prints no table.
        progress: Terminal for a line with the name of the running check; None prints no such line.

    Returns:
        {"powerband": version, "sections": names, "rows": results as dictionaries, "summary": {status: count},
        "seconds": duration of all checks, "exit_code": 1 if a check failed, else 0}.
    """
    started = time.perf_counter()
    rows: list[CheckResult] = []
    for section in sections:
        section_rows = list(_run_section(section, context, progress))
        rows += section_rows
        if out is not None:
            print(table(section, section_rows, colour=_is_terminal(out)), file=out, flush=True)
    counts = Counter(row.status for row in rows)
    summary: dict[str, int] = {status: counts[status] for status in STATUSES}
    seconds = time.perf_counter() - started
    if out is not None:
        print(f"\n{summary_line(summary, seconds)}", file=out, flush=True)
    return {
        "powerband": __version__,
        "sections": sections,
        "rows": [row.to_dict() for row in rows],
        "summary": summary,
        "seconds": round(seconds, 2),
        "exit_code": int(summary["fail"] > 0),
    }


def _run_section(section: str, context: CheckContext, progress: TextIO | None) -> Iterator[CheckResult]:
    module = importlib.import_module(f"powerband.doctor.checks.{section}")
    checks: list[Check] = []

    def list_checks() -> list[CheckResult]:
        checks.extend(module.checks(context))
        return []

    yield from _run_check(section, section, list_checks, progress, "")
    for position, (name, check) in enumerate(checks, 1):
        yield from _run_check(section, name, check, progress, f" ({position} of {len(checks)})")


def _run_check(
    section: str,
    name: str,
    check: Callable[[], CheckResult | list[CheckResult]],
    progress: TextIO | None,
    position: str,
) -> list[CheckResult]:
    """Runs one check and returns its results; an exception becomes a result with status ``fail``."""
    if progress is not None:
        print(f"\r\x1b[K{section}: {name}{position} ...", end="", file=progress, flush=True)
    started = time.perf_counter()
    try:
        result = check()
    except Exception as error:
        result = fail(
            name,
            f"the check itself failed: {describe(error)}",
            f"Run powerband doctor {section} again, and report the error if it persists.",
        )
    seconds = round(time.perf_counter() - started, 3)
    if progress is not None:
        print("\r\x1b[K", end="", file=progress, flush=True)
    rows = result if isinstance(result, list) else [result]
    assert all(row.status in STATUSES and (row.advice or row.status != "fail") for row in rows), rows
    return [replace(row, section=section, seconds=seconds) for row in rows]


def table(section: str, rows: list[CheckResult], colour: bool = False) -> str:
    """Returns the results of a section as aligned text, one row per result; the advice follows on a separate line.

    Args:
        section: Name of the section, the heading of the table.
        rows: Results of the section.
        colour: Whether to colour the status with ANSI escape codes.
    """
    width = max([len(row.name) for row in rows], default=0)
    indent = 2 + width + 2 + len("skipped") + 2
    text_width = max(40, min(shutil.get_terminal_size((120, 24)).columns, 140) - indent)
    lines = [f"\n{section}"]
    for row in rows:
        status = f"{row.status:<7}"
        status = f"\x1b[{_COLOURS[row.status]}m{status}\x1b[0m" if colour else status
        same_line = row.status == "skipped" and row.advice  # nothing is wrong, so the advice needs no emphasis
        message = f"{row.message}. {row.advice}" if same_line else row.message
        first, *more = textwrap.wrap(message, text_width) or [""]
        lines.append(f"  {row.name:<{width}}  {status}  {first}".rstrip())
        lines += [" " * indent + text for text in more]
        if row.advice and not same_line:
            advice = textwrap.wrap(f"-> {row.advice}", text_width, subsequent_indent="   ")
            lines += [" " * indent + text for text in advice]
    return "\n".join(lines)


def summary_line(summary: dict[str, int], seconds: float) -> str:
    """Returns one line of text with the number of checks per status and the verdict.

    Args:
        summary: Status -> number of checks.
        seconds: Duration of all checks.
    """
    counts = ", ".join(f"{count} {status}" for status, count in summary.items() if count)
    verdict = "at least one check failed; follow the advice below it" if summary["fail"] else "nothing failed"
    return f"{counts or 'nothing checked'} in {seconds:.0f} s: {verdict}."


def _is_terminal(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR")


def run(sections: list[str], recipes: dict[str, Callable[[], Any]], show: bool) -> dict[str, Any]:
    """Runs the command ``powerband doctor``.

    Args:
        sections: Names from `SECTIONS`; empty runs all sections.
        recipes: Recipe name -> function that imports the recipe.
        show: Whether to print the table on standard output.

    Returns:
        The result of `checkup`.
    """
    context = CheckContext(recipes=recipes)
    selected = [name for name in SECTIONS if name in sections] if sections else list(SECTIONS)
    progress = sys.stderr if sys.stderr.isatty() else None
    return checkup(selected, context, out=sys.stdout if show else None, progress=progress)
