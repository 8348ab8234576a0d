"""Ranges: open and closed ends, infinities, lists, and the check that every source of a value passes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import pytest

from powerband.core.config import from_json, resolve
from powerband.core.config.ranges import MAX_COUNT, Length, Range, check_ranges, refusal
from powerband.core.config.values import describe_kind
from powerband.core.errors import ConfigError


@dataclass(frozen=True)
@check_ranges
class Section:
    lr: Annotated[float, Range(above=0, at_most=10)] = 1e-3
    """Learning rate."""
    hidden: Annotated[tuple[Annotated[int, Range(at_least=1)], ...], Length(1)] = (8,)
    """Widths."""
    limit: Annotated[float, Range(at_least=0)] | None = None
    """Limit."""
    snr: Annotated[float, Range(at_least=-100, infinite=True)] = 40.0
    """Ratio."""
    heads: Annotated[int, Range(at_least=1)] = 2
    """Heads."""

    def __post_init__(self) -> None:
        if self.hidden[0] % self.heads:
            raise ConfigError(f"section.hidden={self.hidden[0]} is not a multiple of section.heads={self.heads}.")


@dataclass(frozen=True)
class Config:
    section: Section = field(default_factory=Section)
    plain: Annotated[int, Range(at_least=0)] = 0
    """A setting of a dataclass that does not check itself."""


@pytest.mark.parametrize(
    ("limits", "inside", "outside", "text"),
    [
        (Range(), (-1e300, 0, 1e300), (math.inf, -math.inf, math.nan), ""),
        (Range(at_least=0), (0, 1e300), (-1e-300, math.inf), "0 or more"),
        (Range(above=0), (5e-324, 1), (0, -0.0, -1), "above 0"),
        (Range(at_least=0, at_most=1), (0, 1, 0.5), (-0.1, 1.0000001), "0 to 1"),
        (Range(at_least=0, below=1), (0, 0.999), (1, 2), "0 to below 1"),
        (Range(above=0, at_most=1), (1e-9, 1), (0, 1.1), "above 0 to 1"),
        (Range(above=0, below=1), (0.5,), (0, 1), "above 0 to below 1"),
        (Range(at_most=5), (-9, 5), (6, -math.inf), "5 or less"),
        (Range(at_least=1, at_most=10**12), (1, 10**12), (0, 10**12 + 1), "1 to 1e12"),
        (Range(at_least=0, at_most=MAX_COUNT), (2**63 - 1,), (2**63,), "0 or more"),
        (Range(at_least=0, at_most=9, infinite=True), (0, 9, math.inf), (-math.inf, 10, math.nan), "0 to 9, or inf"),
    ],
)
def test_limits(limits: Range, inside: tuple[float, ...], outside: tuple[float, ...], text: str) -> None:
    assert str(limits) == text
    assert [value for value in inside if limits.refusal(value)] == []
    assert [value for value in outside if not limits.refusal(value)] == []


def test_every_source_passes_the_same_check(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("section: {lr: -1}\n")
    sources = {
        "command line": lambda: resolve(Config, ["lr=-1"]),
        "own.yaml:1": lambda: resolve(Config, [f"config={tmp_path / 'own.yaml'}"]),
        "variant mine": lambda: resolve(Config, ["variant=mine"], variants={"mine": {"section.lr": -1}}),
        "saved.json": lambda: from_json(Config, '{"section": {"lr": -1}}', "saved.json"),
        "lr=-1": lambda: Section(lr=-1),
        "lr=-2": lambda: replace(Section(), lr=-2),
    }
    for source, build in sources.items():
        with pytest.raises(ConfigError, match="is not above 0") as caught:
            build()
        assert source in str(caught.value) and "lr" in str(caught.value)
    with pytest.raises(ConfigError, match="plain=-1.*below 0"):
        resolve(Config, ["plain=-1"])


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["hidden="], "0 values are given, but 1 or more are needed"),
        (["hidden=8,0"], "0 is below 1"),
        (["hidden=8,,8"], "member 2 of the list is empty"),
        (["limit=-1"], "-1 is below 0"),
        (["limit=inf"], "inf is not finite"),
        (["lr=1e400"], "too large"),
        (["lr=inf"], "inf is not finite"),
        (["lr=1_0"], "no underscores"),
        (["lr=١"], "only the digits 0 to 9"),
        (["lr=１"], "only the digits 0 to 9"),
        (["lr= 1"], "blanks"),
        (["lr=1,5"], "no commas"),
        (["lr="], "the value is empty"),
        (["heads=2.0"], "no decimal point"),
        (["heads=2.5"], "not a whole number"),
        (["heads=0"], "0 is below 1"),  # the range is checked before the relation, which divides by it
        (["snr=-inf"], "-inf is below -100"),
        (["heads=3"], "multiple of section.heads=3"),
    ],
)
def test_refused_with_the_reason(arguments: list[str], part: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(Config, arguments)
    assert part in str(caught.value) and arguments[0].partition("=")[0] in str(caught.value)


def test_accepted() -> None:
    config = resolve(Config, ["snr=inf", "limit=None", "hidden=(8,)", "lr=+.5e-1", "heads=1e0"]).config
    assert config.section == Section(0.05, (8,), None, math.inf, 1)


def test_a_type_is_described_with_its_range() -> None:
    kinds = Section.__annotations__
    assert describe_kind(eval(kinds["lr"])) == "a number, above 0 to 10"
    assert describe_kind(eval(kinds["hidden"])) == "a list of 1 or more, each an integer, 1 or more"
    assert describe_kind(eval(kinds["limit"])) == "None or a number, 0 or more"
    assert describe_kind(tuple[Annotated[float, Range(below=1)], int]) == "2 values (a number, below 1; an integer)"
    assert refusal(eval(kinds["limit"]), None) == ""
