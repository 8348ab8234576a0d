"""Case: what the rules of the causes read, and the finding that one of them gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from powerband.tune.facts import Facts
from powerband.tune.ledger import Ledger


@dataclass(frozen=True)
class Finding:
    """One cause that holds.

    Attributes:
        cause: Id in `CAUSES`.
        claim: Share of the wall time that it explains.
        sentence: The binding constraint with its figures.
        fix: What to do about it, in any loop.
        explains: "env" or "update": the general account that the claim is part of; "" for none.
        knobs: Settings that act on it, the likeliest first.
    """

    cause: str
    claim: float
    sentence: str
    fix: str
    explains: str = ""
    knobs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Case:
    """What the rules read: the mean ledger over ranks, all ledgers, the facts of every rank, and earlier claims."""

    ledger: Ledger
    ledgers: Sequence[Ledger]
    facts: Facts
    claimed: dict[str, float] = field(default_factory=dict)
