"""One self-contained HTML page about a run: what it was, how it went, where its time went. Opens without a network."""

from __future__ import annotations

import base64
import html
import json
import mimetypes
from importlib.resources import files
from pathlib import Path

from powerband.core.console import clock, si
from powerband.report import tuning
from powerband.report.chart import Line, line_chart
from powerband.report.curves import (
    BOUNDS,
    LEARNING,
    LOSSES,
    POINTS,
    curve_tags,
    is_constant,
    series,
    smoothed,
    span,
    thinned,
)
from powerband.report.gantt import ascii_line, time_line
from powerband.report.ledger import ledger_chart, ledger_table
from powerband.report.record import Record
from powerband.report.tables import evaluation_table, facts_table, flat

EMBEDDED_BYTES = 48 * 2**20
"""Videos and pictures inside the page; what goes beyond is linked to in the run folder."""
UTILISATION = {
    "perf/cpu_cores": ("processor cores busy", False),
    "perf/gpu_active": ("time in which the GPU ran any kernel", True),
    "perf/gpu_power": ("GPU power, share of its limit", True),
    "perf/gpu_sm": ("multiprocessors with work", True),
    "perf/gpu_tensor": ("tensor cores at work", True),
    "perf/gpu_dram": ("GPU memory bandwidth", True),
    "perf/memory_gib": ("memory, GiB", False),
    "perf/gpu_memory_gib": ("GPU memory, GiB", False),
    "charts/SPS": ("environment steps a second", False),
    "charts/updates_per_s": ("updates a second", False),
}
HEADLINES = ("eval/return", "eval/win_greedy", "charts/win", "charts/episodic_return")


def write_page(run_dir: Path, path: Path | None = None) -> Path:
    """Writes the page of a run from the files that are there, and returns its path.

    Args:
        run_dir: The run folder.
        path: The page; ``report.html`` in the run folder where none is named.

    Raises:
        ValueError: `run_dir` is not a run folder, or the page cannot be written.
    """
    record = Record.read(run_dir)
    sections = {
        "Learning": learning(record),
        "Evaluation": evaluation(record),
        "Where the time went": where_time_went(record),
        "Real steps": real_steps(record),
        "Utilisation": utilisation(record),
        "Tuning": tuning.section(record),
        "Videos and pictures": media(record),
        "Machine": machine(record),
        "Configuration": configuration(record),
    }
    title = f"{record.facts.get('recipe', 'run')}: {record.name}"
    head = f"<p class=state>{html.escape(record.state)}</p>" + command_of(record) + tiles(record)
    return save(path or record.dir / "report.html", document(title, head, sections))


def write_map(preset: Path) -> Path:
    """Writes the page of a preset that `tune` wrote: the tuning map and what was measured; returns its path."""
    measured = preset.with_suffix(".tuning.json")
    found = json.loads(measured.read_text(encoding="utf-8"))
    settings = "".join(f"{html.escape(line)}\n" for line in preset.read_text(encoding="utf-8").splitlines())
    sections = {"Map": tuning.shown(tuning.read_rows(measured)), "Preset": f"<pre>{settings}</pre>"}
    head = f"<p class=state>{html.escape(found['gain'])}</p><code class=command>powerband tune {found['words']}</code>"
    return save(preset.with_suffix(".html"), document(f"tuned: {found['words']}", head, sections))


def document(title: str, head: str, sections: dict[str, str]) -> str:
    """The whole page: header, a list of its sections, and those of them that have something to show."""
    shown = {name: body for name, body in sections.items() if body}
    anchors = {name: name.lower().replace(" ", "-") for name in shown}
    nav = "".join(f"<a href='#{anchor}'>{html.escape(name)}</a>" for name, anchor in anchors.items())
    body = "".join(
        f"<section id='{anchors[name]}'><h2>{html.escape(name)}</h2>{part}</section>" for name, part in shown.items()
    )
    own = files("powerband.report")
    style, script = (own.joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    return (
        "<!doctype html><html lang=en><head><meta charset=utf-8>"
        "<meta name=viewport content='width=device-width,initial-scale=1'>"
        f"<title>{html.escape(title)}</title><style>{style}</style></head><body><main>"
        f"<header><button class=theme>light / dark</button><h1>{html.escape(title)}</h1>{head}<nav>{nav}</nav></header>"
        f"{body}</main><script>{script}</script></body></html>"
    )


def save(path: Path, page: str) -> Path:
    """Writes a page.

    Raises:
        ValueError: It cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{path} cannot be written ({error.strerror}). Name another file: to=FILE.html.") from error
    return path


def command_of(record: Record) -> str:
    """The command that started the run."""
    command = record.facts.get("command", "")
    return f"<code class=command>{html.escape(command)}</code>" if command else ""


def tiles(record: Record) -> str:
    """The figures a reader asks for first."""
    if not record.metrics:
        return "<p class=note>Nothing was logged yet.</p>"
    line = record.metrics[-1]
    shown = {
        "env steps": si(line["env_steps"]),
        "updates": si(line["grad_steps"]),
        "wall time": clock(line["time_s"]),
        "env steps/s, mean": si(record.mean_rate()),
        "updates/s, mean": si(record.mean_rate("grad_steps")),
    }
    waits = record.idle()
    if waits is not None:
        shown[f"learner idle, mostly {waits[1]}" if waits[1] else "learner idle"] = f"{waits[0]:.0%}"
    best = next((tag for tag in HEADLINES if record.last(tag) is not None), "")
    if best:
        shown[f"{best.partition('/')[2].replace('_', ' ')}, last ({best.partition('/')[0]})"] = (
            f"{record.last(best):.4g}"
        )
    boxes = (
        f"<div class=tile><b>{html.escape(value)}</b><span>{html.escape(name)}</span></div>"
        for name, value in shown.items()
    )
    return f"<div class=tiles>{''.join(boxes)}</div>"


def curve(record: Record, tag: str, title: str = "", percent: bool = False, zero: bool = False) -> str:
    """One tag over env steps: what was logged faintly, its running mean boldly, an interval as a band."""
    return line_chart(title or tag, [line_of(record, tag)], percent=percent, zero=zero)


def line_of(record: Record, tag: str, over: str = "env_steps", name: str = "", colour: int = 0) -> Line:
    """A tag of a run as a line of a chart, smoothed and thinned."""
    xs, ys = series(record.metrics, tag, over)
    ends = [series(record.metrics, tag + end, over)[1] for end in BOUNDS]
    if len(ys) <= POINTS and all(len(end) == len(ys) > 0 for end in ends):
        return Line(name, xs, ys, [], *ends, colour=colour)
    count = span(len(ys))
    x, y = thinned(xs, smoothed(ys, count))
    return Line(name, x, y, thinned(xs, ys)[1] if count > 1 else [], colour=colour)


def learning(record: Record) -> str:
    """Returns, win rates and the like, then losses."""
    found = [curve_tags(record.metrics, starts) for starts in (LEARNING, LOSSES)]
    first, losses = ([tag for tag in tags if not is_constant(record.metrics, tag)] for tags in found)
    constant = [tag for tag in sum(found, []) if tag not in (*first, *losses)]
    if not any(found):
        return ""
    over = span(len(record.metrics))
    how = (
        f"Bold: exponential mean over {over} log intervals; faint: as logged."
        if over > 1
        else "One point a log interval."
    )
    body = f"<p class=note>{how} Bands are 95 % intervals. The x axis counts environment steps over all ranks.</p>"
    body += f"<div class=grid>{''.join(curve(record, tag) for tag in first)}</div>"
    if losses:
        body += f"<h3>Losses</h3><div class=grid>{''.join(curve(record, tag) for tag in losses)}</div>"
    if constant:
        named = ", ".join(f"{tag} {record.last(tag):.4g}" for tag in constant)
        body += f"<p class=note>The same throughout: {html.escape(named)}.</p>"
    return body


def evaluation(record: Record) -> str:
    """The tables that ``powerband eval`` wrote."""
    parts = []
    for name, rows in record.evaluations.items():
        parts.append(f"<h3>{html.escape(name)}</h3>{evaluation_table(rows)}")
    if parts:
        parts.insert(0, "<p class=note>Brackets and bars are 95 % intervals.</p>")
    return "".join(parts)


def where_time_went(record: Record) -> str:
    """The ledger over time, and its sums."""
    chart = ledger_chart(record.metrics)
    if not chart:
        return ""
    note = (
        "Every second of the leading rank's wall time is in one account. The rest of the machine is under Utilisation."
    )
    return f"<p class=note>{note}</p><div class=beside>{chart}<div>{ledger_table(record.metrics)}</div></div>"


def real_steps(record: Record) -> str:
    """The time line of recorded steps."""
    strips = time_line(record.trace)
    if not strips:
        return ""
    note = (
        "Recorded once, after warm-up, on the leading rank; a span inside another one is drawn in the rows of both. "
        "trace.json beside this page opens in ui.perfetto.dev or chrome://tracing."
    )
    text = html.escape(ascii_line(record.trace))
    return f"<p class=note>{note}</p>{strips}<details><summary>as text</summary><pre>{text}</pre></details>"


def utilisation(record: Record) -> str:
    """Processor, memory, GPU and rates over the run."""
    charts = [curve(record, tag, title, percent, zero=True) for tag, (title, percent) in UTILISATION.items()]
    note = "Cores and memory are those of the leading rank and its simulators; the GPU's are those of its GPU."
    return f"<p class=note>{note}</p><div class=grid>{''.join(charts)}</div>" if any(charts) else ""


def media(record: Record) -> str:
    """Videos and pictures, inside the page as far as EMBEDDED_BYTES go."""
    left, parts = EMBEDDED_BYTES, []
    for path in (*record.videos(), *record.pictures()):
        size = path.stat().st_size
        source = html.escape(str(path.relative_to(record.dir)), quote=True)
        inside = size <= left
        left -= size if inside else 0
        name = html.escape(path.stem) + ("" if inside else " (beside this page: too large to put inside)")
        kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        data = f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}" if inside else source
        tag = (
            f"<video controls loop muted src='{data}'></video>"
            if kind.startswith("video")
            else f"<img alt='{source}' src='{data}'>"
        )
        parts.append(f"<figure><figcaption><span>{name}</span></figcaption>{tag}</figure>")
    return f"<div class=media>{''.join(parts)}</div>" if parts else ""


def machine(record: Record) -> str:
    """Hardware and versions."""
    facts = {key: value for key, value in record.facts.items() if key not in ("host", "command")}
    return facts_table({**facts, **record.facts.get("host", {})})


def configuration(record: Record) -> str:
    """Every value the run had."""
    if not record.config:
        return ""
    values = {name: json.dumps(value) if value == "" else value for name, value in flat(record.config).items()}
    return f"<details><summary>{len(values)} values</summary>{facts_table(values)}</details>"
