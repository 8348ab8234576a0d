"""Tests of the report pages: sections, charts, time ledger, comparisons and invalid arguments."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote_to_bytes

import pytest

from powerband.cli import main as cli
from powerband.core.errors import ConfigError
from powerband.report import page as page_module
from powerband.report.chart import Line, line_chart, ticks
from powerband.report.document import save_page
from powerband.report.page import tiles
from powerband.report.run_record import RunRecord, shown_cause
from powerband.report.sections.curves import downsample, exponential_mean, is_constant, read_metrics
from powerband.report.sections.ledger import account_colours, ledger_chart, seconds_by_account
from powerband.report.sections.tables import evaluation_table
from powerband.report.sections.tuning import heat_map
from powerband.report.watch import RunStatus


class Outline(HTMLParser):
    """Headings of a page, and the addresses that a browser would load from a network or a disk."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.headings: list[str] = []
        self.loaded: list[str] = []
        self._heading = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._heading = tag == "h2"
        addresses = [
            value or "" for name, value in attrs if name in ("src", "srcset") or (name == "href" and tag != "a")
        ]
        self.loaded += [value for value in addresses if not value.startswith("data:")]

    def handle_data(self, data: str) -> None:
        if self._heading:
            self.headings.append(data)
            self._heading = False


def report_page(*arguments: str, capsys: pytest.CaptureFixture) -> str:
    assert cli.main(["report", *arguments]) == 0
    return Path(capsys.readouterr().out.strip()).read_text(encoding="utf-8")


def test_the_page_shows_all_sections_and_is_self_contained(sac: Path, tmp_path: Path, capsys) -> None:
    run = shutil.copytree(sac, tmp_path / "run")
    (run / "eval-games.json").write_text(
        json.dumps({"rows": [{"opponent": "random <b>", "win": 0.75, "win_95": [0.6, 0.9], "games": 20}]})
    )
    (run / "tuning.json").write_text(
        json.dumps({"rows": [{"knobs": {"num_envs": n}, "steps_per_s": 10.0 * n, "measured": n == 2} for n in (1, 2)]})
    )
    (run / "videos").mkdir()
    (run / "videos" / "game.mp4").write_bytes(b"not a video")
    (run / "videos" / "0.png").write_bytes(b"no picture")
    (run / "videos" / "game.gif").write_bytes(b"no animation")
    page = report_page(str(run), capsys=capsys)
    outline = Outline(page)
    assert outline.headings == [
        "Learning",
        "Evaluation",
        "Where the time went",
        "Recorded steps",
        "Utilisation",
        "Tuning",
        "Videos and images",
        "Machine",
        "Configuration",
    ]
    assert outline.loaded == [] and "url(" not in page and "@import" not in page
    assert "random &lt;b&gt;" in page and "random <b>" not in page
    assert "[0.6, 0.9]" in page and "data:video/mp4;base64,bm90IGEgdmlkZW8=" in page
    assert "data:image/png;base64,bm8gcGljdHVyZQ==" in page and "data:image/gif;base64,bm8gYW5pbWF0aW9u" in page
    assert "ended: budget reached" in page and "off_policy.update_interval" in page
    assert not re.search(r"=[^'\"\s>]+/>", page), (
        "an unquoted attribute value includes the slash, so that its element stays open"
    )


def test_a_run_without_trace_evaluation_or_processes_has_a_page(sac: Path, tmp_path: Path, capsys) -> None:
    run = shutil.copytree(sac, tmp_path / "run")
    for name in ("trace.json", "processes.json"):
        (run / name).unlink()
    (run / "metrics.jsonl").write_text(
        (run / "metrics.jsonl").read_text() + '{"env_steps": 99'
    )  # a killed run left half a line
    page = report_page(str(run), f"to={tmp_path / 'other.html'}", capsys=capsys)
    assert "Recorded steps" not in Outline(page).headings and "state unknown" in page
    assert (tmp_path / "other.html").exists() and not (run / "report.html").exists()


def test_links_to_files_too_large_to_embed_lead_from_the_page_to_the_run(
    sac: Path, tmp_path: Path, capsys, monkeypatch
) -> None:
    monkeypatch.setattr(page_module, "EMBEDDED_BYTES", 0)
    run = shutil.copytree(sac, tmp_path / "run")
    video, picture = run / "videos" / "game #1?100%.mp4", run / os.fsdecode(b"game-\xff'.png")
    video.parent.mkdir()
    for file in (video, picture):
        file.write_bytes(b"too large")
    for page in (run / "report.html", tmp_path / "pages" / "other.html"):
        links = Outline(report_page(str(run), f"to={page}", capsys=capsys)).loaded
        assert [(page.parent / os.fsdecode(unquote_to_bytes(link))).resolve() for link in links] == [video, picture]
        assert not any(mark in link for link in links for mark in "#?'")


def test_the_tuning_map_of_the_preset_is_shown(sac: Path, tmp_path: Path, capsys, monkeypatch) -> None:
    run = shutil.copytree(sac, tmp_path / "run")
    setups = tmp_path / "powerband" / "setup"
    setups.mkdir(parents=True)
    (setups / "mine.yaml").write_text("threads: 1\n")
    rows = [{"knobs": {"num_envs": n, "batch": b}, "steps_per_s": 1e3 * n} for n in (1, 2, 3) for b in (8, 16)]
    (setups / "mine.tuning.json").write_text(json.dumps({"rows": [*rows, {"knobs": "damaged"}]}))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    facts = json.loads((run / "run.json").read_text())
    for command, shown in ((facts["command"], False), (facts["command"] + " setup=mine", True)):
        (run / "run.json").write_text(json.dumps({**facts, "command": command}))
        assert ("Tuning" in Outline(report_page(str(run), capsys=capsys)).headings) is shown
    assert heat_map(rows).count("<rect") == 6 and "batch 16" in heat_map(rows)


def test_two_runs_are_compared_with_their_different_settings(
    sac: Path, other_sac: Path, tmp_path: Path, capsys
) -> None:
    page = report_page(str(sac), str(other_sac), f"to={tmp_path / 'both.html'}", capsys=capsys)
    headings = Outline(page).headings
    assert "Learning, by wall time" in headings and "Different settings" in headings
    charts = [json.loads(html.unescape(points)) for points in re.findall(r'data-points="([^"]*)"', page)]
    names = [[line["name"] for line in chart["lines"]] for chart in charts]
    assert ["sac", "other"] in names and ["sac"] in names, "one of the runs has no evaluation"
    differences = page[page.index("Different settings</h2>") :]
    assert (
        "off_policy.global_batch_size" in differences and "run.seed" in differences and "sac.gamma" not in differences
    )


MARKUP = "\"'><b class=injected>"


def with_markup(value: object) -> object:
    """Adds markup to every name and every text in a JSON value."""
    if isinstance(value, dict):
        return {key: with_markup(item) for key, item in value.items()} | {MARKUP: MARKUP}
    if isinstance(value, list):
        return [with_markup(item) for item in value]
    return value + MARKUP if isinstance(value, str) else value


def test_texts_of_files_are_not_interpreted_as_markup(sac: Path, other_sac: Path, tmp_path: Path, capsys) -> None:
    runs = [shutil.copytree(run, tmp_path / f"{number}{MARKUP}") for number, run in enumerate((sac, other_sac))]
    for number, run in enumerate(runs):
        rows = [{"return": 1.0, "policy": str(number)}]
        (run / "eval-games.json").write_text(json.dumps(rows))
        for path in run.glob("*.json"):
            if path.name != "config.json":  # a text in place of an option is refused before it is shown
                path.write_text(json.dumps(with_markup(json.loads(path.read_text()))))
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        varying = [line | {f"charts/{MARKUP}": float(step)} for step, line in enumerate(lines)]
        (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in varying))
    single = report_page(str(runs[0]), f"to={tmp_path / 'single.html'}", capsys=capsys)
    both = report_page(*map(str, runs), f"to={tmp_path / 'both.html'}", capsys=capsys)
    for page in (single, both):
        assert "<b class=injected>" not in page and page.count(html.escape("<b class=injected>")) > 4


@pytest.mark.parametrize("arguments", [["{run}", "{run}"], ["{run}", "/nowhere"], ["{run}", "to=/proc/none/page.html"]])
def test_invalid_arguments_are_refused_in_one_line(arguments: list[str], sac: Path, capsys) -> None:
    assert cli.main(["report", *(argument.format(run=sac) for argument in arguments)]) == 2
    message = capsys.readouterr().err
    assert message.startswith("powerband: ") and message.count("\n") == 1


@pytest.mark.parametrize("option", ["to=FILE.html", "page=FILE.html", ""])
def test_a_page_that_cannot_be_written_names_the_option_of_its_command(option: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is a directory|Is a directory") as error:
        save_page(tmp_path, "page", option)
    assert str(error.value).endswith(f"Name another file with {option}." if option else "correct the permissions.")


@pytest.mark.timed
def test_the_ledger_sums_to_the_wall_time_of_the_run(sac: Path) -> None:
    metrics = read_metrics(sac)
    total, wall = seconds_by_account(metrics)
    assert sum(total.values()) == pytest.approx(wall, rel=0.02)
    assert wall == pytest.approx(metrics[-1]["time_s"], rel=0.02)
    assert ledger_chart(metrics).count("<polygon") == len(total) >= 5


def test_any_number_of_accounts_is_drawn_and_each_has_one_colour() -> None:
    line = {"env_steps": 10, "grad_steps": 0, "time_s": 2.0, "charts/SPS": 5.0}
    line |= {f"perf/share/mine{index}": 1 / 14 for index in range(14)}
    assert ledger_chart([line]).count("<polygon") == 14
    colours = account_colours(["env", "mine", "update", "other"])
    assert len(set(colours.values())) == 4 and account_colours(["update", "mine"])["update"] == colours["update"]


def test_smoothing_starts_at_the_first_value_and_preserves_a_constant() -> None:
    assert exponential_mean([3.0] * 9, 5) == pytest.approx([3.0] * 9)
    assert exponential_mean([1.0, 0.0], 3) == pytest.approx([1.0, 1 / 3])
    xs, ys = downsample(list(range(1000)), [float(x) for x in range(1000)], 100)
    assert len(xs) == 100 and xs[-1] == 999 and ys[0] == pytest.approx(4.5)
    assert is_constant([{"env_steps": 1, "a/b": 2}, {"env_steps": 2, "a/b": 2}], "a/b")


def test_ticks_are_round_numbers_within_the_axis() -> None:
    assert ticks(0, 1, 4) == [0, 0.25, 0.5, 0.75, 1]
    assert ticks(-1712, -156, 4) == [-1500, -1000, -500]
    assert ticks(5, 5, 4) == [5]
    assert "5000" in line_chart("a", [Line("", [0, 10_000], [1, 1])])


def test_intervals_are_drawn_and_missing_ones_are_not() -> None:
    table = evaluation_table([{"name": "a", "win": 1.0, "win_95": [0.9, 1.0]}, {"name": "b", "win": 0.5}])
    assert table.count("<circle") == 1 and "win, 95 % interval" in table
    assert evaluation_table([{"return": -3.0, "return_low": float("nan"), "return_high": 2.0}]).count("<circle") == 0


@pytest.mark.parametrize(("share", "cause"), [(0.09, ""), (0.1, "env-bound")])
def test_the_cause_of_little_idle_time_is_not_shown(share: float, cause: str) -> None:
    assert shown_cause(share, "env-bound") == cause
    status = RunStatus("2026-01-01T00:00:00", "running", idle=share, idle_cause="env-bound")
    assert ("env-bound" in str(status)) == bool(cause)
    line = {"env_steps": 1, "grad_steps": 1, "time_s": 1.0, "perf/idle/env-bound": share}
    record = RunRecord(Path("run"), {}, {}, [line], {}, {}, {})
    assert ("env-bound" in tiles(record)) == bool(cause) and "learner idle" in tiles(record)


def test_lines_of_evaluations_do_not_shorten_the_intervals_of_the_ledger() -> None:
    lines = [
        {"env_steps": 10, "grad_steps": 0, "time_s": 1.0, "charts/SPS": 0.0, "perf/share/env": 1.0},
        {"env_steps": 20, "grad_steps": 0, "time_s": 8.0, "eval/return": 1.0},
        {"env_steps": 20, "grad_steps": 0, "time_s": 9.0, "charts/SPS": 0.0, "perf/share/eval": 1.0},
    ]
    assert seconds_by_account(lines) == ({"eval": 8.0, "env": 1.0}, 9.0)
    assert ledger_chart(lines[1:])


def test_a_table_has_the_columns_of_all_rows() -> None:
    table = evaluation_table([{"run": "a", "return": 1.0}, {"run": "b", "success": 0.5}])
    assert "<th>return</th>" in table and "success</th>" in table
