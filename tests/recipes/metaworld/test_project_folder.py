"""The project folder of metaworld: the encoder and the collective network in it belong together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from powerband.core.errors import ConfigError
from powerband.core.rank_context import RankContext
from powerband.recipes.metaworld.config import Config
from powerband.recipes.metaworld.nets.collective import CollectiveActorCritic
from powerband.recipes.metaworld.nets.trajectory import TrajectoryEncoder
from powerband.recipes.metaworld.policies import collective_policy
from powerband.recipes.metaworld.project_folder import (
    load_encoder_and_collective,
    save_collective,
    save_policy,
    stage_folder,
)
from powerband.recipes.metaworld.settings import DistillConfig, RepresentConfig, TrajectoryEncoderConfig
from powerband.recipes.metaworld.stages import offline

NET = TrajectoryEncoderConfig(length=5, width=16, layers=1, heads=4, feedforward=32, code=3)


def save_encoder(config: Config, seed: int) -> TrajectoryEncoder:
    """Saves an encoder with random weights, as the stage represent does."""
    torch.manual_seed(seed)
    encoder = TrajectoryEncoder(NET)
    represent = replace(config.represent, net=NET)
    save_policy(stage_folder(config, "encoder"), replace(config, represent=represent), dict(encoder.state_dict()))
    return encoder


def test_a_collective_network_of_another_encoder_is_refused(tmp_path: Path) -> None:
    config = Config(project=str(tmp_path), represent=RepresentConfig(net=NET), distill=DistillConfig(hidden=(8,)))
    encoder = save_encoder(config, seed=0)
    net = CollectiveActorCritic(NET.code, (8,))
    save_collective(config, net, encoder)
    loaded = load_encoder_and_collective(config)[1]
    assert all(torch.equal(value, net.state_dict()[name]) for name, value in loaded.state_dict().items())
    save_encoder(config, seed=1)
    for load in (load_encoder_and_collective, collective_policy):
        with pytest.raises(ConfigError, match=f"powerband train metaworld distill project={tmp_path} again"):
            load(config)
    (tmp_path / "collective" / "encoder.json").unlink()
    load_encoder_and_collective(config)  # an earlier version saved no hash


def test_distill_saves_the_sizes_of_the_encoder_that_it_loaded(tmp_path: Path, monkeypatch: Any) -> None:
    """The command of distill names no sizes of the encoder. The recorded rows and the loop are left out."""
    config = Config(project=str(tmp_path), distill=DistillConfig(hidden=(8,)))
    assert config.represent.net.code != NET.code
    save_encoder(config, seed=0)
    recorded = SimpleNamespace(rows=1, encode=lambda *_: None, fields={"q_target": torch.zeros(1)})
    monkeypatch.setattr(offline, "TransitionDataset", lambda config: recorded)
    monkeypatch.setattr(offline, "make_batch_loader", lambda *_: (None, ""))
    monkeypatch.setattr(offline, "offline", lambda *_: None)
    run: Any = SimpleNamespace(context=RankContext.single(), device="cpu", received_signal="", describe=lambda _: None)
    run.console, run.ranks = SimpleNamespace(note=lambda _: None), SimpleNamespace(leads=True)
    offline.distill(config, run)
    encoder, net = load_encoder_and_collective(config)
    assert net.policy(encoder.encode(one_trajectory()), torch.zeros(1, 21))[0].shape == (1, 4)


def one_trajectory() -> dict[str, torch.Tensor]:
    parts = {"state": torch.zeros(1, 5, 21), "action": torch.zeros(1, 4, 4), "reward": torch.zeros(1, 4, 1)}
    return {**parts, "length": torch.tensor([5])}
