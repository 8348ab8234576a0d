"""Report page: writes one self-contained HTML file about a run, which opens without a network."""

from __future__ import annotations

import base64
import html
import json
import mimetypes
import os
from pathlib import Path
from urllib.parse import quote

from powerband.core.telemetry.console import duration_text, si_text
from powerband.report.chart import Line, line_chart
from powerband.report.document import document, save_page
from powerband.report.run_record import RunRecord, shown_cause
from powerband.report.sections import score_study, tuning
from powerband.report.sections.curves import (
    BOUND_SUFFIXES,
    LEARNING_PREFIXES,
    LOSS_PREFIXES,
    MAX_POINTS,
    TITLES,
    curve_tags,
    downsample,
    exponential_mean,
    is_constant,
    series,
    smoothing_points,
)
from powerband.report.sections.ledger import ledger_chart, ledger_table
from powerband.report.sections.tables import evaluation_table, facts_table, flatten
from powerband.report.sections.timeline import timeline_charts, timeline_text

EMBEDDED_BYTES = 48 * 2**20
"""Bytes of videos and images inside the page; the page links to the files of the run folder beyond that."""
UTILISATION = {
    "perf/cpu_cores": ("busy CPU cores", False),
    "perf/gpu_active": ("share of time in which the GPU runs a kernel", True),
    "perf/gpu_power": ("GPU power, share of its limit", True),
    "perf/gpu_sm": ("busy multiprocessors of the GPU", True),
    "perf/gpu_tensor": ("busy tensor cores of the GPU", True),
    "perf/gpu_dram": ("GPU memory bandwidth in use", True),
    "perf/memory_gib": ("memory, GiB", False),
    "perf/gpu_memory_gib": ("GPU memory, GiB", False),
    "charts/SPS": ("environment steps per second", False),
    "charts/updates_per_s": ("updates per second", False),
}
"""Tag -> (title of its chart, whether its values are shares)."""
HEADLINE_TAGS = {
    "eval/return": "last evaluation in training, return",
    "eval/win_greedy": "last evaluation in training, wins against greedy",
    "charts/win": "training wins, last",
    "charts/episodic_return": "training return, last",
}
"""Tag -> label of the tile with the main result, which shows the first of these tags that the run has."""


def write_page(run_dir: Path, path: Path | None = None) -> tuple[Path, list[str]]:
    """Writes the report page of a run.

    Args:
        run_dir: The run folder.
        path: File of the page; None means ``report.html`` in the run folder.

    Returns:
        Path of the page, and notes about damaged files.

    Raises:
        ConfigError: `run_dir` is not a run folder, or the page cannot be written.
    """
    record = RunRecord.read(run_dir)
    path = path or record.dir / "report.html"
    sections = {
        "Learning": learning(record),
        "Evaluation": evaluation(record),
        "Where the time went": where_time_went(record),
        "Recorded steps": recorded_steps(record),
        "Utilisation": utilisation(record),
        "Tuning": tuning.section(record),
        "Videos and images": media(record, path.parent),
        "Machine": machine(record),
        "Configuration": configuration(record),
    }
    title = f"{record.facts.get('recipe', 'run')}: {record.name}"
    head = f"<p class=state>{html.escape(record.state)}</p>" + command_of(record) + damage_of(record) + tiles(record)
    page = save_page(path, document(title, head, sections), "to=FILE.html")
    return page, [record.damage] * bool(record.damage)


def write_tuning_page(preset: Path) -> Path:
    """Writes the HTML page about a preset, a file with settings that ``powerband tune`` found.

    The page shows a heat map of throughput, or for a search for the time to a score its trials and their curves.

    Args:
        preset: File ``NAME.yaml`` of the preset; ``NAME.tuning.json`` must be in the same folder.

    Returns:
        Path of the page.
    """
    tuning_file = preset.with_suffix(".tuning.json")
    result = json.loads(tuning_file.read_text(encoding="utf-8"))
    settings = "".join(f"{html.escape(line)}\n" for line in preset.read_text(encoding="utf-8").splitlines())
    if result["objective"] == "score":
        sections = score_study.sections(result)
    else:
        learning = result.get("learning_sentence", "")
        sections = {"Map": tuning.map_and_table(tuning.read_rows(tuning_file), learning)}
    head = (
        f"<p class=state>{html.escape(result['gain'])}</p><code class=command>powerband tune "
        f"{html.escape(result['words'])}</code>"
    )
    page = document(f"tuned: {result['words']}", head, {**sections, "Preset": f"<pre>{settings}</pre>"})
    return save_page(preset.with_suffix(".html"), page)


def command_of(record: RunRecord) -> str:
    """Returns the command that started the run, as HTML; empty if it is unknown."""
    command = record.facts.get("command", "")
    return f"<code class=command>{html.escape(command)}</code>" if command else ""


def damage_of(record: RunRecord) -> str:
    """Returns the note about damaged lines of the metrics, as HTML; empty if there are none."""
    return f"<p class=note>{html.escape(record.damage)}</p>" if record.damage else ""


def tiles(record: RunRecord) -> str:
    """Returns the tiles with the main numbers of a run, such as its steps and its last return, as HTML."""
    if not record.metrics:
        return "<p class=note>The run has logged nothing yet.</p>"
    line = record.metrics[-1]
    values = {
        "env steps": si_text(line["env_steps"]),
        "updates": si_text(line["grad_steps"]),
        "wall time": duration_text(line["time_s"]),
        "env steps/s, mean": si_text(record.mean_rate()),
        "updates/s, mean": si_text(record.mean_rate("grad_steps")),
    }
    idle = record.idle()
    if idle is not None:
        share, cause = idle[0], shown_cause(*idle)
        values[f"learner idle, mostly {cause}" if cause else "learner idle"] = f"{share:.0%}"
    for tag, label in HEADLINE_TAGS.items():
        value = record.last(tag)
        if value is not None:
            values[label] = f"{value:.4g}"
            break
    boxes = (
        f"<div class=tile><b>{html.escape(value)}</b><span>{html.escape(name)}</span></div>"
        for name, value in values.items()
    )
    return f"<div class=tiles>{''.join(boxes)}</div>"


def curve(record: RunRecord, tag: str, title: str = "", percent: bool = False, zero: bool = False) -> str:
    """Draws one metric over environment steps: logged values faint, their running mean bold, an interval as a band.

    Args:
        record: The run.
        tag: Name of the metric, such as ``eval/return``.
        title: Title of the chart; empty means the tag.
        percent: Whether the values are shares, 0 to 1, shown in percent.
        zero: Whether the y axis starts at 0.

    Returns:
        The chart as HTML; empty if the run has no value of the metric.
    """
    return line_chart(title or TITLES.get(tag, tag), [metric_line(record, tag)], percent=percent, zero=zero)


def metric_line(record: RunRecord, tag: str, over: str = "env_steps", name: str = "", colour: int = 0) -> Line:
    """Converts a metric of a run to a line of a chart, smoothed and downsampled.

    Args:
        record: The run.
        tag: Name of the metric, such as ``eval/return``.
        over: Key of the x axis: ``env_steps``, or ``time_s`` for seconds of wall time.
        name: Name in the legend.
        colour: Index into the palette of the page.
    """
    xs, ys = series(record.metrics, tag, over)
    low, high = (series(record.metrics, tag + suffix, over)[1] for suffix in BOUND_SUFFIXES)
    if 0 < len(ys) <= MAX_POINTS and len(low) == len(high) == len(ys):
        return Line(name, xs, ys, low=low, high=high, colour=colour)
    points = smoothing_points(len(ys))
    x, y = downsample(xs, exponential_mean(ys, points))
    return Line(name, x, y, downsample(xs, ys)[1] if points > 1 else [], colour=colour)


def learning(record: RunRecord) -> str:
    """Returns the charts of returns, win rates and other learning metrics, then of losses, as HTML; empty if none."""
    learning_tags, loss_tags = (curve_tags(record.metrics, prefixes) for prefixes in (LEARNING_PREFIXES, LOSS_PREFIXES))
    if not learning_tags and not loss_tags:
        return ""
    constant = [tag for tag in learning_tags + loss_tags if is_constant(record.metrics, tag)]
    smoothing = (
        "Bold: exponential mean over a twentieth of the values of a curve; faint: logged values."
        if smoothing_points(len(record.metrics)) > 1
        else "One point per log interval."
    )
    body = f"<p class=note>{smoothing} Bands are 95 % intervals. The x axis counts environment steps of all ranks.</p>"
    body += f"<div class=grid>{''.join(curve(record, tag) for tag in learning_tags if tag not in constant)}</div>"
    losses = [tag for tag in loss_tags if tag not in constant]
    if losses:
        body += f"<h3>Losses</h3><div class=grid>{''.join(curve(record, tag) for tag in losses)}</div>"
    if constant:
        values = ", ".join(f"{tag} {record.last(tag):.4g}" for tag in constant)
        body += f"<p class=note>Constant: {html.escape(values)}.</p>"
    return body


def evaluation(record: RunRecord) -> str:
    """Returns one table per evaluation with ``powerband eval``, as HTML; empty if the run was not evaluated."""
    parts = []
    for name, rows in record.evaluations.items():
        parts.append(f"<h3>{html.escape(name)}</h3>{evaluation_table(rows)}")
    if parts:
        parts.insert(0, "<p class=note>Brackets and bars are 95 % intervals.</p>")
    return "".join(parts)


def where_time_went(record: RunRecord) -> str:
    """Returns a chart of the wall time per account (category of time) and a table of the sums, as HTML.

    Empty if the run logged no times.
    """
    chart = ledger_chart(record.metrics)
    if not chart:
        return ""
    note = "Each second of wall time of rank 0 belongs to exactly one account. Section Utilisation shows the machine."
    return f"<p class=note>{note}</p><div class=columns>{chart}<div>{ledger_table(record.metrics)}</div></div>"


def recorded_steps(record: RunRecord) -> str:
    """Returns the timeline of the recorded training steps as HTML; empty if no steps were recorded."""
    strips = timeline_charts(record.trace)
    if not strips:
        return ""
    note = (
        "Recorded once on rank 0 after the first updates. A span inside another one is drawn in both rows. "
        "trace.json in the run folder opens in ui.perfetto.dev or chrome://tracing."
    )
    text = html.escape(timeline_text(record.trace))
    return f"<p class=note>{note}</p>{strips}<details><summary>Show as text</summary><pre>{text}</pre></details>"


def utilisation(record: RunRecord) -> str:
    """Returns the charts of processor, memory, GPU and rates over the run, as HTML; empty if none was logged."""
    charts = [curve(record, tag, title, percent, zero=True) for tag, (title, percent) in UTILISATION.items()]
    note = "Cores and memory include rank 0 and its simulators; GPU charts show the GPU of rank 0."
    return f"<p class=note>{note}</p><div class=grid>{''.join(charts)}</div>" if any(charts) else ""


def media(record: RunRecord, folder: Path) -> str:
    """Returns the videos and images of a run as HTML; empty if there are none.

    Files are embedded up to a total of 48 MiB. Files that would exceed this total are linked.

    Args:
        record: The run.
        folder: Folder of the page, from which the links lead to the files.
    """
    bytes_left, parts = EMBEDDED_BYTES, []
    for path in (*record.videos(), *record.images()):
        size = path.stat().st_size
        link = quote(os.fsencode(os.path.relpath(path, folder)))  # names of files may be no UTF-8
        embedded = size <= bytes_left
        bytes_left -= size if embedded else 0
        name = html.escape(path.stem) + ("" if embedded else " (linked file: too large to embed)")
        kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        source = f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}" if embedded else link
        tag = (
            f"<video controls loop muted src='{source}'></video>"
            if kind.startswith("video")
            else f"<img alt='{html.escape(path.name)}' src='{source}'>"
        )
        parts.append(f"<figure><figcaption><span>{name}</span></figcaption>{tag}</figure>")
    return f"<div class=media>{''.join(parts)}</div>" if parts else ""


def machine(record: RunRecord) -> str:
    """Returns a table of the machine and the software versions of the run, as HTML."""
    facts = {key: value for key, value in record.facts.items() if key not in ("host", "command")}
    return facts_table({**facts, **record.facts.get("host", {})})


def configuration(record: RunRecord) -> str:
    """Returns a table of all settings of the run, as HTML; empty if they are unknown."""
    if not record.config:
        return ""
    values = {name: json.dumps(value) if value == "" else value for name, value in flatten(record.config).items()}
    return f"<details><summary>{len(values)} settings</summary>{facts_table(values)}</details>"
