"""Tuning map: draws measured and predicted throughput over two settings as a heat map and as a table.

The data come from ``tuning.json`` in the run folder, or from ``NAME.tuning.json`` in the folder of the preset that
``setup=NAME`` selects:

{"rows": [{"knobs": {"num_envs": 64, "batch": 256}, "steps_per_s": 41000.0, "measured": true}, ...]}
"""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

from powerband.core.config.presets import OBJECTIVES, TUNED, presets
from powerband.core.json_shape import fits
from powerband.core.regular_files import read_object
from powerband.report.chart import number
from powerband.report.run_record import RunRecord
from powerband.report.sections import score_study
from powerband.report.sections.tables import rows_table, text

CELL, LEFT, TOP = 78, 110, 12
SHOWN_ROWS = 12
VALUE = (float, str, bool, None)
ROW = {"knobs": dict, "steps_per_s": float}


def section(record: RunRecord) -> str:
    """Returns the results of the search (``powerband tune``) that belongs to a run, as HTML; empty if there is none.

    A search for throughput gives a heat map and the fastest settings, a search for the time to a score its trials.
    """
    for path in tuning_files(record):
        result = read_object(path)
        if score_study.is_study(result):
            parts = score_study.sections(result)
            return "".join(f"<h3>{html.escape(name)}</h3>{body}" for name, body in parts.items() if body)
        if rows := read_rows(path):
            return map_and_table(rows, str(result.get("learning_sentence", "")))
    return ""


def map_and_table(rows: list[dict[str, Any]], learning: str = "") -> str:
    """Returns the heat map and a table of the fastest settings, as HTML; empty if `rows` is empty.

    Args:
        rows: Result of `read_rows`, one dict per combination of settings.
        learning: Sentence about the effect on learning, shown if some combination changes what the policy learns.
    """
    if not rows:
        return ""
    changing = any(row.get("changes_learning") for row in rows)
    fastest = sorted(rows, key=lambda row: -row["steps_per_s"])[:SHOWN_ROWS]
    fastest.sort(key=lambda row: bool(row.get("changes_learning")))
    cells = [
        [
            html.escape(", ".join(f"{name} {text(value)}" for name, value in row["knobs"].items())),
            number(row["steps_per_s"]),
            "measured" if row.get("measured") else "predicted",
            *(["changed" if row.get("changes_learning") else "unchanged"] * changing),
        ]
        for row in fastest
    ]
    table = rows_table(["settings", "env steps/s", "source", *(["learning"] * changing)], cells)
    note = f"{html.escape(learning)} " if learning and changing else ""
    note += "The colour shows environment steps per second. A dot marks a measured cell; the others are predicted."
    return f"<p class=note>{note}</p><div class=columns>{heat_map(rows)}<div>{table}</div></div>"


def tuning_files(record: RunRecord) -> list[Path]:
    """Returns the paths at which a run's tuning file (results of a search) may exist, the run folder first."""
    command = record.facts.get("command", "")
    setup = re.search(r"\bsetup[= ](\S+)", command)
    name = setup[1] if setup else TUNED if re.search(r"--tuned\b|\btuned=true", command) else ""
    if name in OBJECTIVES:
        files = [path.with_suffix(".tuning.json") for stem, path in presets().items() if stem.startswith(TUNED)]
        found = [path for path in files if _is_for(read_object(path), record, OBJECTIVES[name])]
    else:
        found = [presets()[name].with_suffix(".tuning.json")] if name in presets() else []
    return [record.dir / "tuning.json", *found]


def _is_for(header: dict[str, Any], record: RunRecord, objective: str) -> bool:
    """Returns whether a tuning file is for the recipe, task and algorithm of a run and for `objective`."""
    values = {str(value) for value in record.config.values()}
    return (
        (header.get("recipe"), header.get("objective")) == (record.facts.get("recipe"), objective)
        and header.get("algo", "") == record.config.get("algo", "")
        and (not header.get("task") or header["task"] in values)
    )


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Reads the measured and predicted combinations of settings from a tuning file.

    Returns:
        One dict per combination, with at least {"knobs": setting -> value, "steps_per_s": environment steps per
        second}. Empty if the file is missing or damaged.
    """
    rows = read_object(path).get("rows")
    rows = rows if isinstance(rows, list) else []
    return [row for row in rows if fits(row, ROW) and fits(list(row["knobs"].values()), [VALUE])]


def heat_map(rows: list[dict[str, Any]]) -> str:
    """Draws the throughput as a heat map over the two settings with the most values, as an HTML figure.

    If several combinations share the two values of a cell, the cell shows the highest throughput.

    Args:
        rows: Result of `read_rows`, one dict per combination of settings; not empty.

    Returns:
        The figure; "" if the search had time for the present settings only.
    """
    values = {
        knob: sorted({row["knobs"][knob] for row in rows if knob in row["knobs"]}, key=_sort_key)
        for knob in _knobs(rows)
    }
    if not values:
        return ""
    across, *others = sorted(values, key=lambda knob: -len(values[knob]))
    down = others[0] if others else ""
    lines = values[down] if down else [None]
    fastest = max(row["steps_per_s"] for row in rows) or 1.0
    parts = []
    for i, row_value in enumerate(lines):
        y = TOP + CELL * 0.5 * i
        name = f"{down} {text(row_value)}" if down else ""
        parts.append(f"<text class=name x={LEFT - 8} y='{y + 24:g}' text-anchor=end>{html.escape(name)}</text>")
        for j, column_value in enumerate(values[across]):
            cell = [
                row
                for row in rows
                if row["knobs"].get(across) == column_value and (not down or row["knobs"].get(down) == row_value)
            ]
            if cell:
                parts.append(_cell(max(cell, key=lambda row: row["steps_per_s"]), LEFT + CELL * j, y, fastest))
    bottom = TOP + CELL * 0.5 * len(lines) + 16
    for j, column_value in enumerate(values[across]):
        x = LEFT + CELL * (j + 0.5)
        parts.append(
            f"<text class=name x={x:g} y={bottom:g} text-anchor=middle>{html.escape(text(column_value))}</text>"
        )
    width = LEFT + CELL * len(values[across]) + 8
    parts.append(f"<text x={width - 8} y={bottom + 16:g} text-anchor=end>{html.escape(across)}</text>")
    drawing = f"<svg viewBox='0 0 {width} {bottom + 22:g}' style='max-width:{width}px' role=img>{''.join(parts)}</svg>"
    return f"<figure><figcaption><span>env steps/s</span></figcaption><div class=scroll>{drawing}</div></figure>"


def _cell(row: dict[str, Any], x: float, y: float, fastest: float) -> str:
    shade = 0.08 + 0.62 * row["steps_per_s"] / fastest
    size = f"x={x + 1:g} y='{y + 1:g}' width={CELL - 2} height={CELL * 0.5 - 2:g}"
    box = f"<rect {size} rx=4 fill='var(--c0)' opacity={shade:.2f} />"
    label = f"<text class=name x={x + CELL / 2:g} y='{y + 24:g}' text-anchor=middle>{number(row['steps_per_s'])}</text>"
    dot = f"<circle cx={x + CELL - 10:g} cy='{y + 10:g}' r=3 fill='var(--ink)'/>" if row.get("measured") else ""
    return box + label + dot


def _knobs(rows: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(knob for row in rows for knob in row["knobs"]))


def _sort_key(value: Any) -> tuple[bool, Any]:
    is_text = not isinstance(value, int | float)
    return is_text, str(value) if is_text else value
