"""Tables of the page: figures with their intervals, facts, differences."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping
from typing import Any

from powerband.report.chart import number

ENDS = ("_95", "_low", "_high")
"""Endings of keys that hold the interval of the key without them."""


def evaluation_table(rows: list[dict[str, Any]]) -> str:
    """A table of an evaluation; a figure and its interval share a cell, beside a drawing of the interval."""
    if not rows:
        return "<p class=note>none</p>"
    keys = [key for key in rows[0] if not key.endswith(ENDS)]
    bounds = {key: [_bounds(row, key) for row in rows] for key in keys}
    drawn = [key for key in keys if any(bounds[key])]
    head = "".join(f"<th{_align(rows, key)}>{html.escape(key.replace('_', ' '))}</th>" for key in keys)
    head += "".join(f"<th>{html.escape(key.replace('_', ' '))}, 95 %</th>" for key in drawn)
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
    """Names and values, one a row; what is empty or unknown is left out."""
    rows = (
        f"<tr><th>{html.escape(str(name))}</th><td>{html.escape(text(value))}</td></tr>"
        for name, value in facts.items()
        if value not in (None, "", [])
    )
    return f"<table>{''.join(rows)}</table>"


def rows_table(head: list[str], rows: list[list[str]]) -> str:
    """A table whose cells are HTML already."""
    top = "".join(f"<th>{html.escape(name)}</th>" for name in head)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<div class=scroll><table><tr>{top}</tr>{body}</table></div>"


def flat(tree: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Leaves of a configuration under dotted names."""
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        leaves |= flat(value, f"{above}{key}.") if isinstance(value, dict) else {f"{above}{key}": value}
    return leaves


def text(value: Any) -> str:
    """A value for people."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return number(value) if math.isfinite(value) else "–"
    if isinstance(value, dict):
        return ", ".join(f"{key} {text(part)}" for key, part in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(text(part) for part in value)
    return str(value)


def _bounds(row: dict[str, Any], key: str) -> tuple[float, float] | None:
    pair = row.get(f"{key}_95") or [row.get(f"{key}_low"), row.get(f"{key}_high")]
    known = len(pair) == 2 and all(isinstance(end, int | float) and math.isfinite(end) for end in pair)
    return (float(pair[0]), float(pair[1])) if known else None


def _interval(bounds: tuple[float, float] | None) -> str:
    return f" <span class=interval>[{number(bounds[0])}, {number(bounds[1])}]</span>" if bounds else ""


def _whisker(value: Any, bounds: list[tuple[float, float] | None], index: int) -> str:
    """The interval of one row on the scale of all rows; shares have the scale 0 to 1."""
    ends = [end for pair in bounds if pair for end in pair]
    low, high = (0.0, 1.0) if min(ends) >= 0 and max(ends) <= 1 else (min(ends), max(ends))
    own = bounds[index]
    if own is None or not isinstance(value, int | float):
        return ""
    a, b, at = (4 + 152 * (end - low) / ((high - low) or 1.0) for end in (*own, value))
    return (
        f"<svg viewBox='0 0 160 16'><line class=axis x1=4 x2=156 y1=8 y2=8 />"
        f"<line x1='{a:.1f}' x2='{b:.1f}' y1=8 y2=8 stroke='var(--accent)' stroke-width=3 />"
        f"<circle cx='{at:.1f}' cy=8 r=4 fill='var(--accent)'/></svg>"
    )


def _align(rows: list[dict[str, Any]], key: str) -> str:
    is_number = all(isinstance(row.get(key), int | float) for row in rows)
    return " class=number" if is_number else ""
