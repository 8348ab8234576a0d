"""Reads and writes the project folder of metaworld, in which stages save files that later stages read.

The option ``project`` names the folder. A stage saves policies in ``policy/`` and recorded transitions in ``data/``:

- ``experts/<task>/`` contains ``policy/`` and ``data/``, ``online/<task>/`` contains ``data/``;
- ``encoder/`` contains ``policy/``, ``probe.json`` and ``tasks.png``;
- ``collective/`` contains ``policy/`` and ``encoder.json``, the hash of the encoder whose codes it learned from;
- ``students/<task>/`` contains ``policy/``;
- ``evaluation.json`` is the table of the stage evaluate.

A policy is a safetensors file with its configuration. Transitions are shards (`powerband.data.recorded.shards`).
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from powerband.algos.sac import SAC
from powerband.core.config import from_json, to_json
from powerband.core.config.saved import saved_text
from powerband.core.errors import ConfigError
from powerband.core.rank_context import RankContext
from powerband.core.regular_files import read_object, replace_text
from powerband.core.run.checkpoints.checkpoint_writer import export_policy
from powerband.data.recorded.shards import read_manifest, read_shards
from powerband.recipes.metaworld.algos.expert import build_learner, load_sac_tensors
from powerband.recipes.metaworld.config import Config
from powerband.recipes.metaworld.nets.collective import CollectiveActorCritic
from powerband.recipes.metaworld.nets.trajectory import TrajectoryEncoder
from powerband.recipes.metaworld.old_names import OLD_NAMES

REWARD_SCALE = 0.1
"""Factor on rewards in the input of the trajectory encoder, because rewards reach from 0 to 10."""


ENCODER_FILE = "encoder.json"
"""File in the folder of the collective network with the hash of its encoder."""


class MissingStage(ConfigError):
    """Raised if the output of an earlier stage does not exist; the message contains the command that creates it."""


def stage_folder(config: Config, what: str, task: str = "") -> Path:
    """Returns the subfolder of the project folder in which a stage saves its output.

    Args:
        config: Names the project folder.
        what: Kind of output: experts, online, encoder, collective or students.
        task: Name of the task; "" for output that all tasks share.
    """
    return Path(config.project) / what / task


def save_policy(folder: Path, config: Config, tensors: dict[str, Tensor]) -> None:
    """Writes a policy, which is its configuration and its tensors by name, to ``policy/`` in `folder`.

    Each file is written completely or not at all, so a concurrent reader never sees an incomplete file.
    """
    export_policy(folder, json.loads(to_json(config)), tensors)


def load_policy(folder: Path, command: str) -> tuple[Config, dict[str, Tensor]]:
    """Reads a policy that `save_policy` wrote.

    Args:
        folder: Folder that contains ``policy/``.
        command: Command line that creates the policy; the error message contains it.

    Returns:
        The configuration of the policy, and its tensors by name.

    Raises:
        MissingStage: The policy does not exist.
        ConfigError: A file of the policy is damaged.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = folder / "policy" / "model.safetensors"
    if not path.exists():
        raise MissingStage(f"{folder} has no policy yet. Write {command} first.")
    stored = folder / "policy" / "config.json"
    config = from_json(Config, saved_text(stored), str(stored), OLD_NAMES)
    try:
        return config, load_file(path)
    except (OSError, ValueError, SafetensorError) as error:
        raise ConfigError(f"{path} cannot be read ({str(error)[:200]}). Write {command} again.") from error


def stage_command(config: Config, stage: str, task: str = "") -> str:
    """Returns the command line that runs `stage` with the project folder of `config`; a `task` of "" is left out."""
    own = f" project={config.project}" if config.project != Config().project else ""
    return f"powerband train metaworld {stage}" + (f" task={task}" if task else "") + own


def load_expert(config: Config, task: str, device: torch.device | str = "cpu") -> SAC:
    """Loads the trained expert of a task.

    Raises:
        MissingStage: The expert has not been trained.
    """
    own, tensors = load_policy(stage_folder(config, "experts", task), stage_command(config, "expert", task))
    plain = replace(own, sac=replace(own.sac, compile=False))
    sac, _, _ = build_learner(plain, RankContext.single(device))
    load_sac_tensors(sac, tensors)
    return sac


def load_encoder(config: Config, device: torch.device | str = "cpu") -> TrajectoryEncoder:
    """Loads the trained trajectory encoder, frozen and without dropout.

    Raises:
        MissingStage: The encoder has not been trained.
    """
    own, tensors = load_policy(stage_folder(config, "encoder"), stage_command(config, "represent"))
    encoder = TrajectoryEncoder(replace(own.represent.net, gradient_checkpointing=False)).to(device)
    encoder.load_state_dict(tensors)
    return encoder.eval().requires_grad_(False)


def load_collective(config: Config, device: torch.device | str = "cpu") -> CollectiveActorCritic:
    """Loads the trained collective network: one policy and critics that are distilled from all experts.

    Raises:
        MissingStage: The network has not been trained.
    """
    own, tensors = load_policy(stage_folder(config, "collective"), stage_command(config, "distill"))
    net = CollectiveActorCritic(own.represent.net.code, own.distill.hidden).to(device)
    net.load_state_dict(tensors)
    return net.eval()


def save_collective(config: Config, net: CollectiveActorCritic, encoder: TrajectoryEncoder) -> None:
    """Writes the collective network, with the sizes and the hash of the encoder whose codes it learned from."""
    folder = stage_folder(config, "collective")
    represent = replace(config.represent, net=encoder.config)
    save_policy(folder, replace(config, represent=represent), dict(net.state_dict()))
    replace_text(folder / ENCODER_FILE, json.dumps({"sha256": _encoder_hash(encoder)}))


def load_encoder_and_collective(
    config: Config, device: torch.device | str = "cpu"
) -> tuple[TrajectoryEncoder, CollectiveActorCritic]:
    """Loads the trajectory encoder, and the collective network that learned from its codes.

    Raises:
        MissingStage: One of them has not been trained.
        ConfigError: The collective network learned from the codes of another encoder.
    """
    encoder, net = load_encoder(config, device), load_collective(config, device)
    folder = stage_folder(config, "collective")
    known = (folder / ENCODER_FILE).exists()  # earlier versions saved no hash
    if known and read_object(folder / ENCODER_FILE).get("sha256") != _encoder_hash(encoder):
        raise ConfigError(
            f"{folder} has a collective network that learned from the codes of another encoder than the one in "
            f"{stage_folder(config, 'encoder')}. Write {stage_command(config, 'distill')} again, with the settings of "
            f"its earlier run."
        )
    return encoder, net


def _encoder_hash(encoder: TrajectoryEncoder) -> str:
    """Returns the SHA-256 hash of the tensors of an encoder, on any device."""
    digest = hashlib.sha256()
    for name, tensor in sorted(encoder.state_dict().items()):
        digest.update(name.encode() + tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def load_transitions(config: Config, what: str, task: str, stage: str) -> dict[str, Tensor]:
    """Reads the recorded transitions of one task.

    Args:
        config: Names the project folder and the reward version.
        what: Source of the transitions: ``experts`` or ``online``.
        task: Name of the task.
        stage: Stage that records them; the error message contains its command.

    Returns:
        Name -> tensor (N, ...) of N transitions: ``obs`` and ``next_obs`` (N, 39), ``action`` (N, 4), ``reward`` (N,),
        and ``start`` (N,) bool, True for the first transition of a trajectory. ``mu`` and ``log_std`` (N, 4) are the
        mean and the log standard deviation of the teacher's policy at ``obs``; the teacher is an expert or a scripted
        policy. ``q_target`` (N,) is the teacher's value at ``next_obs``, nan for a scripted policy, and ``gamma`` (N,)
        is the discount of this value.

    Raises:
        MissingStage: The transitions do not exist.
        ConfigError: The transitions are of another task or reward version.
    """
    folder = stage_folder(config, what, task) / "data"
    command = stage_command(config, stage, task)
    if not (folder / "manifest.json").exists():
        raise MissingStage(f"{folder} has no data yet. Write {command} first.")
    facts: dict[str, Any] = read_manifest(folder)["facts"]
    wanted = {"task": task, "reward_version": config.reward_version}
    other = [f"{name} {facts.get(name)}, wanted {value}" for name, value in wanted.items() if facts.get(name) != value]
    if other:
        raise ConfigError(
            f"{folder} has transitions of other settings ({'; '.join(other)}). Write {command} to record them again."
        )
    rows = read_shards(folder)
    return {**rows, "gamma": torch.full((len(rows["start"]),), float(facts["gamma"]))}
