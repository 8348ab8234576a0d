"""Stages represent and distill: train the encoder and the collective network on recorded transitions of all tasks."""

from __future__ import annotations

import json
from typing import Any

import torch

from powerband.core.run.run import Run
from powerband.loops.offline import offline
from powerband.recipes.metaworld.algos.distill import DistillationLearner
from powerband.recipes.metaworld.algos.represent import RepresentationLearner
from powerband.recipes.metaworld.config import Config
from powerband.recipes.metaworld.project_folder import load_encoder, save_collective, save_policy, stage_folder
from powerband.recipes.metaworld.stages.linear_probe import probe
from powerband.recipes.metaworld.transitions.dataset import TransitionDataset, make_batch_loader


def represent(config: Config, run: Run) -> dict[str, Any]:
    """Trains the trajectory encoder, then measures how well its codes separate the tasks.

    Returns:
        The accuracies that `linear_probe.probe` returns; empty on other ranks than the first, and if a signal ended the
        run.
    """
    recorded = TransitionDataset(config)
    train, held_out = recorded.split()
    learner = RepresentationLearner(config.represent, run.context)
    length = config.represent.net.length
    loader, line = make_batch_loader(config, run, recorded, train, lambda rows, data: data.trajectories(rows, length))
    run.describe({"data": line})
    offline(run, learner, loader, config.offline)
    if run.received_signal or not run.ranks.leads:
        return {}
    folder = stage_folder(config, "encoder")
    save_policy(folder, config, dict(learner.encoder.state_dict()))
    if not len(held_out):
        run.console.note("codes are not tested, because there is only one recorded trajectory")
        return {}
    figures = probe(config, recorded, train, held_out, learner.encoder, folder)
    (folder / "probe.json").write_text(json.dumps(figures, indent=2))
    return figures


def distill(config: Config, run: Run) -> dict[str, Any]:
    """Trains the collective network, one policy and critics for all tasks.

    The network learns the policies of all experts first, then their values.

    Returns:
        An empty dict.
    """
    encoder = load_encoder(config, run.device)
    recorded = TransitionDataset(config)
    run.console.note(f"encoding the {recorded.rows:,} recorded rows with the encoder of the stage represent")
    recorded.encode(encoder, run.device)
    learner = DistillationLearner(config.distill, encoder.config.code, run.context)
    valued = int(torch.isfinite(recorded.fields["q_target"]).sum())
    if valued < recorded.rows:
        share = f"{valued:,} of {recorded.rows:,} rows" if valued else "none of the rows"
        run.console.note(f"The critics learn from {share}, because a scripted teacher provides no values.")
    rows = torch.arange(recorded.rows)
    loader, line = make_batch_loader(config, run, recorded, rows, lambda index, data: data.labels(index))
    run.describe({"data": line})
    offline(run, learner, loader, config.offline)
    if run.ranks.leads and not run.received_signal:
        save_collective(config, learner.net, encoder)
    return {}
