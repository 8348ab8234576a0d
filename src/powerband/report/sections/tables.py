"""HTML tables of a report: formats evaluations with confidence intervals, machine properties and settings."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping
from typing import Any

from powerband.core.json_shape import fits
from powerband.report.chart import number

INTERVAL_SUFFIXES = ("_95", "_low", "_high")
"""Suffixes of keys that hold the confidence interval of another key."""


def evaluation_table(rows: list[dict[str, Any]]) -> str:
    """Returns the results of an evaluation as an HTML table.

    A value and its 95 % confidence interval share a cell; a cell at the end of the row draws the interval.

    Args:
        rows: Rows of the evaluation, column name -> value. A row without a column has an empty cell in it.
    """
    if not rows:
        return "<p class=note>This evaluation has no rows.</p>"
    keys = list(dict.fromkeys(key for row in rows for key in row if not key.endswith(INTERVAL_SUFFIXES)))
    bounds = {key: [_bounds(row, key) for row in rows] for key in keys}
    drawn = [key for key in keys if any(bounds[key])]
    head = "".join(f"<th{_align(rows, key)}>{html.escape(key.replace('_', ' '))}</th>" for key in keys)
    head += "".join(f"<th>{html.escape(key.replace('_', ' '))}, 95 % interval</th>" for key in drawn)
    body = []
    for index, row in enumerate(rows):
        cells = [
            f"<td{_align(rows, key)}>{html.escape(text(row.get(key)))}{_interval(bounds[key][index])}</td>"
            for key in keys
        ]
        cells += [f"<td>{_whisker(row.get(key), bounds[key], index)}</td>" for key in drawn]
        body.append(f"<tr>{''.join(cells)}</tr>")
    return f"<div class=scroll><table><tr>{head}</tr>{''.join(body)}</table></div>"


def facts_table(facts: Mapping[str, Any]) -> str:
    """Returns an HTML table with one name and value per row; empty values are omitted."""
    rows = (
        f"<tr><th>{html.escape(str(name))}</th><td>{html.escape(text(value))}</td></tr>"
        for name, value in facts.items()
        if value not in (None, "", [])
    )
    return f"<table>{''.join(rows)}</table>"


def rows_table(head: list[str], rows: list[list[str]]) -> str:
    """Returns a table as HTML.

    Args:
        head: Column names, plain text.
        rows: Cells of each row, HTML.
    """
    header = "".join(f"<th>{html.escape(name)}</th>" for name in head)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<div class=scroll><table><tr>{header}</tr>{body}</table></div>"


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns dotted name -> value for the leaves of nested mappings, such as ``run.seed`` -> 0.

    Args:
        tree: Nested mappings, such as a configuration.
        prefix: Text in front of each name.
    """
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        leaves |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return leaves


def text(value: Any) -> str:
    """Formats a value for display; None and numbers that are not finite become a dash."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return number(value) if math.isfinite(value) else "–"
    if isinstance(value, dict):
        return ", ".join(f"{key} {text(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(text(item) for item in value)
    return str(value)


def _bounds(row: dict[str, Any], key: str) -> tuple[float, float] | None:
    pair = row.get(f"{key}_95") or [row.get(f"{key}_low"), row.get(f"{key}_high")]
    is_interval = fits(pair, [float]) and len(pair) == 2
    return (float(pair[0]), float(pair[1])) if is_interval else None


def _interval(bounds: tuple[float, float] | None) -> str:
    return f" <span class=interval>[{number(bounds[0])}, {number(bounds[1])}]</span>" if bounds else ""


def _whisker(value: Any, bounds: list[tuple[float, float] | None], index: int) -> str:
    """Draws `value` and the interval of row `index` on a scale that contains `bounds`, the intervals of all rows.

    Returns "" if the row has no interval or no number.
    """
    ends = [end for pair in bounds if pair for end in pair]
    low, high = (0.0, 1.0) if min(ends) >= 0 and max(ends) <= 1 else (min(ends), max(ends))
    interval = bounds[index]
    if interval is None or not fits(value, float):
        return ""
    left, right, centre = (4 + 152 * (end - low) / ((high - low) or 1.0) for end in (*interval, value))
    return (
        f"<svg viewBox='0 0 160 16'><line class=axis x1=4 x2=156 y1=8 y2=8 />"
        f"<line x1='{left:.1f}' x2='{right:.1f}' y1=8 y2=8 stroke='var(--accent)' stroke-width=3 />"
        f"<circle cx='{centre:.1f}' cy=8 r=4 fill='var(--accent)'/></svg>"
    )


def _align(rows: list[dict[str, Any]], key: str) -> str:
    is_number = all(isinstance(row.get(key), int | float) for row in rows)
    return " class=number" if is_number else ""
