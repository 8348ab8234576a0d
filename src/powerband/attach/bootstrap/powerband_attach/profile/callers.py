"""Callers: the account of a sample outside of all spans, from the functions that call updates and environment steps.

A function that calls backward passes or optimiser steps, but neither environments nor batch loaders, belongs to the
update. A function that calls environments and no updates collects steps. For the common loop around both, the events
before and after a sample decide: a network in front of an environment step chooses an action.
"""

from __future__ import annotations

from types import CodeType

from powerband_attach.profile.clock import OTHER
from powerband_attach.profile.places import Place

UPDATE = ("backward", "optimizer")
INPUT = ("env", "data_wait")


class Callers:
    """Functions that were seen above spans."""

    def __init__(self) -> None:
        self._update: set[CodeType] = set()
        self._input: set[CodeType] = set()

    def add(self, top: str, place: Place) -> None:
        """Remembers the functions of a sample inside of a span.

        Args:
            top: Account of the innermost open span.
            place: What the stack is doing.
        """
        if place.account == "eval":  # an evaluation also steps environments
            return
        if top in UPDATE:
            self._update.update(place.codes)
        elif top in INPUT:
            self._input.update(place.codes)

    def account(self, place: Place, before: str, after: str) -> str:
        """Returns the account of a sample outside of all spans.

        Args:
            place: What the stack is doing.
            before, after: Accounts of the spans before and after it.
        """
        if self._input and any(code in self._update and code not in self._input for code in place.codes):
            return _part_of_update(before, after)
        if self._update and any(code in self._input and code not in self._update for code in place.codes):
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
