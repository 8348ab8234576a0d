"""One self-contained HTML page about a run: what it was, how it went, what it can do. Opens without a network."""

from __future__ import annotations

import base64
import html
import json
import tempfile
from pathlib import Path

from powerband.report.curves import draw_curves, read_metrics

STYLE = """
body{font:15px/1.5 system-ui,'Noto Sans SC',sans-serif;margin:2rem auto;max-width:1060px;padding:0 1rem;color:#1c2b33}
h1{font-size:1.5rem;margin-bottom:.2rem} h2{font-size:1.1rem;margin-top:2rem;border-bottom:1px solid #d8e0e4}
table{border-collapse:collapse;margin:.6rem 0} td,th{padding:.25rem .8rem .25rem 0;text-align:left;vertical-align:top}
th{font-weight:600;color:#4a5c66} img,video{max-width:100%;border-radius:4px} code{background:#f0f4f6;padding:0 .25rem}
.figures{font-variant-numeric:tabular-nums}
"""


def write_page(run_dir: Path) -> Path:
    """Writes ``report.html`` into a run folder from the files that are there, and returns its path.

    Raises:
        ValueError: `run_dir` is not a run folder.
    """
    run_dir = Path(run_dir)
    metrics = read_metrics(run_dir)
    facts = _json(run_dir / "run.json")
    parts = [f"<h1>{html.escape(facts.get('recipe', 'run'))}: {html.escape(run_dir.name)}</h1>"]
    parts.append(f"<p><code>{html.escape(facts.get('command', ''))}</code></p>")
    if metrics:
        parts.append("<h2>Progress</h2>" + _last_figures(metrics[-1]))
    for name, table in sorted(_evaluations(run_dir).items()):
        parts.append(f"<h2>Evaluation: {html.escape(name)}</h2>" + _rows_table(table))
    if metrics:
        with tempfile.TemporaryDirectory() as folder:
            curves = draw_curves(run_dir, Path(folder) / "curves.png")
            parts.append(f"<h2>Curves</h2><img alt='curves' src='{_data(curves, 'image/png')}'>")
    for video in sorted((run_dir / "videos").glob("*.mp4")) if (run_dir / "videos").is_dir() else []:
        parts.append(
            f"<h2>{html.escape(video.stem)}</h2><video controls loop src='{_data(video, 'video/mp4')}'></video>"
        )
    for picture in sorted(run_dir.glob("*.png")):
        parts.append(f"<h2>{html.escape(picture.stem)}</h2><img alt='' src='{_data(picture, 'image/png')}'>")
    parts.append(
        "<h2>Machine</h2>" + _rows_table([{"": key, " ": value} for key, value in facts.get("host", {}).items()])
    )
    config = json.dumps(_json(run_dir / "config.json"), indent=2)
    parts.append(
        f"<h2>Configuration</h2><details><summary>resolved</summary><pre>{html.escape(config)}</pre></details>"
    )
    page = (
        f"<!doctype html><meta charset=utf-8><title>{html.escape(run_dir.name)}</title>"
        f"<style>{STYLE}</style>{''.join(parts)}"
    )
    path = run_dir / "report.html"
    path.write_text(page, encoding="utf-8")
    return path


def _json(path: Path) -> dict:
    return json.loads(path.read_text()) if path.exists() else {}


def _evaluations(run_dir: Path) -> dict[str, list[dict]]:
    return {path.stem.removeprefix("eval-"): _json(path)["rows"] for path in run_dir.glob("eval-*.json")}


def _data(path: Path, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"


def _rows_table(rows: list[dict]) -> str:
    if not rows:
        return "<p>none</p>"
    head = "".join(f"<th>{html.escape(str(key))}</th>" for key in rows[0])
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(_text(value))}</td>" for value in row.values()) + "</tr>" for row in rows
    )
    return f"<table class=figures><tr>{head}</tr>{body}</table>"


def _last_figures(line: dict) -> str:
    return _rows_table(
        [{"figure": key, "last value": value} for key, value in line.items() if not key.startswith("perf/")]
    )


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return ", ".join(_text(part) for part in value)
    return str(value)
