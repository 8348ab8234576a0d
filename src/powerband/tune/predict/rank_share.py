"""Rank share: derives the configuration of a single-rank run that does the work of one of several ranks."""

from __future__ import annotations

import dataclasses
from typing import Any

from powerband.core.config.sizes import per_rank
from powerband.core.errors import ConfigError
from powerband.core.machine.device import device_names, threads_per_rank
from powerband.core.recipe import Recipe
from powerband.tune.knobs import Knobs


def single_rank_config(recipe: Recipe, config: Any, ranks: int) -> Any:
    """Returns the configuration of a run with one rank on this machine that does the work of one of `ranks` ranks.

    Environments, batch and replay buffer are divided by `ranks`. The updates per collected transition are multiplied
    by `ranks`, because every rank takes part in every update. The rank uses its share of the threads.

    Args:
        recipe: Recipe of the configuration.
        config: Finalized configuration of the run.
        ranks: Number of ranks that share the work.

    Raises:
        ConfigError: A size does not divide by the number of ranks.
    """
    recipe.check_sizes(config, ranks)
    threads = threads_per_rank(config.run.threads, ranks)
    device = device_names(dataclasses.replace(config.run, nproc=1))[0]
    gpus = "none" if device == "cpu" else device.removeprefix("cuda:")
    single = {"nproc": 1, "nnodes": "1", "rdzv_endpoint": "", "gpus": gpus, "threads": threads}
    config = dataclasses.replace(config, run=dataclasses.replace(config.run, **single))
    if ranks == 1:
        return config
    sizes = ["num_envs", "replay_size", "minibatch_rows"]
    sizes += ["global_batch_size"] * (not Knobs(recipe, config).get("batch_size_per_rank"))
    for knob in sizes:
        knobs = Knobs(recipe, config)
        if knob in knobs:
            config = knobs.with_value(knob, per_rank(knob, knobs.get(knob), ranks))
    knobs = Knobs(recipe, config)
    interval, updates = knobs.get("update_interval"), knobs.get("updates_per_interval")
    if interval:  # more updates instead of a shorter interval, which may not divide
        config = knobs.with_value("updates_per_interval", (updates or interval) * ranks)
    _check_minibatches(Knobs(recipe, config), ranks)
    return config


def _check_minibatches(knobs: Knobs, ranks: int) -> None:
    """Checks that the number of mini-batches in `knobs`, the settings of one rank, divides its rollout.

    Raises:
        ConfigError: The number of mini-batches does not divide environments times steps.
    """
    count, steps, envs = (knobs.get(name) for name in ("minibatches", "num_steps", "num_envs"))
    if count and steps and envs and steps * envs % count:
        raise ConfigError(
            f"minibatches={count} does not divide the {steps * envs} rollout rows on each of {ranks} ranks. Write a "
            f"divisor of {steps * envs}."
        )
