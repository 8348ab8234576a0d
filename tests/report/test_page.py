from __future__ import annotations

import html
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest

from powerband import cli
from powerband.report.chart import Line, line_chart, ticks
from powerband.report.curves import is_constant, read_metrics, smoothed, thinned
from powerband.report.ledger import colours, ledger_chart, seconds
from powerband.report.tables import evaluation_table


class Outline(HTMLParser):
    """Headings, and what of a page would ask a network or a disk for something."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.headings: list[str] = []
        self.outside: list[str] = []
        self._heading = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._heading = tag == "h2"
        fetched = [value or "" for name, value in attrs if name in ("src", "srcset") or (name == "href" and tag != "a")]
        self.outside += [value for value in fetched if not value.startswith("data:")]

    def handle_data(self, data: str) -> None:
        if self._heading:
            self.headings.append(data)
            self._heading = False


def page_of(*words: str, capsys: pytest.CaptureFixture) -> str:
    assert cli.main(["report", *words]) == 0
    return Path(capsys.readouterr().out.strip()).read_text(encoding="utf-8")


def test_the_page_shows_every_part_of_a_run_and_needs_nothing_else(sac: Path, tmp_path: Path, capsys) -> None:
    run = shutil.copytree(sac, tmp_path / "run")
    (run / "eval-games.json").write_text(
        json.dumps({"rows": [{"opponent": "random <b>", "win": 0.75, "win_95": [0.6, 0.9], "games": 20}]})
    )
    (run / "tuning.json").write_text(
        json.dumps({"rows": [{"knobs": {"num_envs": n}, "steps_per_s": 10.0 * n, "measured": n == 2} for n in (1, 2)]})
    )
    (run / "videos").mkdir()
    (run / "videos" / "game.mp4").write_bytes(b"not a film")
    page = page_of(str(run), capsys=capsys)
    outline = Outline(page)
    assert outline.headings == [
        "Learning",
        "Evaluation",
        "Where the time went",
        "Real steps",
        "Utilisation",
        "Tuning",
        "Videos and pictures",
        "Machine",
        "Configuration",
    ]
    assert outline.outside == [] and "url(" not in page and "@import" not in page
    assert "random &lt;b&gt;" in page and "random <b>" not in page
    assert "[0.6, 0.9]" in page and "data:video/mp4;base64,bm90IGEgZmlsbQ==" in page
    assert "ended: budget reached" in page and "off_policy.update_interval" in page
    assert not re.search(r"=[^'\"\s>]+/>", page), "an unquoted value swallows the slash and leaves its element open"


def test_a_run_without_trace_evaluation_or_processes_still_has_a_page(sac: Path, tmp_path: Path, capsys) -> None:
    run = shutil.copytree(sac, tmp_path / "run")
    for name in ("trace.json", "processes.json"):
        (run / name).unlink()
    (run / "metrics.jsonl").write_text((run / "metrics.jsonl").read_text() + '{"env_steps": 99')  # torn by a kill
    page = page_of(str(run), f"to={tmp_path / 'elsewhere.html'}", capsys=capsys)
    assert "Real steps" not in Outline(page).headings and "state unknown" in page
    assert (tmp_path / "elsewhere.html").exists() and not (run / "report.html").exists()


def test_two_runs_are_laid_side_by_side_with_what_differs(sac: Path, other_sac: Path, tmp_path: Path, capsys) -> None:
    page = page_of(str(sac), str(other_sac), f"to={tmp_path / 'both.html'}", capsys=capsys)
    headings = Outline(page).headings
    assert "Learning, by wall time" in headings and "What differs" in headings
    charts = [json.loads(html.unescape(found)) for found in re.findall(r'data-points="([^"]*)"', page)]
    names = [[line["name"] for line in chart["lines"]] for chart in charts]
    assert ["sac", "other"] in names and ["sac"] in names, "one of the runs was never evaluated"
    differs = page[page.index("What differs</h2>") :]
    assert "off_policy.global_batch_size" in differs and "run.seed" in differs and "sac.gamma" not in differs


@pytest.mark.parametrize("words", [["{run}", "{run}"], ["{run}", "/nowhere"], ["{run}", "to=/proc/none/page.html"]])
def test_what_cannot_be_reported_is_one_paragraph(words: list[str], sac: Path, capsys) -> None:
    assert cli.main(["report", *(word.format(run=sac) for word in words)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("powerband: ") and said.count("\n") == 1


def test_the_ledger_sums_to_the_wall_time_of_the_run(sac: Path) -> None:
    metrics = read_metrics(sac)
    total, wall = seconds(metrics)
    assert sum(total.values()) == pytest.approx(wall, rel=0.02)
    assert wall == pytest.approx(metrics[-1]["time_s"], rel=0.02)
    assert ledger_chart(metrics).count("<polygon") == len(total) >= 5


def test_accounts_are_data_any_number_of_them_and_each_has_one_colour() -> None:
    line = {"env_steps": 10, "grad_steps": 0, "time_s": 2.0, "charts/SPS": 5.0}
    line |= {f"perf/share/mine{index}": 1 / 14 for index in range(14)}
    assert ledger_chart([line]).count("<polygon") == 14
    chosen = colours(["env", "mine", "update", "other"])
    assert len(set(chosen.values())) == 4 and colours(["update", "mine"])["update"] == chosen["update"]


def test_smoothing_starts_at_the_first_value_and_keeps_a_constant() -> None:
    assert smoothed([3.0] * 9, 5) == pytest.approx([3.0] * 9)
    assert smoothed([1.0, 0.0], 3) == pytest.approx([1.0, 1 / 3])
    xs, ys = thinned(list(range(1000)), [float(x) for x in range(1000)], 100)
    assert len(xs) == 100 and xs[-1] == 999 and ys[0] == pytest.approx(4.5)
    assert is_constant([{"env_steps": 1, "a/b": 2}, {"env_steps": 2, "a/b": 2}], "a/b")


def test_ticks_are_round_and_inside() -> None:
    assert ticks(0, 1, 4) == [0, 0.25, 0.5, 0.75, 1]
    assert ticks(-1712, -156, 4) == [-1500, -1000, -500]
    assert ticks(5, 5, 4) == [5]
    assert "5000" in line_chart("a", [Line("", [0, 10_000], [1, 1])])


def test_an_interval_is_drawn_beside_its_figure_and_a_missing_one_is_not() -> None:
    table = evaluation_table([{"name": "a", "win": 1.0, "win_95": [0.9, 1.0]}, {"name": "b", "win": 0.5}])
    assert table.count("<circle") == 1 and "win, 95 %" in table
    assert evaluation_table([{"return": -3.0, "return_low": float("nan"), "return_high": 2.0}]).count("<circle") == 0
