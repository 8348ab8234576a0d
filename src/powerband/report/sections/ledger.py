"""Time ledger of a run: draws the wall time per account (category of time) as a chart and as a table.

The argument `metrics` of the functions holds the lines of ``metrics.jsonl`` in the run folder.
"""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import Any

from powerband.core.telemetry.idle_causes import account_shares
from powerband.report.chart import COLOURS, Line, area_chart

ACCOUNT_COLOURS = {
    "update": 0,
    "act": 5,
    "sample": 7,
    "env": 1,
    "env_wait": 6,
    "store": 2,
    "collectives": 4,
    "save": 8,
    "eval": 3,
    "log": 9,
    "returns": 10,
    "data_wait": 11,
    "h2d": 12,
}
"""Account -> palette index, for the accounts that most runs have; other accounts get the remaining colours."""
MIN_RATE = 1e-6
"""Least rate in environment steps per second from which the length of an interval is computed."""
INTERVALS = 150
"""Largest number of intervals in the chart; if a run has more, neighbouring intervals are merged."""


def account_colours(accounts: Iterable[str]) -> dict[str, int]:
    """Assigns a colour to each account (category of time), the same on every chart of a page.

    Returns:
        Account -> index into the palette of the page. The account ``other`` is grey.
    """
    accounts = list(dict.fromkeys(accounts))
    colours = {name: ACCOUNT_COLOURS[name] for name in accounts if name in ACCOUNT_COLOURS}
    free = [colour for colour in range(COLOURS - 1) if colour not in colours.values()] or list(range(COLOURS - 1))
    others = [name for name in accounts if name not in colours and name != "other"]
    colours |= {name: free[index % len(free)] for index, name in enumerate(others)}
    return colours | ({"other": COLOURS - 1} if "other" in accounts else {})


def seconds_by_account(metrics: list[dict]) -> tuple[dict[str, float], float]:
    """Sums the wall time of a run per account (category of time).

    Args:
        metrics: Lines of ``metrics.jsonl``, one dict per log interval.

    Returns:
        (account -> seconds with the largest first, wall seconds of all measured intervals).
    """
    total: dict[str, float] = {}
    wall = 0.0
    for seconds, accounts in _intervals(metrics):
        wall += seconds
        for name, share in accounts.items():
            total[name] = total.get(name, 0.0) + share * seconds
    return dict(sorted(total.items(), key=lambda item: -item[1])), wall


def ledger_chart(metrics: list[dict]) -> str:
    """Draws the share of each account (category of time) in the wall time, stacked, over the run.

    Args:
        metrics: Lines of ``metrics.jsonl``, one dict per log interval.

    Returns:
        The chart as HTML; empty if `metrics` has no shares.
    """
    total, wall = seconds_by_account(metrics)
    if not wall:
        return ""
    first = next(line for line in metrics if account_shares(line))
    edges, rows = [first["time_s"] - _intervals(metrics)[0][0]], []
    for seconds, accounts in _merged(_intervals(metrics), wall / INTERVALS):
        edges.append(edges[-1] + seconds)
        rows.append(accounts)
    colour = account_colours(total)
    middle = [(a + b) / 2 for a, b in zip(edges, edges[1:], strict=False)]
    layers = [Line(name, middle, [row.get(name, 0.0) for row in rows], colour=colour[name]) for name in total]
    return area_chart("share of wall time by account", edges, layers, "s")


def ledger_table(metrics: list[dict]) -> str:
    """Returns a table of the seconds and the share of each account (category of time), and their sum, as HTML.

    Args:
        metrics: Lines of ``metrics.jsonl``, one dict per log interval.
    """
    total, wall = seconds_by_account(metrics)
    colour = account_colours(total)
    rows = ["<tr><th>account</th><th class=number>time</th><th class=number>share of wall time</th><th></th></tr>"]
    for name, seconds in total.items():
        bar = f"<span class=bar style='width:{100 * seconds / wall:.1f}px;background:var(--c{colour[name]})'></span>"
        cells = f"<td class=number>{seconds:.1f} s</td><td class=number>{seconds / wall:.1%}</td><td>{bar}</td>"
        rows.append(f"<tr><td>{html.escape(name)}</td>{cells}</tr>")
    accounted = sum(total.values())
    cells = f"<td class=number>{accounted:.1f} s</td><td class=number>{accounted / wall:.1%}</td><td></td>"
    rows.append(f"<tr><th>sum of {wall:.1f} s wall time</th>{cells}</tr>")
    return f"<table>{''.join(rows)}</table>"


def ledger_strip(metrics: list[dict], colour: dict[str, int]) -> str:
    """Draws the share of each account (category of time) in the wall time as one bar, for a table of several runs.

    Args:
        metrics: Lines of ``metrics.jsonl``, one dict per log interval.
        colour: Account -> index into the palette of the page.

    Returns:
        The bar as an SVG element.
    """
    total, wall = seconds_by_account(metrics)
    parts, left = [], 0.0
    for name, seconds in total.items():
        share = 100 * seconds / wall
        title = f"<title>{html.escape(name)} {share:.1f} %</title>"
        parts.append(
            f"<rect x='{left:.2f}' width='{share:.2f}' y=0 height=10 fill='var(--c{colour[name]})'>{title}</rect>"
        )
        left += share
    return f"<svg viewBox='0 0 100 10' preserveAspectRatio=none>{''.join(parts)}</svg>"


def _intervals(metrics: list[dict]) -> list[tuple[float, dict[str, float]]]:
    """Returns (wall seconds, account -> share) of each log interval.

    The seconds come from the rate of the line, because the clock of a resumed run continues at its checkpoint.
    """
    intervals = []
    previous: dict[str, Any] = {"env_steps": 0, "time_s": 0.0}
    for line in metrics:
        accounts = account_shares(line)
        if not accounts:  # the result of an evaluation, whose time is in the next log interval
            continue
        steps = line["env_steps"] - previous["env_steps"]
        rate = line.get("charts/SPS") or 0.0
        seconds = steps / rate if rate > MIN_RATE else line["time_s"] - previous["time_s"]
        if seconds > 0:
            intervals.append((seconds, accounts))
        previous = line
    return intervals


def _merged(intervals: list[tuple[float, dict[str, float]]], min_s: float) -> list[tuple[float, dict[str, float]]]:
    """Merges neighbouring intervals until each lasts at least `min_s` seconds; their shares are weighted by time."""
    merged: list[tuple[float, dict[str, float]]] = []
    total_s = 0.0
    sums: dict[str, float] = {}
    for index, (seconds, accounts) in enumerate(intervals):
        total_s += seconds
        for name, share in accounts.items():
            sums[name] = sums.get(name, 0.0) + share * seconds
        if total_s >= min_s or index == len(intervals) - 1:
            merged.append((total_s, {name: total / total_s for name, total in sums.items()}))
            total_s, sums = 0.0, {}
    return merged
