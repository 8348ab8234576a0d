"""Pending action: enforces that `send` and `recv` of an environment alternate."""

from __future__ import annotations

from typing import Generic, TypeVar

Action = TypeVar("Action")


class PendingAction(Generic[Action]):
    """Stores the action between `send` and `recv`, for an environment that executes its step inside `recv`."""

    def __init__(self) -> None:
        self._action: Action | None = None

    def check_none(self, call: str) -> None:
        """Raises an error if an action is pending, for methods that are not allowed between `send` and `recv`.

        Args:
            call: Name of the calling method, for the message.

        Raises:
            RuntimeError: An action is pending.
        """
        if self._action is not None:
            raise RuntimeError(f"{call} was called between send and recv. Call recv first.")

    def put(self, action: Action) -> None:
        """Stores the action that `send` received."""
        self._action = action

    def take(self) -> Action:
        """Returns the action for `recv`, which is then no longer pending.

        Raises:
            RuntimeError: `send` was not called before.
        """
        action, self._action = self._action, None
        if action is None:
            raise RuntimeError("recv was called without send. Call send first.")
        return action

    def clear(self) -> None:
        """Discards the action, because the environment was reset or restored."""
        self._action = None
