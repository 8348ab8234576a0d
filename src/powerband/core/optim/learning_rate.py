"""LearnerLr: the learning rate of a learner with one or several optimisers, as one attribute."""

from __future__ import annotations

from typing import Any

from torch import Tensor


class LearnerLr:
    """Descriptor for the attribute ``lr`` of a learner, which loops read once and assign to anneal it.

    It returns the learning rate of the first optimiser. An assignment scales those of the others by the same factor, so
    that their ratio stays as it was configured. The class declares the attributes by name, because it has no instance
    and no optimiser yet:

        class SAC:
            lr = LearnerLr("actor_adam", "critic_adam")
    """

    def __init__(self, first: str, *others: str):
        """
        Args:
            first: Name of the learner's attribute with the first optimiser, such as a `FlatAdam`.
            others: Names of the attributes with its other optimisers.
        """
        self.first, self.others = first, others

    def __get__(self, learner: Any, owner: type | None = None) -> float | Tensor:
        return getattr(learner, self.first).lr

    def __set__(self, learner: Any, lr: float) -> None:
        first = getattr(learner, self.first)
        first.lr = lr
        for name in self.others:
            other = getattr(learner, name)
            other.lr = lr * (other.initial_lr / first.initial_lr)
