"""Where the wall time went: the accounts of the phase clock over a run, as a chart and as a table."""

from __future__ import annotations

import html
from collections.abc import Iterable

from powerband.core.idle import shares
from powerband.report.chart import COLOURS, Line, area_chart

KNOWN = {
    "update": 0,
    "act": 5,
    "sample": 7,
    "env": 1,
    "env_wait": 6,
    "store": 2,
    "collectives": 4,
    "save": 8,
    "eval": 3,
}
"""Colours of the accounts that most runs have; others take what is free."""
INTERVALS = 150
"""Intervals of the chart; more are averaged over their wall time."""


def colours(accounts: Iterable[str]) -> dict[str, int]:
    """A colour for each account, the same on every chart of the page; ``other`` is grey."""
    accounts = list(dict.fromkeys(accounts))
    chosen = {name: KNOWN[name] for name in accounts if name in KNOWN}
    free = [colour for colour in range(COLOURS - 1) if colour not in chosen.values()] or list(range(COLOURS - 1))
    rest = [name for name in accounts if name not in chosen and name != "other"]
    chosen |= {name: free[index % len(free)] for index, name in enumerate(rest)}
    return chosen | ({"other": COLOURS - 1} if "other" in accounts else {})


def seconds(metrics: list[dict]) -> tuple[dict[str, float], float]:
    """(account -> seconds, largest first; wall seconds of the intervals that were measured)."""
    total: dict[str, float] = {}
    wall = 0.0
    for took, accounts in _intervals(metrics):
        wall += took
        for name, share in accounts.items():
            total[name] = total.get(name, 0.0) + share * took
    return dict(sorted(total.items(), key=lambda item: -item[1])), wall


def ledger_chart(metrics: list[dict]) -> str:
    """Stacked shares of the wall time over the run's seconds; empty where nothing was measured."""
    total, wall = seconds(metrics)
    if not wall:
        return ""
    edges, rows = [metrics[0]["time_s"] - _intervals(metrics)[0][0]], []
    for took, accounts in _merged(_intervals(metrics), wall / INTERVALS):
        edges.append(edges[-1] + took)
        rows.append(accounts)
    colour = colours(total)
    middle = [(a + b) / 2 for a, b in zip(edges, edges[1:], strict=False)]
    layers = [Line(name, middle, [row.get(name, 0.0) for row in rows], colour=colour[name]) for name in total]
    return area_chart("share of wall time by account", edges, layers, "s")


def ledger_table(metrics: list[dict]) -> str:
    """Seconds and share of each account, and what they sum to."""
    total, wall = seconds(metrics)
    colour, rows = colours(total), []
    for name, took in total.items():
        bar = f"<span class=bar style='width:{100 * took / wall:.1f}px;background:var(--c{colour[name]})'></span>"
        cells = f"<td class=number>{took:.1f} s</td><td class=number>{took / wall:.1%}</td><td>{bar}</td>"
        rows.append(f"<tr><td>{html.escape(name)}</td>{cells}</tr>")
    whole = sum(total.values())
    cells = f"<td class=number>{whole:.1f} s</td><td class=number>{whole / wall:.1%}</td><td></td>"
    rows.append(f"<tr><th>sum, of {wall:.1f} s</th>{cells}</tr>")
    return f"<table>{''.join(rows)}</table>"


def ledger_strip(metrics: list[dict], colour: dict[str, int]) -> str:
    """The whole run as one bar in the given colours, for a table of several runs."""
    total, wall = seconds(metrics)
    parts, left = [], 0.0
    for name, took in total.items():
        share = 100 * took / wall
        title = f"<title>{html.escape(name)} {share:.1f} %</title>"
        parts.append(
            f"<rect x='{left:.2f}' width='{share:.2f}' y=0 height=10 fill='var(--c{colour[name]})'>{title}</rect>"
        )
        left += share
    return f"<svg viewBox='0 0 100 10' preserveAspectRatio=none>{''.join(parts)}</svg>"


def _intervals(metrics: list[dict]) -> list[tuple[float, dict[str, float]]]:
    """(wall seconds, account -> share) of each log interval.

    The clock of a resumed run goes on where the checkpoint was, so an interval is never taken longer than the rate
    of its line says.
    """
    found, before = [], None
    for line in metrics:
        steps = line["env_steps"] - (before["env_steps"] if before else 0)
        rate = line.get("charts/SPS") or 0.0
        took = steps / rate if rate > 0 else line["time_s"] - (before["time_s"] if before else 0.0)
        if took > 0 and (accounts := shares(line)):
            found.append((took, accounts))
        before = line
    return found


def _merged(intervals: list[tuple[float, dict[str, float]]], least: float) -> list[tuple[float, dict[str, float]]]:
    """Neighbouring intervals together until each lasts `least` seconds or more; shares weighted by their time."""
    merged: list[tuple[float, dict[str, float]]] = []
    took, sums = 0.0, {}
    for index, (length, accounts) in enumerate(intervals):
        took += length
        for name, share in accounts.items():
            sums[name] = sums.get(name, 0.0) + share * length
        if took >= least or index == len(intervals) - 1:
            merged.append((took, {name: total / took for name, total in sums.items()}))
            took, sums = 0.0, {}
    return merged
