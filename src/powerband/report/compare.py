"""One page that lays two or more runs side by side: curves over steps and over time, ledgers, evaluations, settings."""

from __future__ import annotations

import html
from pathlib import Path

from powerband.core.console import clock, si
from powerband.report.chart import COLOURS, legend_of, line_chart
from powerband.report.curves import LEARNING, LOSSES, curve_tags, is_constant
from powerband.report.ledger import colours, ledger_strip, seconds
from powerband.report.page import HEADLINES, UTILISATION, document, line_of, save
from powerband.report.record import Record
from powerband.report.tables import evaluation_table, flat, rows_table, text

UNINTERESTING = ("run.run_dir", "run.resume")


def write_comparison(run_dirs: list[Path], path: Path | None = None) -> Path:
    """Writes a page about several runs and returns its path; ``compare-...html`` in the first folder by itself.

    Raises:
        ValueError: Fewer than two runs, one named twice, one that is none, or a page that cannot be written.
    """
    folders = [Path(folder).absolute() for folder in run_dirs]
    if len(folders) < 2:
        raise ValueError(f"{len(folders)} run(s) cannot be compared. Name two or more: powerband report RUN1 RUN2.")
    if len(folders) > COLOURS - 1:
        raise ValueError(f"{len(folders)} runs are more than colours can tell apart. Name {COLOURS - 1} at the most.")
    twice = next((folder for folder in folders if folders.count(folder) > 1), None)
    if twice is not None:
        raise ValueError(f"{twice} is named twice. Name each run once.")
    records = dict(zip(_names(folders), map(Record.read, folders), strict=True))
    sections = {
        "Learning, by environment steps": _curves(records, LEARNING, "env_steps"),
        "Learning, by wall time": _curves(records, LEARNING, "time_s"),
        "Losses": _curves(records, LOSSES, "env_steps"),
        "Where the time went": _ledgers(records),
        "Rates and utilisation": _grid(records, list(UTILISATION), "time_s"),
        "Evaluation": _evaluations(records),
        "What differs": _differences(records),
    }
    head = legend_of([(name, index) for index, name in enumerate(records)]) + _summary(records)
    tail = "-".join(folder.name for folder in folders[1:])
    page = document(" against ".join(records), head, sections)
    return save(path or folders[0] / f"compare-{tail[:80]}.html", page)


def _names(folders: list[Path]) -> list[str]:
    """Shortest ends of the paths that tell them apart."""
    for parts in range(1, max(len(folder.parts) for folder in folders) + 1):
        names = ["/".join(folder.parts[-parts:]) for folder in folders]
        if len(set(names)) == len(names):
            break
    return names


def _summary(records: dict[str, Record]) -> str:
    tags = [tag for tag in HEADLINES if any(record.last(tag) is not None for record in records.values())]
    rows = []
    for name, record in records.items():
        line = record.metrics[-1] if record.metrics else {"env_steps": 0, "grad_steps": 0}
        waits = record.idle()
        rows.append(
            [
                html.escape(name),
                html.escape(str(record.facts.get("recipe", ""))),
                si(line["env_steps"]),
                si(line["grad_steps"]),
                clock(record.wall_s),
                si(record.mean_rate()),
                si(record.mean_rate("grad_steps")),
                f"{waits[0]:.0%} {html.escape(waits[1])}" if waits else "–",
                *(text(record.last(tag)) for tag in tags),
                html.escape(record.state),
            ]
        )
    head = ["run", "recipe", "env steps", "updates", "wall", "steps/s", "updates/s", "learner idle"]
    return rows_table([*head, *(f"{tag}, last" for tag in tags), "state"], rows)


def _curves(records: dict[str, Record], starts: tuple[str, ...], over: str) -> str:
    tags = [tag for record in records.values() for tag in curve_tags(record.metrics, starts)]
    moving = [tag for tag in tags if not all(is_constant(record.metrics, tag) for record in records.values())]
    return _grid(records, list(dict.fromkeys(moving)), over)


def _grid(records: dict[str, Record], tags: list[str], over: str) -> str:
    charts = []
    for tag in tags:
        pairs = enumerate(records.items())
        lines = [line_of(record, tag, over, name, colour) for colour, (name, record) in pairs]
        title, percent = UTILISATION.get(tag, (tag, False))
        unit = "env steps" if over == "env_steps" else "s"
        charts.append(line_chart(title, lines, unit, percent, zero=tag in UTILISATION))
    return f"<div class=grid>{''.join(charts)}</div>" if any(charts) else ""


def _ledgers(records: dict[str, Record]) -> str:
    totals = {name: seconds(record.metrics) for name, record in records.items()}
    accounts = list(dict.fromkeys(account for total, _ in totals.values() for account in total))
    if not accounts:
        return ""
    colour = colours(accounts)
    rows = []
    for name, (total, wall) in totals.items():
        shares = [f"{total.get(account, 0.0) / wall:.1%}" if wall else "–" for account in accounts]
        rows.append([html.escape(name), ledger_strip(records[name].metrics, colour) if wall else "", *shares])
    legend = legend_of([(account, colour[account]) for account in accounts])
    return legend + rows_table(["run", "shares of wall time", *accounts], rows)


def _evaluations(records: dict[str, Record]) -> str:
    kinds = list(dict.fromkeys(kind for record in records.values() for kind in record.evaluations))
    parts = []
    for kind in kinds:
        rows = [{"run": name, **row} for name, record in records.items() for row in record.evaluations.get(kind, [])]
        parts.append(f"<h3>{html.escape(kind)}</h3>{evaluation_table(rows)}")
    return "".join(parts)


def _differences(records: dict[str, Record]) -> str:
    """Settings and facts of the machine in which the runs are not alike."""
    leaves = {}
    for name, record in records.items():
        facts = {key: record.facts.get(key) for key in ("recipe", "stage", "powerband", "world_size", "host")}
        leaves[name] = {**flat(record.config), **flat(facts)}
    keys = list(dict.fromkeys(key for own in leaves.values() for key in own if key not in UNINTERESTING))
    unlike = [key for key in keys if len({repr(own.get(key)) for own in leaves.values()}) > 1]
    if not unlike:
        return "<p class=note>Same settings, same machine.</p>"
    rows = [[html.escape(key), *(html.escape(text(own.get(key))) for own in leaves.values())] for key in unlike]
    return rows_table(["setting", *leaves], rows)
