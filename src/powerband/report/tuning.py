"""The tuning map: what was measured and what was predicted over two knobs.

It is read from ``tuning.json`` in the run folder, or else from ``NAME.tuning.json`` beside the preset of
``setup=NAME``:

{"rows": [{"knobs": {"num_envs": 64, "batch": 256}, "steps_per_s": 41000.0, "measured": true}, ...]}
"""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

from powerband.core.presets import TUNED, presets, tuned_name
from powerband.report.chart import number
from powerband.report.record import Record
from powerband.report.tables import rows_table, text

CELL, LEFT, TOP = 78, 110, 12
SHOWN_ROWS = 12


def section(record: Record) -> str:
    """The map and the best settings; empty where the run has no tuning file."""
    return shown(next(filter(None, map(read_rows, places(record))), []))


def shown(rows: list[dict[str, Any]]) -> str:
    """The map and the best of `rows`; empty where there are none."""
    if not rows:
        return ""
    best = sorted(rows, key=lambda row: -row["steps_per_s"])[:SHOWN_ROWS]
    cells = [
        [
            html.escape(", ".join(f"{name} {text(value)}" for name, value in row["knobs"].items())),
            number(row["steps_per_s"]),
            "measured" if row.get("measured") else "predicted",
        ]
        for row in best
    ]
    table = rows_table(["setting", "env steps/s", ""], cells)
    note = "Colour is environment steps a second; a dot marks a measured cell, the others are predicted."
    return f"<p class=note>{note}</p><div class=beside>{heat_map(rows)}<div>{table}</div></div>"


def places(record: Record) -> list[Path]:
    """Where a run's tuning file may lie."""
    command = record.facts.get("command", "")
    setup = re.search(r"\bsetup[= ](\S+)", command)
    name = setup[1] if setup else TUNED if re.search(r"--tuned\b|\btuned=true", command) else ""
    if name == TUNED:
        name = tuned_name(record.facts.get("recipe", ""), record.config.get("algo", ""))
    preset = presets().get(name)
    return [record.dir / "tuning.json", *([preset.with_suffix(".tuning.json")] if preset else [])]


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Rows of a tuning file that say their knobs and their rate; none where there is no such file."""
    try:
        rows = json.loads(path.read_text(encoding="utf-8")).get("rows", [])
    except (OSError, json.JSONDecodeError, AttributeError):
        return []
    return [
        row for row in rows if isinstance(row.get("knobs"), dict) and isinstance(row.get("steps_per_s"), int | float)
    ]


def heat_map(rows: list[dict[str, Any]]) -> str:
    """The two knobs with most values against each other; a cell is the best of its settings."""
    values = {
        knob: sorted({row["knobs"][knob] for row in rows if knob in row["knobs"]}, key=_key) for knob in _knobs(rows)
    }
    across, *others = sorted(values, key=lambda knob: -len(values[knob]))
    down = others[0] if others else ""
    lines = values[down] if down else [None]
    fastest = max(row["steps_per_s"] for row in rows) or 1.0
    parts = []
    for i, low in enumerate(lines):
        y = TOP + CELL * 0.5 * i
        name = f"{down} {text(low)}" if down else ""
        parts.append(f"<text class=name x={LEFT - 8} y='{y + 24:g}' text-anchor=end>{html.escape(name)}</text>")
        for j, high in enumerate(values[across]):
            cell = [r for r in rows if r["knobs"].get(across) == high and (not down or r["knobs"].get(down) == low)]
            if cell:
                parts.append(_cell(max(cell, key=lambda row: row["steps_per_s"]), LEFT + CELL * j, y, fastest))
    bottom = TOP + CELL * 0.5 * len(lines) + 16
    for j, high in enumerate(values[across]):
        x = LEFT + CELL * (j + 0.5)
        parts.append(f"<text class=name x={x:g} y={bottom:g} text-anchor=middle>{html.escape(text(high))}</text>")
    width = LEFT + CELL * len(values[across]) + 8
    parts.append(f"<text x={width - 8} y={bottom + 16:g} text-anchor=end>{html.escape(across)}</text>")
    drawing = f"<svg viewBox='0 0 {width} {bottom + 22:g}' style='max-width:{width}px' role=img>{''.join(parts)}</svg>"
    return f"<figure><figcaption><span>env steps/s</span></figcaption><div class=scroll>{drawing}</div></figure>"


def _cell(row: dict[str, Any], x: float, y: float, fastest: float) -> str:
    shade = 0.08 + 0.62 * row["steps_per_s"] / fastest
    size = f"x={x + 1:g} y='{y + 1:g}' width={CELL - 2} height={CELL * 0.5 - 2:g}"
    box = f"<rect {size} rx=4 fill='var(--c0)' opacity={shade:.2f} />"
    words = f"<text class=name x={x + CELL / 2:g} y='{y + 24:g}' text-anchor=middle>{number(row['steps_per_s'])}</text>"
    dot = f"<circle cx={x + CELL - 10:g} cy='{y + 10:g}' r=3 fill='var(--ink)'/>" if row.get("measured") else ""
    return box + words + dot


def _knobs(rows: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(knob for row in rows for knob in row["knobs"]))


def _key(value: Any) -> tuple[bool, Any]:
    is_word = not isinstance(value, int | float)
    return is_word, str(value) if is_word else value
