"""Learning libero: the policy that learns from demonstrations, how it is told and tried, and how it is built again."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from powerband.algos.rdt import RDTLearner
from powerband.core.config import ConfigError
from powerband.core.distributed import Ranks
from powerband.core.noise import NoiseSource
from powerband.core.precision import Precision
from powerband.core.run import Run
from powerband.core.scaling import scaled_lr
from powerband.data.feed import Feed
from powerband.data.robot_episodes import CAMERAS, RobotEpisodes
from powerband.data.statistics import Statistics
from powerband.data.types import EnvSpec, TensorSpec
from powerband.data.unified import ACTION_SLOTS, UNIFIED, at_slots, slots_there
from powerband.envs.libero.single import ACTION
from powerband.envs.libero.tasks import NotInstalled
from powerband.loops.offline import offline
from powerband.nets.frozen_encoders import FrozenVision, encode_language
from powerband.nets.rdt import SIZES, RDTShape
from powerband.nets.rdt_checkpoint import load_published, published_shape
from powerband.nets.rdt_policy import RDTPolicy
from powerband.nets.small_vision import SmallVision
from powerband.nets.words import encode_words, likeness
from powerband.recipes.libero import Config
from powerband.recipes.libero_data import Data, data_of, source_of

STATISTICS = "statistics.json"
ALIKE = 0.999
"""Instructions whose mean tokens have this cosine cannot be told apart."""
LANGUAGE_TOKENS = 64
"""Tokens of an instruction at most, with the built-in encoder."""
See = Callable[[Tensor], Tensor]


# -- the policy -----------------------------------------------------------------------------------------------------


def language_of(config: Config, instructions: list[str], cache: Path) -> tuple[Tensor, Tensor]:
    """Tokens (K, L, D) of instructions, and which are there (K, L)."""
    if config.text_encoder:
        return encode_language(Path(config.text_encoder), instructions, cache)
    return encode_words(instructions)


def policy_of(config: Config, language_width: int, vision: FrozenVision | None) -> RDTPolicy:
    """A new policy, with the weights of `pretrained` where there are such."""
    small = SmallVision(config.net.width, config.net.subsample, config.net.patch)
    if config.pretrained:
        size, shape = published_shape(Path(config.pretrained))
        if shape.horizon != config.rdt.horizon:
            raise ConfigError(
                f"pretrained={config.pretrained} makes chunks of {shape.horizon} actions, not {config.rdt.horizon}. "
                f"Write rdt.horizon={shape.horizon}."
            )
    else:
        size = SIZES[config.size]
        patches, width = small.patches(config.pixels, config.pixels), small.width
        if vision is not None:
            patches, width = vision.tokens, vision.width
        tokens = 1024 if config.text_encoder else LANGUAGE_TOKENS
        shape = RDTShape(
            config.rdt.horizon, UNIFIED, tokens, config.frames, len(CAMERAS), patches, language_width, width
        )
    sees = small if config.use_pictures and vision is None else None
    policy = RDTPolicy(size, shape, sees, config.rdt.checkpoint_activations)
    if config.pretrained:
        load_published(policy, Path(config.pretrained))
    return policy


def learner_of(
    config: Config,
    instructions: list[str],
    cache: Path,
    vision: FrozenVision | None,
    ranks: Ranks,
    precision: Precision,
    noise: NoiseSource,
) -> RDTLearner:
    """A new learner that knows `instructions`."""
    tokens, there = language_of(config, instructions, cache)
    policy = policy_of(config, tokens.shape[-1], vision)
    learner = RDTLearner(config.rdt, policy, ranks, precision, noise)
    learner.speak(tokens, there)
    return learner


def known(statistics: dict[str, Statistics], episodes: RobotEpisodes) -> dict[str, Tensor]:
    """What `RDTPolicy.know` wants."""
    found = {}
    for kind, of in statistics.items():
        _, std, _ = of.check()
        found |= {f"{kind}_mean": at_slots(of.mean, of.names), f"{kind}_std": at_slots(std, of.names, 1.0)}
    return {**found, "state_there": episodes.state_there, "action_there": slots_there(ACTION_SLOTS)}


def train(config: Config, run: Run) -> None:
    """Trains on the demonstrations of `data` or `demos_dir`."""
    ranks, data = run.ranks, data_of(config, run)
    instructions = list(data.episodes.instructions)
    _same_tasks(config, run, instructions)
    section, run.facts["learning rates"] = scaled_lr(config.rdt, config.run.lr_scale, ranks.world_size)
    config = replace(config, rdt=section)
    cache = source_of(config, run.dir).parent / "language"
    learner = learner_of(config, instructions, cache, data.vision, ranks, run.precision, run.noise)
    settings = known(data.statistics, data.episodes)
    for policy in (learner.policy, learner.acting):
        policy.know(**settings)
    _same_statistics(run, data.statistics)
    _banner(config, run, data, learner)
    run.evaluate = Trial(config, run, data, learner)
    run.before_save = learner.gather
    rows = config.rank_rows(ranks.world_size)
    order = (config.run.seed, ranks.rank, ranks.world_size, config.offline.loader_threads)
    offline(run, learner, Feed(data.chunks.rows, rows, data.chunks, run.device, *order), config.offline)
    run.export_policy(learner.policy_state())


def _same_tasks(config: Config, run: Run, instructions: list[str]) -> None:
    """Says so where no demonstration is of the run's tasks. Learning needs no simulator, so that nothing is compared
    without LIBERO.

    Raises:
        ConfigError: None of the tasks that evaluations are to play was demonstrated.
    """
    try:
        tasks = [task.instruction for task in config.chosen()]
    except NotInstalled:
        if config.eval_episodes:
            raise
        return
    if not set(tasks).isdisjoint(instructions):
        return
    told = (
        f"no demonstration in {source_of(config, run.dir)} is of the task {_shown(tasks)} of {config.benchmark}: "
        f"they say {_shown(instructions)}"
    )
    if config.eval_episodes:
        raise ConfigError(f"{told}. Write benchmark= and tasks= of what was recorded, or eval_episodes=0.")
    run.console.note(f"{told}. Evaluate with benchmark= and tasks= of what was recorded.")


def _shown(said: list[str]) -> str:
    return f"{said[0]!r}" + (f" and {len(said) - 1} more" if len(said) > 1 else "")


def _same_statistics(run: Run, statistics: dict[str, Statistics]) -> None:
    """Keeps the statistics with the run; those of a resumed one must be the same.

    Raises:
        ConfigError: They are of other data.
    """
    path = run.dir / STATISTICS
    if run.settings.resume and path.exists():
        before = json.loads(path.read_text(encoding="utf-8"))
        for kind, of in statistics.items():
            if apart := of.differs_from(Statistics.from_dict(before[kind])):
                raise ConfigError(f"{path} and these demonstrations differ in their {kind}s: {apart}. Train anew.")
    if run.ranks.leads:
        path.write_text(json.dumps({kind: of.to_dict() for kind, of in statistics.items()}, indent=1))


def _banner(config: Config, run: Run, data: Data, learner: RDTLearner) -> None:
    ranks, rows = run.ranks, config.rank_rows(run.ranks.world_size)
    each, parts = rows // config.rdt.accumulation, config.rdt.accumulation
    weights = sum(parameter.numel() for parameter in learner.policy.parameters())
    run.facts["demonstrations"] = (
        f"{data.episodes.rows:,} steps of {data.episodes.count:,} episodes, {len(data.episodes.instructions)} task(s)"
    )
    run.facts |= {f"statistics of {kind}s": of.check()[2] for kind, of in data.statistics.items()}
    run.facts["global batch"] = (
        f"{each} rows x {ranks.world_size} rank(s) x {parts} part(s) accumulated = {rows * ranks.world_size}; the "
        f"guide's train_batch_size={each}, which it calls the total"
    )
    run.facts["policy"] = (
        f"{config.size if not config.pretrained else config.pretrained}, {weights / 1e6:,.1f} M weights"
        + (f", {learner.adam.sharded} in shards on {ranks.world_size} rank(s)" if learner.adam.sharded else "")
    )
    alike = likeness(learner.policy.language_tokens, learner.policy.language_there)
    for one, other in (alike - torch.eye(len(alike), device=alike.device) > ALIKE).nonzero().tolist():
        if one < other:
            run.console.note(
                f"two tasks have one instruction, which cannot tell them apart: {data.episodes.instructions[one]!r}."
            )


class Trial:
    """What is measured during training: the error of drawn chunks, and success in the simulator where it is asked for.

    Args:
        config: Of the run.
        run: Says which ranks draw.
        data: Some of its rows are drawn for, the same each time.
        learner: Its averaged weights draw.
    """

    def __init__(self, config: Config, run: Run, data: Data, learner: RDTLearner) -> None:
        self.config, self.run, self.data, self.learner = config, run, data, learner
        count = min(config.sample_batch_size, data.chunks.rows)
        self.rows = torch.linspace(0, data.chunks.rows - 1, count).long()

    def __call__(self) -> dict[str, float]:
        """``sample_mse`` in deviations of each number; ``success``."""
        batch = self.data.chunks(self.rows)
        to = self.learner.device
        obs = {name: value.to(to) for name, value in batch["obs"].items()}
        drawn, _, _ = self.learner.act(obs, None, explore=False)
        there = (batch["action_there"].unsqueeze(1) & batch["valid"].unsqueeze(2)).to(to)
        error = (drawn - batch["action"].to(to)) / self.learner.acting.action_std
        found = {"sample_mse": float(error[there].square().mean())}
        if self.config.eval_episodes:
            found["success"] = self._success()
        return found

    def _success(self) -> float:
        from powerband.recipes.libero_score import ChunkActor, Evaluation, score

        options, execute = Evaluation(episodes=self.config.eval_episodes), self.config.rdt.execute
        told = list(self.data.episodes.instructions)
        won = []
        for task in self.config.chosen():
            if task.instruction not in told:
                continue
            policy = ChunkActor(self.learner, told.index(task.instruction), execute, self.data.vision)
            won.append(score(self.config, task, policy, execute, options)["success"])
        return sum(won) / max(1, len(won))


# -- built again ----------------------------------------------------------------------------------------------------


def for_evaluation(config: Config, instructions: list[str], folder: Path) -> tuple[RDTLearner, See | None]:
    """The learner of a run, told other instructions, and its frozen encoder."""
    sees = config.use_pictures and config.vision_encoder
    vision = FrozenVision(Path(config.vision_encoder)) if sees else None
    ranks, precision = Ranks(device=torch.device("cpu")), Precision("fp32", "cpu")
    return learner_of(
        config, instructions, folder / "language", vision, ranks, precision, NoiseSource(0, "cpu")
    ), vision


def networks(config: Config, device: Any, precision: Precision) -> tuple[Any, EnvSpec, Any]:
    """A new learner of `config`, what it sees, and its loop's sizes; `doctor` times it."""
    ranks = Ranks(device=torch.device(device))
    learner = learner_of(config, ["do this", "do that"], Path("."), None, ranks, precision, NoiseSource(0, device))
    obs = {
        "state": TensorSpec((UNIFIED,)),
        "state_there": TensorSpec((UNIFIED,), torch.bool),
        "task": TensorSpec((), torch.int64),
        "hz": TensorSpec(()),
    }
    if config.use_pictures:
        shape = (config.frames, len(CAMERAS), config.pixels, config.pixels, 3)
        obs |= {"pictures": TensorSpec(shape, torch.uint8), "pictures_there": TensorSpec(shape[:2], torch.bool)}
    return learner, EnvSpec(obs=obs, action=TensorSpec((ACTION,))), config.offline
