"""Mutated command lines: an accepted one is inside the declared ranges, a refused one is one short, clear message."""

from __future__ import annotations

import math
import re
from collections import Counter
from operator import attrgetter
from typing import Any

import pytest

from cli.mutations import command_lines
from powerband.cli.catalogue import configure
from powerband.core.config.ranges import range_of
from powerband.core.config.schema import fields_of
from powerband.core.config.texts import SHOWN_PATH
from powerband.core.errors import ConfigError


def outside(kind: Any, value: Any) -> bool:
    """Whether a number of `value` is outside the range of its type, computed independently of the package."""
    limits = range_of(kind)
    for number in value if isinstance(value, tuple) else (value,):
        if limits is None or number is None or not isinstance(number, int | float):
            continue
        if math.isinf(number) and limits.infinite and number > 0:
            continue
        low = limits.at_least is None or number >= limits.at_least
        high = limits.at_most is None or number <= limits.at_most
        above = limits.above is None or number > limits.above
        below = limits.below is None or number < limits.below
        if not (low and high and above and below and math.isfinite(number)):
            return True
    return False


def check_one(recipe: str, arguments: list[str]) -> str:
    """Reads a command line, checks the result or the message, and returns "accepted" or "refused"."""
    try:
        definition, _, resolved = configure(recipe, arguments)
        config = resolved.config
        definition.check_sizes(config, 1)
    except ConfigError as error:
        _check_message(str(error), arguments)
        return "refused"
    for path, field in fields_of(type(config)).items():
        assert not outside(field.kind, attrgetter(path)(config)), (recipe, arguments, path)
    return "accepted"


def check(seed: int, count: int) -> tuple[int, int]:
    """Reads `count` mutated command lines; returns the numbers of accepted and refused ones."""
    counts = Counter(check_one(recipe, arguments) for recipe, arguments in command_lines(seed, count))
    return counts["accepted"], counts["refused"]


def _check_message(message: str, arguments: list[str]) -> None:
    assert len(message) < 600 and message.isprintable(), message
    assert not re.search(rf"(.)\1{{{SHOWN_PATH}}}", message), "a message repeats a long value"
    given = [argument.lstrip("-").partition("=")[0].replace("-", "_") for argument in arguments]
    names = {part[:30] for name in given for part in (name, name.rpartition(".")[2], name.removeprefix("no_"))}
    no_name = any(text in message for text in ("names no option", "has no value", "Unknown stage"))
    assert no_name or any(name and name in message for name in names), (arguments, message)


def test_a_number_of_environments_takes_no_memory_before_they_exist() -> None:
    many = ["num_envs=1e12", "replay_size=1e12"]
    assert check_one("metaworld", many) == "accepted"  # a list of their tasks would take 8 TB


def test_some_hundred_command_lines() -> None:
    accepted, refused = check(seed=27, count=600)
    assert accepted > 50 and refused > 300


@pytest.mark.slow
def test_five_thousand_command_lines() -> None:
    accepted, refused = check(seed=28, count=5_000)
    assert accepted > 500 and refused > 3_000
