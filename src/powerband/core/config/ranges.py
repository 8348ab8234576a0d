"""Ranges: the allowed numbers of a setting, declared in its type and checked here, whatever the source of the value.

    lr: Annotated[float, Range(above=0, at_most=10)] = 3e-4

The types below have a name for each range that several settings share. The help prints every range.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from powerband.core.config.texts import path_problem, shortened
from powerband.core.errors import ConfigError

Class = TypeVar("Class")

MAX_COUNT = 2**63 - 1
"""Largest counter or seed: the largest number of a 64-bit tensor."""
MAX_SIZE = 10**12
"""Largest size, such as a number of rows; no machine holds more."""
MAX_WIDTH = 10**6
"""Largest width of a layer."""
MAX_PROCESSES = 1024
"""Largest number of processes on a machine."""
MAX_THREADS = 4096
"""Largest number of threads of a process."""


@dataclass(frozen=True)
class Range:
    """Type annotation of a numeric setting: its allowed numbers, with inclusive or exclusive limits.

    Attributes:
        at_least: Inclusive lower limit, the smallest allowed number; None for no such limit.
        above: Exclusive lower limit; None for no such limit.
        at_most: Inclusive upper limit, the largest allowed number; None for no such limit.
        below: Exclusive upper limit; None for no such limit.
        infinite: True also allows inf, and -inf if there is no lower limit. Finite numbers must still lie within the
            limits.
    """

    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None
    infinite: bool = False

    def __post_init__(self) -> None:
        assert self.at_least is None or self.above is None
        assert self.at_most is None or self.below is None

    def refusal(self, value: float) -> str:
        """Returns why `value` is not allowed, such as "-8 is below 0"; "" for an allowed value."""
        if math.isnan(value):
            return "nan is not a number"
        if self.at_least is not None and value < self.at_least:
            return f"{_shown(value)} is below {_shown(self.at_least)}"
        if self.above is not None and value <= self.above:
            return f"{_shown(value)} is not above {_shown(self.above)}"
        if math.isinf(value):
            return "" if self.infinite else f"{_shown(value)} is not finite"
        if self.at_most is not None and value > self.at_most:
            return f"{_shown(value)} is above {_shown(self.at_most)}"
        if self.below is not None and value >= self.below:
            return f"{_shown(value)} is not below {_shown(self.below)}"
        return ""

    def __str__(self) -> str:
        """The range for the user: "1 or more", "above 0 to 1", "0 to below 1"; "" for all finite numbers."""
        low = f"above {_shown(self.above)}" if self.above is not None else ""
        low = _shown(self.at_least) if self.at_least is not None else low
        high = f"below {_shown(self.below)}" if self.below is not None else ""
        if self.at_most is not None and self.at_most < MAX_COUNT:
            high = _shown(self.at_most)
        if low and high:
            text = f"{low} to {high}"
        elif self.at_least is not None:
            text = f"{low} or more"
        else:
            text = low or high and (high if self.below is not None else f"{high} or less")
        return text if not self.infinite else f"{text}, or inf" if text else "or inf"


@dataclass(frozen=True)
class Length:
    """Type annotation of a list setting: the list must have `at_least` or more members."""

    at_least: int


@dataclass(frozen=True)
class PossiblePath:
    """Type annotation of a text setting: the text must be a possible path of a file system. The file need not exist."""


FilePath = Annotated[str, PossiblePath()]
Finite = Annotated[float, Range()]
Positive = Annotated[float, Range(above=0, at_most=MAX_SIZE)]
NonNegative = Annotated[float, Range(at_least=0, at_most=MAX_SIZE)]
Share = Annotated[float, Range(at_least=0, at_most=1)]
"""A share, a probability, a discount or a decay."""
ShareBelowOne = Annotated[float, Range(at_least=0, below=1)]
PositiveShare = Annotated[float, Range(above=0, at_most=1)]
LearningRate = Annotated[float, Range(above=0, at_most=10)]
Coefficient = Annotated[float, Range(at_least=0, at_most=1e6)]
"""Weight of a term of a loss."""
NoiseScale = Annotated[float, Range(at_least=0, at_most=100)]
"""Standard deviation or largest absolute value of noise, in units of the values that it is added to."""
Seconds = Annotated[float, Range(at_least=0, at_most=1e9)]
"""Duration up to 32 years; 0 has a meaning of its own."""
Seed = Annotated[int, Range(at_least=0, at_most=MAX_COUNT)]
Count = Annotated[int, Range(at_least=0, at_most=MAX_COUNT)]
PositiveCount = Annotated[int, Range(at_least=1, at_most=MAX_COUNT)]
Size = Annotated[int, Range(at_least=1, at_most=MAX_SIZE)]
SizeOrZero = Annotated[int, Range(at_least=0, at_most=MAX_SIZE)]
Width = Annotated[int, Range(at_least=1, at_most=MAX_WIDTH)]
WidthOrZero = Annotated[int, Range(at_least=0, at_most=MAX_WIDTH)]
Widths = Annotated[tuple[Width, ...], Length(1)]
"""Widths of at least one layer."""
WeightDecay = Annotated[float, Range(at_least=0, at_most=100)]
Interval = Annotated[int, Range(at_least=1, at_most=MAX_SIZE)]
"""Updates or rollouts between two events."""
ChunkLength = Annotated[int, Range(at_least=1, at_most=100_000)]
SequenceLength = Annotated[int, Range(at_least=2, at_most=100_000)]
DiffusionSteps = Annotated[int, Range(at_least=1, at_most=100_000)]
Frames = Annotated[int, Range(at_least=1, at_most=1024)]
"""Newest observations that one observation contains."""
Pixels = Annotated[int, Range(at_least=16, at_most=4096)]
"""Side of an image."""
Threads = Annotated[int, Range(at_least=0, at_most=MAX_THREADS)]
Workers = Annotated[int, Range(at_least=-1, at_most=MAX_PROCESSES)]
"""Worker processes; -1 chooses their number."""


def range_of(kind: Any) -> Range | None:
    """Returns the `Range` in the type annotation `kind` of a number or of a list's members; None without a `Range`."""
    return _declared(kind)[0]


def length_of(kind: Any) -> Length | None:
    """Returns the `Length` (smallest number of members) in the annotation `kind` of a list; None without a `Length`."""
    return _declared(kind)[1]


@functools.cache
def _declared(kind: Any) -> tuple[Range | None, Length | None, bool]:
    """(range, least length, whether the text is a path) that `kind` declares."""
    marks = list(_marks(kind))
    ranges = {mark for mark in marks if isinstance(mark, Range)}
    lengths = {mark for mark in marks if isinstance(mark, Length)}
    assert len(ranges) <= 1 and len(lengths) <= 1, f"{kind} declares several ranges"
    return next(iter(ranges), None), next(iter(lengths), None), any(isinstance(mark, PossiblePath) for mark in marks)


def _marks(kind: Any) -> Iterator[Any]:
    """The metadata of every ``Annotated`` inside of `kind`."""
    yield from getattr(kind, "__metadata__", ())
    for part in typing.get_args(kind):
        yield from _marks(part)


def refusal(kind: Any, value: Any) -> str:
    """Returns why the annotated type `kind` does not allow `value`, such as "-8 is below 0"; "" for an allowed value.

    Args:
        kind: Type of the setting, such as ``Annotated[float, Range(above=0)]``.
        value: A value of this type.
    """
    allowed, length, is_path = _declared(kind)
    if is_path:
        return path_problem(value)
    if length is not None and len(value) < length.at_least:
        return f"{len(value)} values are given, but {length.at_least} or more are needed"
    if allowed is not None:
        for member in value if isinstance(value, (tuple, list)) else (value,):
            if member is not None and (problem := allowed.refusal(member)):
                return problem
    return ""


@functools.cache
def kinds_of(schema: Any) -> dict[str, Any]:
    """Field name -> type annotation with its declared range, for the dataclass `schema`."""
    return typing.get_type_hints(schema, include_extras=True)


@functools.cache
def _ranged(schema: Any) -> tuple[tuple[str, Any], ...]:
    kinds = kinds_of(schema)
    names = [field.name for field in dataclasses.fields(schema)]
    return tuple((name, kinds[name]) for name in names if _declared(kinds[name]) != (None, None, False))


def check_ranges(settings: type[Class]) -> type[Class]:
    """Class decorator: makes the constructor of a dataclass check its declared ranges before ``__post_init__``.

        @dataclass(frozen=True)
        @check_ranges
        class Settings: ...

    The constructor raises a ConfigError for a value outside of its range.
    """
    relations = getattr(settings, "__post_init__", None)

    def check(self: Any) -> None:
        schema: Any = type(self)
        for name, kind in _ranged(schema):
            value = getattr(self, name)
            if problem := refusal(kind, value):
                default = next(f for f in dataclasses.fields(self) if f.name == name).default
                allowed = f" Allowed: {range_of(kind)}." if str(range_of(kind) or "") else ""
                fix = f"Write {name}={_listed(default)}, for example."
                raise ConfigError(f"{name}={_listed(value)}: {problem}.{allowed} {fix}")
        if relations is not None:
            relations(self)

    settings.__post_init__ = check  # type: ignore[attr-defined]
    return settings


def _listed(value: Any) -> str:
    return shortened(",".join(map(str, value)) if isinstance(value, (tuple, list)) else value)


def _shown(number: Any) -> str:
    """A number as briefly as it can be written without loss: 1000000000000 is 1e12."""
    if isinstance(number, float):
        number = int(number) if number.is_integer() and abs(number) < 1e16 else number
    digits = str(number) if not isinstance(number, int) or abs(number) < 10**20 else f"{float(number):g}"
    zeros = len(digits) - len(digits.rstrip("0")) if isinstance(number, int) else 0
    return f"{digits[:-zeros]}e{zeros}" if zeros >= 6 and len(digits) - zeros <= 4 else digits
