"""Comparison page: shows curves, use of time, evaluations and settings of several runs side by side."""

from __future__ import annotations

import html
from pathlib import Path

from powerband.core.errors import ConfigError
from powerband.core.telemetry.console import duration_text, si_text
from powerband.report.chart import COLOURS, legend_of, line_chart
from powerband.report.document import document, save_page
from powerband.report.page import HEADLINE_TAGS, UTILISATION, damage_of, metric_line
from powerband.report.run_record import RunRecord, shown_cause
from powerband.report.sections.curves import LEARNING_PREFIXES, LOSS_PREFIXES, TITLES, curve_tags, is_constant
from powerband.report.sections.ledger import account_colours, ledger_strip, seconds_by_account
from powerband.report.sections.tables import evaluation_table, flatten, rows_table, text

IGNORED_SETTINGS = ("run.run_dir", "run.resume")
"""Settings that differ between any two runs, and that the page therefore omits."""


def write_comparison(run_dirs: list[Path], path: Path | None = None) -> tuple[Path, list[str]]:
    """Writes a page that compares several runs.

    Args:
        run_dirs: Run folders, at least two.
        path: File of the page; None means ``compare-NAMES.html`` in the first run folder.

    Returns:
        Path of the page, and notes about damaged files.

    Raises:
        ConfigError: There are too few or too many runs, a run is named twice or is not a run folder, or the page cannot
            be written.
    """
    folders = [Path(folder).absolute() for folder in run_dirs]
    if len(folders) < 2:
        raise ConfigError(f"{len(folders)} run(s) cannot be compared. Name two or more: powerband report RUN1 RUN2.")
    if len(folders) > COLOURS - 1:
        raise ConfigError(f"{len(folders)} runs are more than the page has colours. Name at most {COLOURS - 1}.")
    duplicate = next((folder for folder in folders if folders.count(folder) > 1), None)
    if duplicate is not None:
        raise ConfigError(f"{duplicate} is named twice. Name each run once.")
    records = dict(zip(_names(folders), map(RunRecord.read, folders), strict=True))
    sections = {
        "Learning, by environment steps": _curves(records, LEARNING_PREFIXES, "env_steps"),
        "Learning, by wall time": _curves(records, LEARNING_PREFIXES, "time_s"),
        "Losses": _curves(records, LOSS_PREFIXES, "env_steps"),
        "Where the time went": _ledgers(records),
        "Rates and utilisation": _grid(records, list(UTILISATION), "time_s"),
        "Evaluation": _evaluations(records),
        "Different settings": _differences(records),
    }
    damage = "".join(map(damage_of, records.values()))
    head = legend_of([(name, index) for index, name in enumerate(records)]) + damage + _summary(records)
    names = "-".join(folder.name for folder in folders[1:])
    page = document(" compared with ".join(records), head, sections)
    notes = [record.damage for record in records.values() if record.damage]
    return save_page(path or folders[0] / f"compare-{names[:80]}.html", page, "to=FILE.html"), notes


def _names(folders: list[Path]) -> list[str]:
    """Returns a unique name per folder: the last parts of its path, as few as possible."""
    for parts in range(1, max(len(folder.parts) for folder in folders) + 1):
        names = ["/".join(folder.parts[-parts:]) for folder in folders]
        if len(set(names)) == len(names):
            break
    return names


def _summary(records: dict[str, RunRecord]) -> str:
    """Returns the table of the main numbers, one row per run."""
    tags = [tag for tag in HEADLINE_TAGS if any(record.last(tag) is not None for record in records.values())]
    rows = []
    for name, record in records.items():
        line = record.metrics[-1] if record.metrics else {"env_steps": 0, "grad_steps": 0}
        idle = record.idle()
        rows.append(
            [
                html.escape(name),
                html.escape(str(record.facts.get("recipe", ""))),
                si_text(line["env_steps"]),
                si_text(line["grad_steps"]),
                duration_text(record.wall_s),
                si_text(record.mean_rate()),
                si_text(record.mean_rate("grad_steps")),
                f"{idle[0]:.0%} {html.escape(shown_cause(*idle))}".rstrip() if idle else "–",
                *(text(record.last(tag)) for tag in tags),
                html.escape(record.state),
            ]
        )
    head = ["run", "recipe", "env steps", "updates", "wall time", "env steps/s", "updates/s", "learner idle"]
    return rows_table([*head, *(HEADLINE_TAGS[tag] for tag in tags), "state"], rows)


def _curves(records: dict[str, RunRecord], prefixes: tuple[str, ...], over: str) -> str:
    """Draws the tags with these prefixes that vary in at least one run; `over` is ``env_steps`` or ``time_s``."""
    tags = [tag for record in records.values() for tag in curve_tags(record.metrics, prefixes)]
    varying = [tag for tag in tags if not all(is_constant(record.metrics, tag) for record in records.values())]
    return _grid(records, list(dict.fromkeys(varying)), over)


def _grid(records: dict[str, RunRecord], tags: list[str], over: str) -> str:
    charts = []
    for tag in tags:
        lines = [metric_line(record, tag, over, name, colour) for colour, (name, record) in enumerate(records.items())]
        title, percent = UTILISATION.get(tag, (TITLES.get(tag, tag), False))
        unit = "env steps" if over == "env_steps" else "s"
        charts.append(line_chart(title, lines, unit, percent, zero=tag in UTILISATION))
    return f"<div class=grid>{''.join(charts)}</div>" if any(charts) else ""


def _ledgers(records: dict[str, RunRecord]) -> str:
    totals = {name: seconds_by_account(record.metrics) for name, record in records.items()}
    accounts = list(dict.fromkeys(account for total, _ in totals.values() for account in total))
    if not accounts:
        return ""
    colour = account_colours(accounts)
    rows = []
    for name, (total, wall) in totals.items():
        shares = [f"{total.get(account, 0.0) / wall:.1%}" if wall else "–" for account in accounts]
        rows.append([html.escape(name), ledger_strip(records[name].metrics, colour) if wall else "", *shares])
    legend = legend_of([(account, colour[account]) for account in accounts])
    return legend + rows_table(["run", "shares of wall time", *accounts], rows)


def _evaluations(records: dict[str, RunRecord]) -> str:
    kinds = list(dict.fromkeys(kind for record in records.values() for kind in record.evaluations))
    parts = []
    for kind in kinds:
        rows = [{"run": name, **row} for name, record in records.items() for row in record.evaluations.get(kind, [])]
        parts.append(f"<h3>{html.escape(kind)}</h3>{evaluation_table(rows)}")
    return "".join(parts)


def _differences(records: dict[str, RunRecord]) -> str:
    """Returns a table of the settings, versions and machine properties in which the runs differ."""
    values = {}
    for name, record in records.items():
        facts = {key: record.facts.get(key) for key in ("recipe", "stage", "powerband", "world_size", "host")}
        values[name] = {**flatten(record.config), **flatten(facts)}
    keys = dict.fromkeys(key for leaves in values.values() for key in leaves if key not in IGNORED_SETTINGS)
    different = [key for key in keys if len({repr(leaves.get(key)) for leaves in values.values()}) > 1]
    if not different:
        return "<p class=note>All settings and the machine are the same.</p>"
    rows = [
        [html.escape(key), *(html.escape(text(leaves.get(key))) for leaves in values.values())] for key in different
    ]
    return rows_table(["setting", *values], rows)
