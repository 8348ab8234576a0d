"""Matches of snakes: two players, both sides swapped, a table with intervals, a picture and a video."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from powerband.loops.evaluate import evaluate, mean_interval, wilson_interval
from powerband.recipes.snakes.config import Evaluation
from powerband.recipes.snakes.env.board import SnakesState
from powerband.recipes.snakes.env.env import SnakesEnv
from powerband.recipes.snakes.env.opponents import GreedyOpponent, PolicyOpponent, RandomOpponent
from powerband.report.media_files import save_image, write_video

RIVALS: dict[str, Callable[[], Any]] = {
    "random": RandomOpponent,
    "greedy": lambda: GreedyOpponent("plain"),
    "greedy_torus": lambda: GreedyOpponent("torus"),
}


def as_player(learner: Any, observation: str) -> PolicyOpponent:
    """A learner as a player of either team: it acts without exploring."""
    return PolicyOpponent(lambda obs: learner.act(obs, None, explore=False)[0], observation)


def play(first: Any, second: Any, games: int, seed: int, device: Any = "cpu", watch: Any = None) -> dict[str, Tensor]:
    """`games` games; in one half `first` is team A, in the other team B.

    Args:
        first, second: Players, with ``act_team(state, boards, team, seed)``.
        games: An even number.
        seed: Of the games.
        device: Where they are played.
        watch: Called with the state before each move.

    Returns:
        Figures (games,) of `first`: score, opponent_score, win, draw, loss.

    Raises:
        ValueError: `games` is odd.
    """
    if games < 2 or games % 2:
        raise ValueError(f"episodes={games}: sides are swapped half way, give an even number of games, 2 or more.")
    half = slice(0, games // 2), slice(games // 2, games)
    env = SnakesEnv(games, device=device, seed=seed, observation="baseline26", mirrored=1.0, stagger=False)

    def policy(obs: Tensor, carry: None) -> tuple[Tensor, None]:
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

    figures = evaluate(env, policy, env.num_envs, seed)
    own = (figures["env"] < games // 2) | (figures["env"] >= games + games // 2)
    return {name: values[own] for name, values in figures.items()}


def summary(figures: dict[str, Tensor]) -> dict[str, Any]:
    """One row of a table: games, wins, draws, losses, share of decided games won, mean scores, with intervals."""
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
    """Share of games won against random and greedy: the figures during training."""
    return {
        f"win_{name}": float(play(own, RIVALS[name](), games, 20_000, device)["win"].mean())
        for name in ("random", "greedy")
    }


def evaluate_run(folder: Path, options: Evaluation, load: Callable[[Path], tuple[Any, str]]) -> list[dict]:
    """Plays, prints the table, and writes ``eval-*.json``, a picture and videos into the run folder."""
    from powerband.recipes.snakes.env import board_image as draw

    if options.threads:
        torch.set_num_threads(options.threads)
    own, rows = as_player(*load(folder)), []
    for name in options.opponents:
        rival = RIVALS[name]() if name in RIVALS else as_player(*load(Path(name)))
        frames: list[Any] = []

        def watch(state: SnakesState, frames: list[Any] = frames, name: str = name) -> None:
            frames.append(draw.draw_board(state, names=("this run", name)))

        row = {
            "opponent": name,
            **summary(play(own, rival, options.episodes, options.seed, watch=watch if options.video else None)),
        }
        rows.append(row)
        print(
            f"{name:<14} {row['wins']:>4} won {row['draws']:>3} drawn {row['losses']:>3} lost   won of decided "
            f"{row['decided_won']:.1%} [{row['decided_won_95'][0]:.1%}, {row['decided_won_95'][1]:.1%}]   "
            f"score {row['score']:.1f} : {row['opponent_score']:.1f}",
            flush=True,
        )
        if frames:
            label = name if name in RIVALS else Path(name).name
            write_video(frames, folder / "videos" / f"{label}.mp4", fps=10)
            save_image(folder / f"game-{label}.png", frames[len(frames) * 3 // 4])
    (folder / "eval-games.json").write_text(json.dumps({"options": options.__dict__, "rows": rows}, indent=2))
    return rows
