"""Mutations of command lines: a seeded generator of options as a careless or hostile user would write them."""

from __future__ import annotations

import random
from collections.abc import Iterator

from powerband.cli.catalogue import RECIPES, load
from powerband.core.config.schema import Field, fields_of, value_text
from powerband.core.config.values import is_list

LONG = 100_000
NUMBERS = (
    *("-1", "-8", "0", "1", "2", "3", "7", "0.5", "-0.5", "1.5", "1e-3", "1e3", "1e6", "1e30", "1e400", "1E5", "+4"),
    *(".5", "5.", "00", "-0", "inf", "-inf", "Infinity", "nan", "NaN", "-nan", "", " ", " 3", "3 ", "\t3", "3\n"),
    *("1_000", "1__0", "١٢٣", "１２", "²", "Ⅷ", "0x10", "0b1", "1,000", "1.2.3", "--5", "+-5", "1e", "e5", "1e5.5"),
    *("1e99999999", "1/2", "2**3", "None", "none", "null", "true", "False", "on", "x", "auto", "a b", "1j"),
    *(str(2**63 - 1), str(2**63), str(-(2**63)), str(2**64), "1e18", "1e12", "1e13", "9" * 25, "9" * 200),
    *("0." + "1" * 150, "9" * LONG, "x" * LONG),
)
TEXTS = (
    *("", ".", "..", "/", "None", "a\0b", "a\nb", "~nobody_here/x", "é", "\u202e", "\ud800", "{", "[1"),
    *("y" * LONG, "/" * 5000),
)
LISTS = (
    *("", ",", "8,,16", ",8", "8,", "8,-1", "(8", "8)", "(8,16)", "[8, 16]", "((8))", "8;16", "8 16", "8,x"),
    *("8,nan", "8,inf", "8,1_0", "None", "8,None", "0", "0,0", "8.5", "1e30,2", "8," * 4999 + "8", "a,b", "policy"),
)


def command_lines(seed: int, count: int) -> Iterator[tuple[str, list[str]]]:
    """Yields `count` times (recipe, arguments): one to three options, most of them mutated.

    Args:
        seed: Seed of the generator; equal seeds yield equal command lines.
        count: Number of command lines, spread evenly over the built-in recipes.
    """
    draw = random.Random(seed)
    fields = {name: list(fields_of(load(name).Config).values()) for name in RECIPES}
    for index in range(count):
        recipe = RECIPES[index % len(RECIPES)]
        arguments: list[str] = []
        for _ in range(draw.choice((1, 1, 1, 2, 3))):
            arguments += _option(draw, draw.choice(fields[recipe]))
        if draw.random() < 0.05:
            arguments += arguments[:1]
        yield recipe, arguments


def _option(draw: random.Random, field: Field) -> list[str]:
    name, value = _name(draw, field.path), _value(draw, field)
    if draw.random() < 0.03:
        return [draw.choice((f"--{name}", name, f"--no-{name}", f"-{name}", "--", "=", f"={value}"))]
    form = draw.randrange(4)
    if form == 0 and not value.startswith("--"):
        return [f"--{name}", *(value.split(",")[:50] if is_list(field.kind) and draw.random() < 0.5 else [value])]
    return [f"--{name}={value}" if form == 1 else f"{name}={value}"]


def _name(draw: random.Random, path: str) -> str:
    name = path if draw.random() < 0.7 else path.rpartition(".")[2]
    if draw.random() > 0.12:
        return name.replace("_", "-") if draw.random() < 0.1 else name
    at = draw.randrange(len(name))
    return draw.choice(
        (
            name[:at] + name[at + 1 :],
            name[:at] + "x" + name[at:],
            name.upper(),
            f"other.{name}",
            name.rpartition(".")[0] or "z",
            name + "é",
            name * 3000,
            "run",
            "ppo",
        )
    )


def _value(draw: random.Random, field: Field) -> str:
    if draw.random() < 0.15:
        return value_text(field.default)
    if is_list(field.kind):
        return draw.choice((*LISTS, *NUMBERS))
    if "Literal" in str(field.kind) or draw.random() < 0.1:
        return draw.choice((*TEXTS, *NUMBERS, *LISTS))
    return draw.choice(TEXTS if field.kind is str else NUMBERS)
