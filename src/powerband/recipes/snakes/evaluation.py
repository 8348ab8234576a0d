"""Evaluation of snakes: plays matches in which both players play both sides; writes a table, images and videos."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from powerband.core.errors import ConfigError
from powerband.core.evaluation_context import evaluation_context
from powerband.core.telemetry.console import count_progress_bar
from powerband.loops.evaluate import evaluate, mean_interval, wilson_interval
from powerband.recipes.snakes.config import SCRIPTED, unknown_opponent
from powerband.recipes.snakes.env.board import SnakesState
from powerband.recipes.snakes.env.env import SnakesEnv
from powerband.recipes.snakes.env.opponents import GreedyOpponent, PolicyOpponent, RandomOpponent
from powerband.recipes.snakes.evaluation_options import Evaluation
from powerband.report.evaluation_table import result_path, write_table
from powerband.report.media_files import save_image, write_video

SCRIPTED_OPPONENTS: dict[str, Callable[[], Any]] = {
    "random": RandomOpponent,
    "greedy": lambda: GreedyOpponent("plain"),
    "greedy_torus": lambda: GreedyOpponent("torus"),
}


def as_player(learner: Any, observation: str) -> PolicyOpponent:
    """Wraps a learner as a player that can play either team and acts without exploration.

    `observation` is the name of the observation that the learner was trained with, a key of `OBSERVATIONS`.
    """
    return PolicyOpponent(lambda obs: learner.act(obs, None, explore=False)[0], observation)


def play(
    first: Any, second: Any, games: int, seed: int, device: Any = "cpu", watch: Any = None, label: str = ""
) -> dict[str, Tensor]:
    """Plays `games` games. `first` is team A in one half of them and team B in the other half.

    Args:
        first, second: Players with the method ``act_team(state, boards, team, seed)``, such as `PolicyOpponent`.
        games: Even number of games.
        seed: Seed of the games.
        device: Device of the boards.
        watch: Function that is called with the `SnakesState` of all games before each move; None calls nothing.
        label: Label of the progress bar; empty shows none.

    Returns:
        Results of `first` by name, float32 (games,) each. ``score`` and ``opponent_score`` are sums of the game rewards
        of a team, which are the changes in the lengths of its snakes. ``win``, ``draw`` and ``loss`` are 0 or 1. The
        other entries are ``env`` (row of the environment), ``return`` (sum of rewards) and ``length`` (moves).

    Raises:
        ConfigError: `games` is odd or below 2.
    """
    if games < 2 or games % 2:
        raise ConfigError(
            f"episodes={games} is not an even number above 0. The teams swap sides after half of the games. Write an "
            f"even number of games, for example episodes=100."
        )
    half = slice(0, games // 2), slice(games // 2, games)
    env = SnakesEnv(games, device=device, seed=seed, observation="baseline26", mirrored=1.0, stagger=False)

    def policy(obs: Tensor, carry: Tensor | None) -> tuple[Tensor, None]:
        if watch is not None:
            watch(env.state)
        players = (first, second), (second, first)
        sides = [
            torch.cat(
                [pair[team].act_team(env.state, boards, team, seed) for pair, boards in zip(players, half, strict=True)]
            )
            for team in (0, 1)
        ]
        return torch.cat(sides), None

    with count_progress_bar(label, env.num_envs, "boards") as on_progress:
        figures = evaluate(env, policy, env.num_envs, seed, on_progress=on_progress)
    own = (figures["env"] < games // 2) | (figures["env"] >= games + games // 2)
    return {name: values[own] for name, values in figures.items()}


def summary(figures: dict[str, Tensor]) -> dict[str, Any]:
    """Summarises the results of many games as counts and means, one row of the evaluation table.

    Args:
        figures: Results of the games by name, as `play` returns them.

    Returns:
        ``games``, ``wins``, ``draws`` and ``losses`` are counts; ``decided_won`` is the share of wins among wins and
        losses; ``score`` and ``opponent_score`` are the mean scores of both teams. Names that end in ``_95`` are 95 %
        intervals, as [low, high].
    """
    wins, draws, losses = (int(figures[name].sum()) for name in ("win", "draw", "loss"))
    low, high = wilson_interval(wins, wins + losses)
    score, score_low, score_high = mean_interval(figures["score"])
    return {
        "games": len(figures["win"]),
        "wins": wins,
        "draws": draws,
        "losses": losses,
        "decided_won": wins / max(wins + losses, 1),
        "decided_won_95": [round(low, 4), round(high, 4)],
        "score": score,
        "score_95": [round(score_low, 3), round(score_high, 3)],
        "opponent_score": float(figures["opponent_score"].mean()),
    }


def win_rates(own: Any, games: int, device: Any) -> dict[str, float]:
    """Plays `games` games against the random and `games` against the greedy opponent, to evaluate during training.

    Args:
        own: The player that is evaluated, see `as_player`.
        games: Even number of games against each opponent.
        device: Device of the boards.

    Returns:
        ``win_random`` and ``win_greedy``: the share of games that `own` won against each, 0 to 1.
    """
    return {
        f"win_{name}": float(play(own, SCRIPTED_OPPONENTS[name](), games, 20_000, device)["win"].mean())
        for name in ("random", "greedy")
    }


def evaluate_run(folder: Path, options: Evaluation, load: Callable[..., tuple[Any, str]]) -> list[dict]:
    """Plays the newest learner of a run folder against each opponent in `options`, and prints one line for each.

    Writes ``eval-games.json``, images and videos to the run folder.

    Args:
        folder: Run folder.
        options: Options of ``powerband eval``.
        load: Function ``(folder, context) -> (learner, name of its observation)``, which loads a learner from a run
            folder.

    Returns:
        One dict per opponent: its name as ``opponent``, and the results that `summary` computes, such as ``wins``.

    Raises:
        ConfigError: An opponent is neither a scripted player nor a run; no game has been played then.
    """
    from powerband.recipes.snakes.env import board_image as draw

    context, rows = evaluation_context(options.gpus, options.precision, options.workers), []
    own = as_player(*load(folder, context))
    opponents = {name: _player(name, lambda path: load(path, context)) for name in options.policies}
    labels = file_labels(options.policies)
    for name, opponent in opponents.items():
        frames: list[Any] = []

        def watch(state: SnakesState, frames: list[Any] = frames, name: str = name) -> None:
            frames.append(draw.draw_board(state, names=("this run", name)))

        show = watch if options.video else None
        row = {
            "opponent": name,
            **summary(play(own, opponent, options.episodes, options.seed, context.device, show, name)),
        }
        rows.append(row)
        print(
            f"{name:<14} {row['wins']:>4} won {row['draws']:>3} drawn {row['losses']:>3} lost   won of decided "
            f"{row['decided_won']:.1%} [{row['decided_won_95'][0]:.1%}, {row['decided_won_95'][1]:.1%}]   "
            f"score {row['score']:.1f} : {row['opponent_score']:.1f}",
            flush=True,
        )
        if frames:
            write_video(frames, result_path(folder, f"videos/{labels[name]}.mp4"), fps=10)
            save_image(result_path(folder, f"game-{labels[name]}.png"), frames[len(frames) * 3 // 4])
    return write_table(folder, "games", options, rows)


def _player(name: str, load: Callable[[Path], tuple[Any, str]]) -> Any:
    """Creates the player `name`: a scripted one, or the policy of a run or checkpoint, which `load` loads."""
    if name in SCRIPTED_OPPONENTS:
        return SCRIPTED_OPPONENTS[name]()
    if name != "last" and os.sep not in name and not Path(name).expanduser().exists():
        raise unknown_opponent(name, SCRIPTED)
    return as_player(*load(Path(name)))


def file_labels(names: tuple[str, ...]) -> dict[str, str]:
    """Returns a part of a file name for each opponent: the last part of its path.

    Opponents with the same last part, such as checkpoints ``last`` of two runs, get all parts, joined with "-".
    """
    parts = {name: [part for part in Path(name).parts if part != os.sep] or [name] for name in names}
    times = Counter(each[-1] for each in parts.values())
    return {name: each[-1] if times[each[-1]] == 1 else "-".join(each) for name, each in parts.items()}
