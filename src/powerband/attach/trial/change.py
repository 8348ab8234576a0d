"""Change: one thing to do differently in a script, from outside."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

VARIABLES_OF_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


@dataclass(frozen=True)
class Permanent:
    """How to make a change permanent. Exactly one of the attributes is not empty.

    Attributes:
        variables: Environment variables.
        diff: Unified diff of the user's file.
        sentence: What to change.
    """

    variables: dict[str, str] = field(default_factory=dict)
    diff: str = ""
    sentence: str = ""

    def lines(self) -> list[str]:
        """Returns shell commands, the diff, or the sentence as a comment."""
        if self.variables:
            return [f"export {name}={value}" for name, value in self.variables.items()]
        return self.diff.splitlines() if self.diff else [f"# {self.sentence}"]


@dataclass(frozen=True)
class Change:
    """A change.

    Attributes:
        name, value: Name and value for the instrumentation, such as ``num_workers`` and 4.
        text: What is changed, for the user.
        at_most: Largest possible gain, as a share of the rate: 1 means twice as fast.
        predicted: Predicted gain; None if no model knows it.
        numerics: Whether the change can change numerical results.
        where: Places ``path:line`` of the calls to change; empty for all calls.
        variables: Environment variables of the changed run.
        permanent: How to make it permanent.
        probed: Whether the change can be made and taken back within a run, so that a probe can predict its gain.
    """

    name: str
    value: Any
    text: str
    at_most: float
    predicted: float | None = None
    numerics: bool = False
    where: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)
    permanent: Permanent = Permanent(sentence="")
    probed: bool = False

    @property
    def hope(self) -> float:
        """Predicted gain, or the largest possible one without a prediction."""
        return self.at_most if self.predicted is None else self.predicted

    def with_prediction(self, predicted: float | None) -> Change:
        """Returns the change with another predicted gain."""
        return replace(self, predicted=predicted)


def variables_of_threads(number: int) -> dict[str, str]:
    """Returns the environment variables that set the threads of OpenMP and of the BLAS libraries."""
    return dict.fromkeys(VARIABLES_OF_THREADS, str(number))
