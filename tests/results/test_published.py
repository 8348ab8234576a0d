"""Published rows: they follow from the stored runs, and the interval of one run is that of the textbook."""

import runpy
import sys
from pathlib import Path

import pytest

from powerband.core.errors import ConfigError
from powerband.results.published import Figure, row, rows

ROOT = Path(__file__).parents[2]


def test_rows_and_figures_of_the_page_follow_from_the_stored_runs(monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["results.py", "--check"])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(ROOT / "scripts" / "results.py"), run_name="__main__")
    assert end.value.code == 0, capsys.readouterr().out


def test_every_row_has_figures_of_several_seeds_and_names_no_other_run() -> None:
    for each in rows().values():
        assert each.figures and len(each.seeds) >= 2
        assert all(len(figure.values) == len(each.seeds) for figure in each.figures)
        assert not any("/" in word or "{" in word for word in (*each.train, *each.evaluate))


def test_prediction_interval_of_a_mean() -> None:
    low, high = Figure("", "return", (1.0, 2.0, 3.0), 10).prediction_interval()
    assert low == pytest.approx(2 - 4.303 * (4 / 3) ** 0.5) and high == pytest.approx(2 + 4.303 * (4 / 3) ** 0.5)


def test_a_share_of_equal_seeds_keeps_the_spread_of_its_trials() -> None:
    low, high = Figure("", "success", (1.0, 1.0, 1.0), 100).prediction_interval()
    assert 0.97 < low < 1.0 and high == 1.0


def test_an_unknown_row_is_refused_with_a_proposal() -> None:
    with pytest.raises(ConfigError, match="cartpole"):
        row("cartpol")
