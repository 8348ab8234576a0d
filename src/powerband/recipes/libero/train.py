"""Stage train of libero: learns an RDT policy from demonstrations, and evaluates it during training."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from powerband.core.config.sizes import scaled_lr
from powerband.core.errors import ConfigError
from powerband.core.run.hooks import RunHooks
from powerband.core.run.run import Run
from powerband.data.recorded.batch_loader import BatchLoader
from powerband.data.robot.episodes import RobotEpisodes
from powerband.data.robot.statistics import MIN_RELATIVE_STD, Statistics
from powerband.data.robot.unified_vector import ACTION_SLOTS, POSITION, scatter_to_slots, slot_mask
from powerband.loops.offline import offline
from powerband.recipes.libero.config import Config
from powerband.recipes.libero.dataset import DemonstrationData, demonstrations_path, load_demonstration_data
from powerband.recipes.libero.demos import record_missing
from powerband.recipes.libero.env.tasks import LiberoNotInstalled
from powerband.recipes.libero.evaluation import STATISTICS_FILE, ChunkActor, evaluate_task
from powerband.recipes.libero.learners import EMA_FOLDER, make_learner, restorable
from powerband.recipes.libero.nets.hashed_tokens import instruction_similarity
from powerband.recipes.libero.nets.rdt_checkpoint import published_files
from powerband.recipes.libero.rdt import RDTLearner
from powerband.recipes.libero.settings import Evaluation, StatisticsKind

VALIDATION_SEED = 2_000
"""Seed of the initial states of evaluations during training. The seed of ``powerband eval`` is 1,000."""
SAME_INSTRUCTION = 0.999
"""Cosine of two instructions' mean tokens above which the policy cannot distinguish them."""


def train(config: Config, run: Run) -> None:
    """Trains an RDT policy on the demonstrations of the option ``data`` or ``demos_dir``, and exports it."""
    ranks = run.ranks
    if config.record_missing and not config.data:
        if ranks.leads:
            record_missing(config, run)
        if any(ranks.gather(bool(run.received_signal))):  # waits for the first rank, too
            return
    data = load_demonstration_data(config, run)
    instructions = list(data.episodes.instructions)
    _check_tasks(config, run, instructions)
    if config.rdt.keyframe_coef and not bool(data.episodes.state_mask[POSITION].all()):
        raise ConfigError(
            f"rdt.keyframe_coef={config.rdt.keyframe_coef:g} needs the position of the end effector, which these "
            f"demonstrations do not have. Write rdt.keyframe_coef=0."
        )
    settings, learning_rates = scaled_lr(config.rdt, config.run.lr_scale, ranks.world_size)
    run.describe({"learning rates": learning_rates})
    config = replace(config, rdt=settings)
    if config.run.resume:
        config = restorable(config, config.run.resume)
    cache_dir = demonstrations_path(config, run.dir).parent / "language"
    learner = make_learner(config, instructions, cache_dir, data.vision, run.context)
    statistics = policy_statistics(data.statistics, data.episodes, config.statistics)
    state = data.statistics["state"]
    if config.statistics != "zscore":
        spread = scatter_to_slots(state.std, state.names).to(run.device)
        learner.state_spread = spread / statistics["state_std"].to(run.device)
    for policy in (learner.policy, learner.acting):
        policy.set_statistics(**statistics)
    _store_statistics(run, data, config.statistics)
    _describe(config, run, data, learner)
    loader = BatchLoader(
        data.chunks.rows,
        config.rows_per_rank_update(ranks.world_size),
        data.chunks,
        run.device,
        config.run.seed,
        ranks.rank,
        ranks.world_size,
        config.offline.loader_threads,
    )
    hooks = RunHooks(
        evaluate=TrainingEvaluation(config, data, learner),
        before_save=learner.gather,
        export=lambda: {
            f"{EMA_FOLDER}/{name}": content for name, content in published_files(learner.acting, config.rdt).items()
        },
    )
    offline(run, learner, loader, config.offline, hooks, config.rdt.gradient_accumulation_steps)
    run.export_policy(learner.policy_state())


def policy_statistics(
    statistics: Mapping[str, Statistics], episodes: RobotEpisodes, units: StatisticsKind = "zscore"
) -> dict[str, Tensor]:
    """Converts the statistics of demonstrations to the keyword arguments of `RDTPolicy.set_statistics`.

    Args:
        statistics: Statistics of ``state`` and ``action``.
        episodes: Recorded episodes, which determine the entries of the state that the robot has.
        units: zscore subtracts the mean and divides by the standard deviation; quantile maps the quantiles of 1 % and
            99 % to -1 and 1; none keeps the recorded units. Constant dimensions are not scaled.

    Returns:
        Tensors (128,): ``state_mean``, ``state_std``, ``action_mean``, ``action_std``, ``state_mask``, ``action_mask``.
    """
    arguments: dict[str, Tensor] = {}
    for kind, each in statistics.items():
        _, scale, _ = each.check()
        shift = each.mean
        if units == "none":
            shift, scale = torch.zeros_like(shift), torch.ones_like(scale)
        elif units == "quantile":
            half = (each.q99 - each.q01) / 2
            shift = (each.q99 + each.q01) / 2
            scale = torch.where(half > MIN_RELATIVE_STD * shift.abs().clamp(min=1.0), half, torch.ones_like(half))
        arguments[f"{kind}_mean"] = scatter_to_slots(shift, each.names)
        arguments[f"{kind}_std"] = scatter_to_slots(scale, each.names, 1.0)
    return {**arguments, "state_mask": episodes.state_mask, "action_mask": slot_mask(ACTION_SLOTS)}


def _check_tasks(config: Config, run: Run, instructions: Sequence[str]) -> None:
    """Reports demonstrations that show none of the run's tasks.

    Learning needs no simulator: without LIBERO the tasks are unknown, and nothing is compared.

    Raises:
        ConfigError: Evaluations during training would play tasks that no demonstration shows.
    """
    try:
        tasks = [task.instruction for task in config.selected_tasks()]
    except LiberoNotInstalled:
        if config.eval_episodes:
            raise
        return
    if not set(tasks).isdisjoint(instructions):
        return
    message = (
        f"No demonstration in {demonstrations_path(config, run.dir)} shows the task {_first(tasks)} of "
        f"{config.benchmark}; the demonstrations show {_first(instructions)}"
    )
    if config.eval_episodes:
        raise ConfigError(
            f"{message}. Set benchmark= and tasks= to the tasks of the demonstrations, or write eval_episodes=0 to "
            f"train without evaluations."
        )
    run.console.note(f"{message}. For evaluations, set benchmark= and tasks= to the tasks of the demonstrations.")


def _first(texts: Sequence[str]) -> str:
    return f"{texts[0]!r}" + (f" and {len(texts) - 1} more" if len(texts) > 1 else "")


def _store_statistics(run: Run, data: DemonstrationData, units: StatisticsKind) -> None:
    """Writes normalisation statistics, control frequency and cameras of the demonstrations to the run folder.

    A resumed run must have the same statistics and units.

    Raises:
        ConfigError: The stored statistics describe other data, or are used in other units.
    """
    path, statistics = run.dir / STATISTICS_FILE, data.statistics
    if run.settings.resume and path.exists():
        stored = json.loads(path.read_text(encoding="utf-8"))
        if (stored_units := stored.get("units", "zscore")) != units:
            raise ConfigError(
                f"statistics={units} differs from statistics={stored_units}, with which this run was trained. Write "
                f"statistics={stored_units}, or start a new run."
            )
        for kind, each in statistics.items():
            if difference := each.difference_from(Statistics.from_dict(stored[kind], str(path))):
                raise ConfigError(
                    f"The {kind}s of these demonstrations differ from those in {path}: {difference}. Resume with the "
                    f"demonstrations that the run started with, or start a new run."
                )
    if run.ranks.leads:
        content: dict[str, Any] = {kind: each.to_dict() for kind, each in statistics.items()}
        content |= {"units": units, "hz": data.episodes.hz, "cameras": data.episodes.cameras}
        path.write_text(json.dumps(content, indent=1))


def _describe(config: Config, run: Run, data: DemonstrationData, learner: RDTLearner) -> None:
    """Adds demonstrations, statistics, batch sizes and the policy to the start banner."""
    world_size, parts = run.ranks.world_size, config.rdt.gradient_accumulation_steps
    rows = config.rows_per_rank_update(world_size)
    rows_per_part = rows // parts
    weights = sum(parameter.numel() for parameter in learner.policy.parameters())
    frozen = sum(each.numel() for each in learner.policy.parameters() if not each.requires_grad)
    held = f", {frozen / 1e6:,.1f} M of them frozen" if frozen else ""
    sharded = f", {learner.adam.sharded} in shards on {world_size} rank(s)" if learner.adam.sharded else ""
    instructions = data.episodes.instructions
    run.describe(
        {
            "demonstrations": f"{data.episodes.rows:,} steps of {data.episodes.count:,} episodes, "
            f"{len(instructions)} task(s)",
            **{f"statistics of {kind}s": each.check()[2] for kind, each in data.statistics.items()},
            "global batch": f"{rows_per_part} rows x {world_size} rank(s) x {parts} part(s) accumulated = "
            f"{rows * world_size}; the guide's train_batch_size={rows_per_part}, which it calls the total",
            "policy": f"{config.pretrained or config.size}, {weights / 1e6:,.1f} M weights{held}{sharded}",
        }
    )
    similarity = instruction_similarity(learner.policy.language_tokens, learner.policy.language_mask)
    same = similarity - torch.eye(len(similarity), device=similarity.device) > SAME_INSTRUCTION
    for first, second in same.nonzero().tolist():
        if first < second:
            run.console.note(
                f"Two tasks have the same instruction, {instructions[first]!r}, so the policy cannot distinguish them. "
                f"Name the folder or file with the demonstrations of one of them: data=PATH."
            )


class TrainingEvaluation:
    """Evaluates during training: the error of sampled action chunks and, if requested, success in the simulator.

    Call the object without arguments.

    Args:
        config: Configuration of the run.
        data: Demonstrations; chunks are sampled for the same rows each time.
        learner: Learner whose averaged weights act.
    """

    def __init__(self, config: Config, data: DemonstrationData, learner: RDTLearner) -> None:
        self.config, self.data, self.learner = config, data, learner
        count = min(config.sample_batch_size, data.chunks.rows)
        self.rows = torch.linspace(0, data.chunks.rows - 1, count).long()

    def __call__(self) -> dict[str, float]:
        """Evaluates the policy of the learner.

        Returns:
            A dict: ``sample_mse``, the mean squared error of sampled chunks, with each entry divided by its standard
            deviation; and, if `eval_episodes` is above 0, ``success``, the mean success rate (0..1) in the simulator.
        """
        batch, device = self.data.chunks(self.rows), self.learner.device
        obs = {name: value.to(device) for name, value in batch["obs"].items()}
        chunk, _, _ = self.learner.act(obs, None, explore=False)
        counts = (batch["action_mask"].unsqueeze(1) & batch["valid"].unsqueeze(2)).to(device)
        error = (chunk - batch["action"].to(device)) / self.learner.acting.action_std
        figures = {"sample_mse": float(error[counts].square().mean())}
        if self.config.eval_episodes:
            figures["success"] = self._success()
        return figures

    def _success(self) -> float:
        """Returns the mean success rate over the tasks of the run that the demonstrations show.

        The initial states are random. Published ones are reserved for ``powerband eval``, whose results a checkpoint
        that was selected on the same states would bias.
        """
        options = Evaluation(episodes=self.config.eval_episodes, starts="drawn", seed=VALIDATION_SEED)
        exec_horizon = self.config.rdt.exec_horizon
        instructions = list(self.data.episodes.instructions)
        rates = []
        for task in self.config.selected_tasks():
            if task.instruction in instructions:
                number = instructions.index(task.instruction)
                episodes = self.data.episodes
                actor = ChunkActor(self.learner, number, exec_horizon, self.data.vision, episodes.hz, episodes.cameras)
                rates.append(evaluate_task(self.config, task, actor, exec_horizon, options)["success"])
        return sum(rates) / max(1, len(rates))
