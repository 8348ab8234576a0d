"""Evidence, which is the input of the diagnosis rules, and Finding, which is the result of one rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from powerband.tune.measure.facts import WindowFacts
from powerband.tune.measure.ledger import Ledger


@dataclass(frozen=True)
class Finding:
    """One bottleneck of a run, as found by one rule of the diagnosis.

    Attributes:
        cause: Id in `CAUSES`.
        explained_share: Share of the wall time that the cause explains, 0 to 1.
        sentence: Description of the bottleneck with its figures.
        fix: Remedy that applies to any training loop.
        account_group: "env", "update" or "launch" if the explained share belongs to one of these accounts (categories
            of time); otherwise "".
        knobs: Settings that affect the bottleneck, the most likely remedy first.
    """

    cause: str
    explained_share: float
    sentence: str
    fix: str
    account_group: str = ""
    knobs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Evidence:
    """Input of a rule of the diagnosis: measurements of a run, and what earlier rules explained.

    Attributes:
        ledger: Wall time per account (category of time), mean over ranks.
        ledgers: Ledger of each rank.
        facts: Figures of the leading rank besides its ledger.
        explained_by_account: "env", "update" or "launch" -> share of the wall time that earlier rules explained.
    """

    ledger: Ledger
    ledgers: Sequence[Ledger]
    facts: WindowFacts
    explained_by_account: dict[str, float] = field(default_factory=dict)

    def unexplained_share(self, account_group: str, *accounts: str) -> float:
        """Returns the share of the wall time in `accounts` that earlier rules left unexplained, 0 to 1.

        Args:
            account_group: "env", "update" or "launch", a key of `explained_by_account`.
            accounts: Accounts (categories of time) of the ledger whose shares are added.
        """
        return max(0.0, self.ledger.share(*accounts) - self.explained_by_account.get(account_group, 0.0))


Rule = Callable[[Evidence], Finding | None]
"""Rule of one cause: returns a finding if the cause applies, else None."""
