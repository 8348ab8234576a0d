"""Builds the learner of libero from its configuration: instruction tokens, the policy's shape and published weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from powerband.core.errors import ConfigError
from powerband.core.rank_context import RankContext
from powerband.core.run.checkpoints.checkpoint import resolve_resume
from powerband.data.robot.episodes import CAMERAS
from powerband.data.robot.unified_vector import ACTION_DIM, POSITION, UNIFIED_DIM
from powerband.data.types import EnvSpec, TensorSpec
from powerband.loops.config import OfflineConfig
from powerband.recipes.libero.config import Config
from powerband.recipes.libero.nets.frozen_encoders import FrozenImageEncoder, encode_language
from powerband.recipes.libero.nets.hashed_tokens import hash_instructions
from powerband.recipes.libero.nets.rdt import SIZES, RDTShape
from powerband.recipes.libero.nets.rdt_checkpoint import load_published, published_shape
from powerband.recipes.libero.nets.rdt_policy import RDTPolicy
from powerband.recipes.libero.nets.small_vision import PatchEncoder
from powerband.recipes.libero.rdt import RDTLearner

HASHED_LANGUAGE_TOKENS = 64
"""Largest number of tokens of an instruction with the built-in encoder."""
T5_LANGUAGE_TOKENS = 1024
"""Largest number of tokens of an instruction with a T5 encoder."""
EMA_FOLDER = "ema"
"""Folder in a checkpoint with the averaged weights, in the format of the published checkpoints."""


def instruction_tokens(config: Config, instructions: Sequence[str], cache_dir: Path) -> tuple[Tensor, Tensor]:
    """Encodes instructions with the encoder that the configuration names.

    Args:
        config: Configuration of the run.
        instructions: K instructions.
        cache_dir: Folder in which the tokens of a T5 encoder are cached.

    Returns:
        Up to L tokens of D features per instruction, (K, L, D) float32, and their mask (K, L), True for tokens.
    """
    if config.text_encoder:
        return encode_language(Path(config.text_encoder), instructions, cache_dir)
    return hash_instructions(instructions)


def build_policy(config: Config, language_width: int, vision: FrozenImageEncoder | None) -> RDTPolicy:
    """Builds a policy, with the weights of `pretrained` if the configuration names a checkpoint.

    Args:
        config: Configuration of the run.
        language_width: Features of an instruction token.
        vision: Frozen image encoder whose features the policy observes; None if it trains its own encoder.

    Raises:
        ConfigError: The chunks of the checkpoint do not have `rdt.horizon` actions, or its weights do not fit the
            policy.
    """
    patch_encoder = PatchEncoder(config.net.width, config.net.subsample, config.net.patch)
    if config.pretrained:
        size, shape = published_shape(Path(config.pretrained))
        if shape.horizon != config.rdt.horizon:
            raise ConfigError(
                f"pretrained={config.pretrained} has chunks of {shape.horizon} actions, not {config.rdt.horizon}. "
                f"Write rdt.horizon={shape.horizon}."
            )
    else:
        size = SIZES[config.size]
        patches, patch_width = patch_encoder.patches(config.pixels, config.pixels), patch_encoder.width
        if vision is not None:
            patches, patch_width = vision.tokens, vision.width
        shape = RDTShape(
            horizon=config.rdt.horizon,
            vector=UNIFIED_DIM,
            language_tokens=T5_LANGUAGE_TOKENS if config.text_encoder else HASHED_LANGUAGE_TOKENS,
            frames=config.frames,
            cameras=len(CAMERAS),
            patches=patches,
            language_width=language_width,
            patch_width=patch_width,
        )
    trained_encoder = patch_encoder if config.use_images and vision is None else None
    policy = RDTPolicy(
        size,
        shape,
        trained_encoder,
        config.rdt.gradient_checkpointing,
        keyframe_entries=range(POSITION.start, POSITION.stop) if config.rdt.keyframe_coef else (),
    )
    if config.pretrained:
        load_published(policy, Path(config.pretrained))
    return policy


def restorable(config: Config, run: str) -> Config:
    """Returns a configuration for a learner that a checkpoint restores, even if the folder `pretrained` has moved.

    The averaged weights of a checkpoint have the format of the published ones, and therefore tell the shapes of the
    policy. All weights come from the checkpoint afterwards.

    Args:
        config: Configuration of the run.
        run: Run folder or checkpoint that is restored.
    """
    if not config.pretrained or Path(config.pretrained).is_dir():
        return config
    averaged = resolve_resume(run)[0] / EMA_FOLDER
    return replace(config, pretrained=str(averaged)) if averaged.is_dir() else config


def make_learner(
    config: Config,
    instructions: Sequence[str],
    cache_dir: Path,
    vision: FrozenImageEncoder | None,
    context: RankContext,
) -> RDTLearner:
    """Creates a learner and sets its instructions.

    Args:
        config: Configuration of the run.
        instructions: Instructions of the tasks; ``obs["task"]`` is an index into them.
        cache_dir: Folder in which the tokens of a T5 encoder are cached.
        vision: Frozen image encoder whose features the policy observes; None if it trains its own encoder or sees no
            images.
        context: Device, precision, random numbers and ranks.
    """
    tokens, token_mask = instruction_tokens(config, instructions, cache_dir)
    policy = build_policy(config, tokens.shape[-1], vision)
    learner = RDTLearner(config.rdt, policy, context)
    learner.set_instructions(tokens, token_mask)
    return learner


def make_evaluation_learner(
    config: Config, instructions: Sequence[str], run_dir: Path, context: RankContext
) -> tuple[RDTLearner, FrozenImageEncoder | None]:
    """Creates a learner for the given instructions, into which a checkpoint of the run in `run_dir` can be loaded.

    Returns:
        The learner, and the frozen image encoder of the run; None if the run has none.
    """
    frozen = config.use_images and config.vision_encoder
    vision = FrozenImageEncoder(Path(config.vision_encoder), context.device) if frozen else None
    return make_learner(config, instructions, run_dir / "language", vision, context), vision


def build_learner(config: Config, context: RankContext) -> tuple[RDTLearner, EnvSpec, OfflineConfig]:
    """Creates a learner without demonstrations, for ``powerband doctor`` and tests.

    Returns:
        The learner with two placeholder instructions, the shapes of its observations and actions, and the options of
        the offline loop.
    """
    learner = make_learner(config, ["do this", "do that"], Path("."), None, context)
    obs = {
        "state": TensorSpec((UNIFIED_DIM,)),
        "state_mask": TensorSpec((UNIFIED_DIM,), torch.bool),
        "task": TensorSpec((), torch.int64),
        "hz": TensorSpec(()),
    }
    if config.use_images:
        shape = (config.frames, len(CAMERAS), config.pixels, config.pixels, 3)
        obs |= {"images": TensorSpec(shape, torch.uint8), "image_mask": TensorSpec(shape[:2], torch.bool)}
    return learner, EnvSpec(obs=obs, action=TensorSpec((ACTION_DIM,))), config.offline
