"""Table of an audit for the terminal."""

from __future__ import annotations

from typing import Any

from powerband.attach.audit.audit import AuditResult
from powerband.attach.audit.texts import COLUMNS, VERDICTS

STYLES = {"works": "green", "no-effect": "red", "never-read": "red", "misnamed": "yellow", "unknown": "dim"}
ORDER = tuple(STYLES)[1:] + ("works",)
"""Verdicts in the order of the table: what needs a look comes first."""


def print_table(result: AuditResult, lang: str) -> None:
    """Prints the verdicts, those without effect first."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, column in enumerate(COLUMNS[lang]):
        table.add_column(column, overflow="fold", ratio=1 if index == 3 else None, no_wrap=index == 2)
    for verdict in sorted(result.options, key=lambda one: ORDER.index(one.verdict)):
        name = Text(VERDICTS[lang][verdict.verdict], style=STYLES[verdict.verdict])
        table.add_row(verdict.option, _short(verdict.value), name, Text(verdict.evidence))
    console = Console(highlight=False, markup=False)
    console.print(table)
    counts = {name: sum(one.verdict == name for one in result.options) for name in ORDER}
    summary = ", ".join(f"{n} {VERDICTS[lang][name]}" for name, n in counts.items() if n)
    console.print(f"\n{len(result.options)}: {summary}; {result.runs} runs, {result.seconds:.0f} s")


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 24 else text[:21] + "..."
