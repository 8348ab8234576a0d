"""Episodes of sketchnav walked for a score: policies and baselines on the same episodes, with intervals; pictures."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from powerband.algos.chunks import Chunks
from powerband.algos.ppo import PPO
from powerband.core.checkpoint import load_checkpoint, resolve_resume
from powerband.core.config import ConfigError
from powerband.core.console import count_shown
from powerband.core.flags import at_least
from powerband.core.noise import NoiseSource
from powerband.envs.sketchnav.baselines import ForwardAndTurn, RandomWalk
from powerband.envs.sketchnav.env import SketchNavEnv
from powerband.envs.sketchnav.episodes import Episodes
from powerband.envs.sketchnav.picture import draw_episode, film_episode
from powerband.loops.evaluate import evaluate, mean_interval, wilson
from powerband.recipes.sketchnav_agents import squares_of
from powerband.recipes.sketchnav_imitate import ChunkWalker
from powerband.recipes.sketchnav_sets import episodes_of, with_drawings
from powerband.report.film import save_picture, write_video

if TYPE_CHECKING:
    from powerband.recipes.sketchnav import Config

Act = Callable[[SketchNavEnv, Any, Tensor | None], tuple[Tensor, Tensor | None]]
"""(agents, observations, carry) -> (actions, carry)."""
ROWS = 64
OWN = "own"
"""The level of a user's own sketches in tables."""
DRAWN = 3
"""Episodes of which pictures are made."""
FIGURES = ("spl", "soft_spl", "distance_to_goal", "length")


@dataclass(frozen=True)
class Evaluation:
    """What `powerband eval` can be told about a run of sketchnav."""

    splits: tuple[str, ...] = ("val_seen", "val_unseen")
    """val_seen (new episodes in plans of the training), val_unseen (new plans), train."""
    sketches: tuple[str, ...] = ()
    """Levels: smooth, abstract, true, blank; none is that of the run (mixed: smooth and abstract)."""
    drawings: str = ""
    """Folder of your own sketches, PNGs named by the number of their episode (0.png): these episodes alone are walked,
    with them. Draw over the pictures in plans-SPLIT/ that `powerband train sketchnav episodes` writes."""
    policies: tuple[str, ...] = ()
    """Who walks: random, forward-and-turn, policy (the run's; ppo draws its actions, as in training), likeliest
    (the same, always taking the likeliest action; ppo), expert. None is all."""
    temperature: float = 1.0
    """Of algo=ppo's policy: actions are drawn by probabilities to the power of 1 / temperature; below 1 rare ones are
    rarer."""
    plans: int = 0
    """Plans of a split; 0 is as the run has it."""
    video: bool = True
    """Draw three episodes of the policy (likeliest, where that alone walks), and a film of the first."""
    threads: int = 0
    """CPU threads; 0 is as torch decides."""

    def __post_init__(self) -> None:
        at_least(self, plans=0, threads=0)


def walk(
    episodes: Episodes,
    config: Config,
    act: Act,
    carry: Callable[[int], Tensor | None] = lambda rows: None,
    device: torch.device | str = "cpu",
    count: int = 0,
    order: Tensor | None = None,
    shown: str = "",
) -> dict[str, Tensor]:
    """Every episode once (or the first `count`, or those of `order`); figures (episodes,) each.

    `shown` names it on a bar.
    """
    count = len(order) if order is not None else count or len(episodes)
    rows = next(rows for rows in range(min(ROWS, count), 0, -1) if count % rows == 0)
    words = {"pixels": config.pixels, "explored": squares_of(config), "in_turns": True, "order": order}
    words["sensors"] = config.sensors
    env = SketchNavEnv(rows, episodes, config.rules, device=device, **words)
    policy = lambda obs, memory: act(env, obs, memory)  # noqa: E731
    with count_shown(shown, count, "episodes") as tell:
        return evaluate(env, policy, count, 0, carry(rows), tell)


def acting(learner: PPO | Chunks, episodes: Episodes, temperature: float = 1.0) -> Act:
    """A learner as a policy, with the sketches of `episodes`; PPO takes the likeliest action at a temperature of 0."""
    codes = learner.encoder.sketch
    codes.show(episodes.sketch.to(codes.sketches.device))
    if isinstance(learner, Chunks):
        return ChunkWalker(learner)
    words = {"explore": True, "temperature": temperature} if temperature else {"explore": False}
    return lambda env, obs, memory: learner.act(obs, memory, **words)[::2]


def summary(figures: dict[str, Tensor]) -> dict[str, float]:
    """Success with its Wilson interval, and means with theirs, by name."""
    trials, won = len(figures["success"]), float(figures["success"].sum())
    low, high = wilson(won, trials)
    found = {"success": won / trials, "success_low": low, "success_high": high}
    for name in FIGURES:
        found[name], found[f"{name}_low"], found[f"{name}_high"] = mean_interval(figures[name])
    return found


class HeldOut:
    """The learner on episodes in plans that it does not see, for the curves of its training. PPO draws its actions, the
    same numbers each time, and its training's own draws go on as if there had been no evaluation.

    Args:
        config: Of the run; the episodes are drawn when the first evaluation is due.
        learner: Its encoder is lent the episodes' sketches.
        device: Of both.
    """

    def __init__(self, config: Config, learner: PPO | Chunks, device: torch.device) -> None:
        self.config, self.learner, self.device = config, learner, device
        self.episodes: Episodes | None = None

    def __call__(self) -> dict[str, float]:
        """Means by name."""
        if self.episodes is None:
            self.episodes = episodes_of(self.config, "val_unseen")
        codes, count = self.learner.encoder.sketch, min(self.config.eval_episodes, len(self.episodes))
        own, noise = codes.sketches, self.learner.noise
        try:
            self.learner.noise = NoiseSource(0, self.device)
            act = acting(self.learner, self.episodes)
            found = summary(walk(self.episodes, self.config, act, self.learner.initial_carry, self.device, count))
        finally:
            codes.show(own)
            self.learner.noise = noise
        return {name: value for name, value in found.items() if not name.endswith(("_low", "_high"))}


def evaluate_run(config: Config, folder: Path, learner: PPO | Chunks, options: Evaluation) -> list[dict]:
    """Walks, prints the table, and writes ``eval-sketchnav.json``; pictures and a film go to ``videos/``."""
    if options.temperature <= 0:
        raise ConfigError(f"temperature={options.temperature:g}: give more than 0. policies=likeliest is its limit.")
    if options.threads:
        torch.set_num_threads(options.threads)
    path, _ = resolve_resume(str(folder))
    learner.load_state_dict(load_checkpoint(path, "shared")[0]["learner"])
    if options.plans:
        config = replace(config, eval_plans=options.plans)
    level = config.scenes.sketch
    levels = options.sketches or (("smooth", "abstract") if level == "mixed" else (level,))
    levels = (OWN,) if options.drawings else levels
    draws = not isinstance(learner, Chunks)
    every = ("random", "forward-and-turn", *(("likeliest",) if draws else ()), "policy", "expert")
    walkers, rows = options.policies or every, []
    if options.temperature != 1 and not (draws and "policy" in walkers):
        raise ConfigError("temperature is of algo=ppo's policies=policy, which does not walk here. Leave it out.")
    for split in options.splits:
        for sketch in levels:
            episodes, order = episodes_of(config, split, sketch="blank" if sketch == OWN else sketch), None
            if sketch == OWN:
                episodes, order = with_drawings(episodes, Path(options.drawings))
            for name in walkers:
                learner.noise = NoiseSource(0, "cpu")  # a row is the same whichever stand above it
                act, carry = policy_of(name, learner, episodes, options.temperature)
                figures = walk(episodes, config, act, carry, order=order, shown=f"{split} {sketch} {name}")
                row = {"split": split, "sketch": sketch, "policy": name, "episodes": len(figures["success"])}
                rows.append({**row, **summary(figures)})
                print(_line(rows[-1]), flush=True)
            shown = next((name for name in ("policy", "likeliest") if name in walkers), "")
            if options.video and shown:
                act, carry = policy_of(shown, learner, episodes, options.temperature)
                believed = learner.encoder.believed
                _draw(folder / "videos" / f"{split}-{sketch}", config, episodes, act, carry, order, believed)
    (folder / "eval-sketchnav.json").write_text(json.dumps({"options": vars(options), "rows": rows}, indent=2))
    return rows


def _line(row: dict) -> str:
    def cell(name: str, digits: int) -> str:
        low, high = row[f"{name}_low"], row[f"{name}_high"]
        return f"{row[name]:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"

    return (
        f"{row['split']:<11}{row['sketch']:<9}{row['policy']:<16}{row['episodes']:>5} episodes   success "
        f"{cell('success', 3)}   SPL {cell('spl', 3)}   soft SPL {cell('soft_spl', 3)}   "
        f"{cell('distance_to_goal', 1)} m to go"
    )


def policy_of(
    name: str, learner: PPO | Chunks, episodes: Episodes, temperature: float = 1.0
) -> tuple[Act, Callable[[int], Tensor | None]]:
    """A policy by its name in a table (PPO's draws at `temperature`), and its first carry.

    Raises:
        ValueError: An unknown name.
    """
    nothing = lambda rows: None  # noqa: E731
    known: dict[str, Callable[[], Act]] = {
        "random": lambda: RandomWalk(),
        "forward-and-turn": lambda: ForwardAndTurn(),
        "expert": lambda: lambda env, obs, memory: (env.expert(), None),
        "policy": lambda: acting(learner, episodes, temperature),
        "likeliest": lambda: acting(learner, episodes, 0),
    }
    if name not in known:
        raise ValueError(f"policies={name} is none of {', '.join(known)}.")
    if name == "likeliest" and isinstance(learner, Chunks):
        raise ValueError("policies=likeliest is for algo=ppo: no chunk is drawn by its probability. Write policy.")
    return known[name](), learner.initial_carry if name in ("policy", "likeliest") else nothing


def _draw(
    stem: Path,
    config: Config,
    episodes: Episodes,
    act: Act,
    carry: Callable[[int], Tensor | None],
    order: Tensor | None,
    believed: Callable[[Any], Tensor | None],
) -> None:
    """Pictures of the first episodes and a film of the first."""
    words = {"pixels": config.pixels, "explored": squares_of(config), "in_turns": True, "order": order}
    words["sensors"] = config.sensors
    for number in range(min(DRAWN, len(episodes) if order is None else len(order))):
        env = SketchNavEnv(1, episodes, config.rules, first_env=number, **words)
        frames = film_episode(env, act, carry(1), believed)
        save_picture(stem.with_name(f"{stem.name}-{number}.png"), draw_episode(frames[-1]))
        if number == 0:
            write_video((draw_episode(frame) for frame in frames), stem, fps=10)
