"""Plays by hand: chooses terminal or browser, and returns the results of the games."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from powerband.recipes.snakes.by_hand.browser import play_in_browser
from powerband.recipes.snakes.by_hand.game import GameByHand
from powerband.recipes.snakes.by_hand.terminal import play_in_terminal
from powerband.recipes.snakes.env.opponents import PolicyOpponent
from powerband.recipes.snakes.env.rules.game import TEAM
from powerband.recipes.snakes.evaluation_options import Evaluation


def play_by_hand(policy: PolicyOpponent, folder: Path, options: Evaluation) -> list[dict[str, Any]]:
    """Lets a person play against `policy` until the person ends.

    Args:
        policy: Player of the other team and of the mates.
        folder: The run, for the messages.
        options: Options of ``powerband eval``.

    Returns:
        One dict per complete game: ``opponent``, ``outcome``, ``score`` and ``opponent_score``.
    """
    human = tuple(range(TEAM)) if options.human == "team" else (0,)
    game = GameByHand(policy, human, options.seed)
    if options.play == "browser":
        play_in_browser(game, options.moves_per_s, options.port)
    else:
        play_in_terminal(game, options.moves_per_s)
    rows = [{"opponent": str(folder), **result} for result in game.results]
    for row in rows:
        print(f"{row['outcome']} {row['score']} : {row['opponent_score']}")
    if not rows:
        print("No game was played to its end.")
    return rows
