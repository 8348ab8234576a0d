"""GameByHand: one game of 3v3 snakes in which a person plays some snakes of team A, and policies play the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from powerband.recipes.snakes.env.board import dump_board
from powerband.recipes.snakes.env.env import SnakesEnv
from powerband.recipes.snakes.env.opponents import PolicyOpponent

MOVES = ("up", "down", "left", "right")


class GameByHand:
    """Games of a person against a policy, one after the other.

    Args:
        policy: Player of team B, and of the snakes of team A that the person does not play.
        human: Snakes of team A that the person plays, such as (0,).
        seed: Seed of the games.
    """

    def __init__(self, policy: PolicyOpponent, human: tuple[int, ...], seed: int) -> None:
        self.policy, self.human, self.seed = policy, human, seed
        self.env = SnakesEnv(1, seed=seed, observation="baseline26", mirrored=1.0, threads=1, stagger=False)
        self.results: list[dict[str, Any]] = []
        self.result: dict[str, Any] | None = None
        self._last: dict[str, Any] = {}

    def new(self) -> None:
        """Starts another game. The environment has placed its snakes already if the last game has ended."""
        if self.result is None:
            self.env.reset()
        self.result = None

    def move(self, wanted: Mapping[int, int]) -> None:
        """Makes one move of all six snakes. It does nothing after the end of a game.

        Args:
            wanted: Snake of the person -> direction 0..3 (up, down, left, right). A snake without an entry, and one
                that would reverse, goes straight on.
        """
        if self.result is not None:
            return
        before = self.position()
        sides = [self.policy.act_team(self.env.state, slice(0, 1), team, self.seed) for team in (0, 1)]
        actions = torch.cat(sides)
        for snake in self.human:
            direction = before["directions"][snake]
            chosen = wanted.get(snake, direction)
            actions[0, snake] = direction if chosen == direction ^ 1 else chosen
        step = self.env.step(actions)
        if bool(step.ended[0]):
            self._end(before, step.episode)

    def position(self) -> dict[str, Any]:
        """Returns the position: bodies, beans, directions, step_count and scores as `dump_board`, and two more entries.

        ``human`` lists the snakes of the person. ``result`` is None, or the result of the game, whose last position is
        then returned.
        """
        if self.result is not None:
            return {**self._last, "result": self.result}
        return {**dump_board(self.env.state, 0), "human": list(self.human), "result": None}

    def _end(self, last: dict[str, Any], figures: dict[str, Tensor]) -> None:
        own, other = (int(figures[name][0]) for name in ("score", "opponent_score"))
        outcome = "won" if own > other else "lost" if own < other else "drawn"
        self._last = {**last, "step_count": last["step_count"] + 1}
        self.result = {"outcome": outcome, "score": own, "opponent_score": other}
        self.results.append(self.result)
