"""The project folder of metaworld: what each stage leaves there, and where the next ones find it.

``experts/<task>/`` policy/ and data/; ``online/<task>/`` data/; ``encoder/`` policy/, probe.json, tasks.png;
``collective/`` policy/; ``students/<task>/``; ``evaluation.json``. Policies are safetensors with the configuration
beside them; data are shards (`data.shards`).
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from powerband.algos.sac import SAC
from powerband.core.checkpoint import export_policy
from powerband.core.config import ConfigError, from_json, to_json
from powerband.core.precision import Precision
from powerband.data.shards import manifest_of, read_shards
from powerband.nets.collective import Collective
from powerband.nets.trajectory import TrajectoryEncoder
from powerband.recipes.metaworld import Config, networks

REWARD_SCALE = 0.1
"""The encoder sees rewards of 0 to 10 as 0 to 1."""


class MissingStage(ConfigError):
    """Nothing is there of a stage that this one needs; the message has the command that makes it."""


def folder_of(config: Config, what: str, task: str = "") -> Path:
    """Where a stage leaves its files."""
    return Path(config.project) / what / task


def save_policy(folder: Path, config: Config, tensors: dict[str, Tensor]) -> None:
    """Writes ``policy/``; whoever reads it finds whole files."""
    export_policy(folder, json.loads(to_json(config)), tensors)


def load_policy(folder: Path, command: str) -> tuple[Config, dict[str, Tensor]]:
    """Configuration and weights of a policy.

    Raises:
        MissingStage: There is none.
    """
    from safetensors.torch import load_file

    path = folder / "policy" / "model.safetensors"
    if not path.exists():
        raise MissingStage(f"{folder} has no policy yet. Write {command} first.")
    text = (folder / "policy" / "config.json").read_text(encoding="utf-8")
    return from_json(Config, text, str(folder / "policy" / "config.json")), load_file(path)


def command(config: Config, stage: str, task: str = "") -> str:
    """What a user writes to run a stage of this project."""
    own = f" project={config.project}" if config.project != Config().project else ""
    return f"powerband train metaworld {stage}" + (f" task={task}" if task else "") + own


def expert_of(config: Config, task: str, device: Any = "cpu") -> SAC:
    """The trained expert of a task.

    Raises:
        MissingStage: It was not trained.
    """
    own, tensors = load_policy(folder_of(config, "experts", task), command(config, "expert", task))
    plain = replace(own, sac=replace(own.sac, compile=False))
    sac, _, _ = networks(plain, device, Precision("fp32", device))
    load_sac(sac, tensors)
    return sac


def sac_tensors(sac: SAC) -> dict[str, Tensor]:
    """All networks of an agent by their dotted names."""
    parts = ("actor", "critic", "target_critic", "temperature")
    named = {f"{part}.{name}": t for part in parts for name, t in getattr(sac, part).state_dict().items()}
    return {**named, "centre": sac.centre, "scale": sac.scale}


def load_sac(sac: SAC, tensors: dict[str, Tensor]) -> None:
    """Takes over what `sac_tensors` gave."""
    for part in ("actor", "critic", "target_critic", "temperature"):
        prefix = f"{part}."
        getattr(sac, part).load_state_dict(
            {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
        )


def encoder_of(config: Config, device: Any = "cpu") -> TrajectoryEncoder:
    """The trained trajectory encoder.

    Raises:
        MissingStage: It was not trained.
    """
    own, tensors = load_policy(folder_of(config, "encoder"), command(config, "represent"))
    encoder = TrajectoryEncoder(replace(own.represent.net, gradient_checkpointing=False)).to(device)
    encoder.load_state_dict(tensors)
    return encoder.eval().requires_grad_(False)


def collective_of(config: Config, device: Any = "cpu") -> Collective:
    """The trained collective network.

    Raises:
        MissingStage: It was not trained.
    """
    own, tensors = load_policy(folder_of(config, "collective"), command(config, "distill"))
    net = Collective(own.represent.net.code, own.distill.hidden).to(device)
    net.load_state_dict(tensors)
    return net.eval()


def data_of(config: Config, what: str, task: str, stage: str) -> dict[str, Tensor]:
    """Recorded rows of one task, with the discount of their values as ``gamma`` (rows,).

    Raises:
        MissingStage: There are none.
        ConfigError: They are of another task or reward version.
    """
    folder = folder_of(config, what, task) / "data"
    if not (folder / "manifest.json").exists():
        raise MissingStage(f"{folder} has no data yet. Write {command(config, stage, task)} first.")
    facts = manifest_of(folder)["facts"]
    wanted = {"task": task, "reward_version": config.reward_version}
    other = [f"{name} {facts.get(name)}, wanted {value}" for name, value in wanted.items() if facts.get(name) != value]
    if other:
        raise ConfigError(f"{folder} holds other data ({'; '.join(other)}). Write {command(config, stage, task)}.")
    rows = read_shards(folder)
    return {**rows, "gamma": torch.full((len(rows["start"]),), float(facts["gamma"]))}
