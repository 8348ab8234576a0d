"""Callers: the account of a sample outside of all spans, from the functions that call updates and environment steps.

A function that calls backward passes or optimiser steps, but neither environments nor batch loaders, belongs to the
update. A function that calls environments and no updates collects steps, and one that calls batch loaders only prepares
batches. For the common loop around both, the events before and after a sample decide: a network in front of an
environment step chooses an action.

A function evaluates if its name says so and if it steps environments or loads batches, without an update. Thus the
method ``evaluate`` of a network that an update calls does not count as an evaluation, nor does a function around the
training.
"""

from __future__ import annotations

from powerband_attach.profile.clock import OTHER
from powerband_attach.profile.places import Function, Place

UPDATE = ("backward", "optimizer")
INPUT = ("env", "data_wait")


class Callers:
    """Functions that were seen above spans."""

    def __init__(self) -> None:
        self._update: set[Function] = set()
        self._input: set[Function] = set()
        self._env: set[Function] = set()

    def add(self, top: str, place: Place) -> None:
        """Remembers the functions of a sample inside of a span.

        Args:
            top: Account of the innermost open span.
            place: What the stack is doing.
        """
        if top in UPDATE:
            self._update.update(place.functions)
        elif top in INPUT:
            evaluations = [each for each in place.evaluations if each not in self._update]
            # The callers of an evaluation do not themselves step environments.
            outermost = place.functions.index(evaluations[-1]) + 1 if evaluations else None
            self._input.update(place.functions[:outermost])
            if top == "env":
                self._env.update(place.functions[:outermost])

    def evaluates(self, place: Place) -> bool:
        """Returns whether a sample belongs to an evaluation.

        One step of an evaluation, such as ``validation_step``, gets its batch from its caller.
        """
        return any(
            each not in self._update and (each in self._input or each.code.co_name.endswith("_step"))
            for each in place.evaluations
        )

    def account(self, place: Place, before: str, after: str) -> str:
        """Returns the account of a sample outside of all spans.

        Args:
            place: What the stack is doing.
            before, after: Accounts of the spans before and after it.
        """
        if self.evaluates(place):
            return "eval"
        if self._input and any(each in self._update and each not in self._input for each in place.functions):
            return _part_of_update(before, after)
        inputs = [each for each in place.functions if each in self._input and each not in self._update]
        if self._update and inputs:
            if not any(each in self._env for each in inputs):
                return "data_wait"
            return "act" if place.torch == "module" else "store"
        if after in UPDATE:
            if place.torch or before in (*UPDATE, "data_wait"):
                return _part_of_update(before, after)
            return "sample"
        if after == "env":
            if place.torch == "module":
                return "act"
            if before in UPDATE:
                return "optimizer"  # target networks, moving averages
            return ("act" if place.torch else "store") if before == "env" else OTHER
        if after == "data_wait" and place.torch and before in (*UPDATE, "data_wait"):
            return _part_of_update(before, after)
        return OTHER


def _part_of_update(before: str, after: str) -> str:
    """Returns forward, or optimizer for gradient clipping before its step and target networks after it."""
    clips = before == "backward" and after == "optimizer"
    return "forward" if after in UPDATE and not clips else "optimizer"
