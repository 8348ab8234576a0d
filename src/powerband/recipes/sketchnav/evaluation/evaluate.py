"""Evaluates policies and baselines of sketchnav on the same episodes: success with intervals, images and a video."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from powerband.algos.ppo import PPO
from powerband.core.errors import ConfigError
from powerband.core.evaluation_context import evaluation_context
from powerband.core.noise import NoiseSource
from powerband.core.telemetry.console import count_progress_bar
from powerband.data.types import Tree
from powerband.loops.evaluate import evaluate, mean_interval, wilson_interval
from powerband.recipes.sketchnav.config import Config
from powerband.recipes.sketchnav.drawing.session import open_page
from powerband.recipes.sketchnav.environments import make_evaluation_env
from powerband.recipes.sketchnav.evaluation.episodes import evaluation_sets, spread_episodes
from powerband.recipes.sketchnav.evaluation.options import Evaluation, PolicyName
from powerband.recipes.sketchnav.plans.episodes.episodes import Episodes
from powerband.recipes.sketchnav.plans.episodes.sets import load_episodes
from powerband.recipes.sketchnav.plans.images import frame_image, record_episode
from powerband.recipes.sketchnav.policies import (
    Act,
    InitialCarry,
    NavigationLearner,
    as_policy,
    encoder_of,
    named_policy,
    no_carry,
)
from powerband.recipes.sketchnav.trained import trained_learner
from powerband.report.evaluation_table import result_path, write_table
from powerband.report.media_files import save_image, write_video

MAX_ENVS = 64
"""Largest number of episodes that are played at a time."""
VALIDATION_SEED_OFFSET = 1_000_003
"""Difference of the seed of the episodes that are played during training from that of the run's episodes."""
NUM_IMAGES = 3
"""Episodes of which images are written."""
EPISODE_METRICS = ("spl", "soft_spl", "distance_to_goal", "length")


def run_episodes(
    episodes: Episodes,
    config: Config,
    act: Act,
    carry: InitialCarry = no_carry,
    device: torch.device | str = "cpu",
    count: int = 0,
    order: Tensor | None = None,
    label: str = "",
) -> dict[str, Tensor]:
    """Plays each episode once.

    Args:
        episodes: Episodes of a split.
        config: Configuration of the run.
        act: Policy: (environment, observations, carry) -> (actions, carry). The carry is the memory of the policy.
        carry: Function from the number of agents to the initial carry.
        device: Device of the environment.
        count: Play only the first `count` episodes; 0 plays all.
        order: Numbers (n,) int64 of the n episodes to play, in this order; None plays all.
        label: Label of the progress bar; empty shows no bar.

    Returns:
        Name -> tensor (episodes,) with one value per episode: ``success`` (0 or 1); ``spl``, success weighted by the
        path length over the distance moved; ``soft_spl``, with the completed share of the path in place of success;
        ``distance_to_goal`` in metres; ``length`` in steps; ``return``; ``env``, the index of the environment.
    """
    count = len(order) if order is not None else count or len(episodes)
    rows = next(rows for rows in range(min(MAX_ENVS, count), 0, -1) if count % rows == 0)
    env = make_evaluation_env(config, episodes, rows, order, device=device)

    def policy(obs: Tree, memory: Tensor | None) -> tuple[Tensor, Tensor | None]:
        return act(env, obs, memory)

    with count_progress_bar(label, count, "episodes") as show_progress:
        return evaluate(env, policy, count, 0, carry(rows), show_progress)


def summary(figures: dict[str, Tensor]) -> dict[str, float]:
    """Computes the success rate and mean metrics of evaluated episodes, each with its 95 % confidence interval.

    Args:
        figures: Name -> tensor (episodes,), as `run_episodes` returns them.

    Returns:
        ``success`` (share of the episodes), ``success_low`` and ``success_high`` (its interval), and the same three
        entries for the means of ``spl``, ``soft_spl``, ``distance_to_goal`` (metres) and ``length`` (steps). The
        intervals of these means are NaN for a single episode.
    """
    trials, won = len(figures["success"]), float(figures["success"].sum())
    low, high = wilson_interval(won, trials)
    row = {"success": won / trials, "success_low": low, "success_high": high}
    for name in EPISODE_METRICS:
        row[name], row[f"{name}_low"], row[f"{name}_high"] = mean_interval(figures[name])
    return row


class HeldOutEvaluation:
    """Evaluates during training, on episodes of their own. Call the object without arguments.

    The episodes are those of val_unseen with another seed. A checkpoint that is selected by them is therefore not
    selected by the episodes of ``powerband eval``. In the user's own plans (`plans_dir`) both use the same held-out
    plans, with different episodes.

    The evaluation has its own random numbers for actions, so that the random numbers of training stay the same.

    Args:
        config: Configuration of the run. The episodes are generated at the first evaluation.
        learner: Learner; its encoder uses the sketches of the episodes during an evaluation.
        device: Device of the learner and the environments.
    """

    def __init__(self, config: Config, learner: NavigationLearner, device: torch.device) -> None:
        self.config, self.learner, self.device = config, learner, device
        self.episodes: Episodes | None = None
        self.order: Tensor | None = None

    def __call__(self) -> dict[str, float]:
        """Plays the episodes and returns their means.

        Returns:
            ``success`` (share of the episodes), ``spl``, ``soft_spl``, ``distance_to_goal`` (metres) and ``length``
            (steps).
        """
        if self.episodes is None:
            seed = (self.config.episode_seed + VALIDATION_SEED_OFFSET) % 2**63
            self.episodes = load_episodes(replace(self.config, scene_seed=seed), "val_unseen")
            self.order = spread_episodes(self.config.eval_episodes, len(self.episodes))
        encoder = encoder_of(self.learner).sketch
        training_sketches, training_noise = encoder.sketches, self.learner.noise
        try:
            self.learner.noise = NoiseSource(0, self.device)
            act = as_policy(self.learner, self.episodes)
            carry = self.learner.initial_carry
            figures = run_episodes(self.episodes, self.config, act, carry, self.device, order=self.order)
        finally:
            encoder.set_sketches(training_sketches)
            self.learner.noise = training_noise
        return {name: value for name, value in summary(figures).items() if not name.endswith(("_low", "_high"))}


def evaluate_checkpoint(config: Config, folder: Path, options: Evaluation) -> list[dict[str, Any]]:
    """Evaluates the policies of `options` with the newest checkpoint of a run, and prints a table.

    Args:
        config: Configuration of the run.
        folder: Run folder. It receives ``eval-sketchnav.json``, and images and a video in ``videos/``.
        options: Splits, levels of the sketches, and policies to evaluate.

    Returns:
        One dict per split, level of the sketches, and policy. Its keys are ``split``, ``sketch``, ``policy``,
        ``episodes`` (their number), and the means and intervals that `summary` returns, with None in place of NaN.

    Raises:
        ConfigError: The options do not suit the algorithm of the run.
    """
    context = evaluation_context(options.gpus, options.precision, options.workers or config.run.threads)
    if options.draw:
        open_page(config, folder, context, options.plans_dir, options.metres_per_pixel, options.port)
        return []
    learner = trained_learner(config, folder, context)
    if config.renderer == "mujoco":
        print("The run was trained with renderer=mujoco. The ray caster renders the images of this evaluation.")
    if options.plans:
        config = replace(config, eval_plans=options.plans)
    samples_actions = isinstance(learner, PPO)
    policies: tuple[PolicyName, ...] = options.policies or (
        ("random", "forward-and-turn", "likeliest", "policy", "expert")
        if samples_actions
        else ("random", "forward-and-turn", "policy", "expert")
    )
    if options.temperature != 1 and not (samples_actions and "policy" in policies):
        raise ConfigError(
            f"temperature={options.temperature:g} applies to policies=policy of algo=ppo only. Leave temperature out."
        )
    shown = next((name for name in ("policy", "likeliest") if name in policies), "")
    rows: list[dict[str, Any]] = []
    for split, sketch, episodes, order in evaluation_sets(config, options):
        for name in policies:
            learner.noise = NoiseSource(options.seed, context.device)  # independent of the rows above
            act, carry = named_policy(name, learner, episodes, options.temperature, options.seed)
            device = context.device if name in ("policy", "likeliest") else "cpu"
            figures = run_episodes(episodes, config, act, carry, device, 0, order, f"{split} {sketch} {name}")
            row = {"split": split, "sketch": sketch, "policy": name, "episodes": len(figures["success"])}
            rows.append({**row, **summary(figures)})
            print(_table_line(rows[-1]), flush=True)
        if options.video and shown:
            act, carry = named_policy(shown, learner, episodes, options.temperature, options.seed)
            estimate = encoder_of(learner).estimated_position
            stem = result_path(folder, f"videos/{split}-{sketch}")
            _write_images(stem, config, episodes, act, carry, order, estimate, context.device)
    return write_table(folder, "sketchnav", options, rows)


def _table_line(row: dict[str, Any]) -> str:
    """Formats one row of the printed table."""

    def cell(name: str, digits: int) -> str:
        low, high = row[f"{name}_low"], row[f"{name}_high"]
        return f"{row[name]:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"

    return (
        f"{row['split']:<11}{row['sketch']:<9}{row['policy']:<16}{row['episodes']:>5} episodes   success "
        f"{cell('success', 3)}   SPL {cell('spl', 3)}   soft SPL {cell('soft_spl', 3)}   "
        f"{cell('distance_to_goal', 1)} m to go"
    )


def _write_images(
    stem: Path,
    config: Config,
    episodes: Episodes,
    act: Act,
    carry: InitialCarry,
    order: Tensor | None,
    estimated_position: Callable[[Any], Tensor | None],
    device: torch.device,
) -> None:
    """Plays up to three episodes; writes images ``<stem>-<number>.png``, and a video ``<stem>`` of the first one."""
    for number in range(min(NUM_IMAGES, len(episodes) if order is None else len(order))):
        env = make_evaluation_env(config, episodes, 1, order, number, device)
        frames = record_episode(env, act, carry(1), estimated_position)
        save_image(stem.with_name(f"{stem.name}-{number}.png"), frame_image(frames[-1]))
        if number == 0:
            write_video((frame_image(frame) for frame in frames), stem, fps=10)
