"""Share: what one of several ranks would do, as a run of its own: sizes divided, updates as many as all ranks make."""

from __future__ import annotations

import dataclasses
from typing import Any

from powerband.core.config import ConfigError
from powerband.core.device import device_names, threads_a_rank
from powerband.core.scaling import per_rank
from powerband.tune.knobs import Knobs


def share_of(recipe: Any, config: Any, ranks: int) -> Any:
    """The configuration of one rank of `ranks`, alone on this machine.

    Its environments, batch and replay are a share of those over all ranks, as is the interval between updates: each
    rank takes part in every update. It has the threads that it would have beside the others.

    Args:
        recipe: The recipe's module.
        config: Its whole, settled configuration.
        ranks: Ranks that share the work.

    Raises:
        ConfigError: Sizes that do not divide.
    """
    if hasattr(recipe, "check"):
        recipe.check(config, ranks)
    threads = threads_a_rank(config.run.threads, ranks)
    device = device_names(dataclasses.replace(config.run, nproc=1))[0]
    gpus = "none" if device == "cpu" else device.removeprefix("cuda:")
    alone = {"nproc": 1, "nnodes": "1", "rdzv_endpoint": "", "gpus": gpus, "threads": threads}
    config = dataclasses.replace(config, run=dataclasses.replace(config.run, **alone))
    if ranks == 1:
        return config
    sizes = ["num_envs", "replay_size", "minibatch_rows"]
    sizes += ["global_batch_size"] * (not Knobs(recipe, config).get("batch_size_per_rank"))
    for knob in sizes:
        knobs = Knobs(recipe, config)
        if knob in knobs:
            config = knobs.turned(knob, per_rank(knob, knobs.get(knob), ranks))
    knobs = Knobs(recipe, config)
    interval, updates = knobs.get("update_interval"), knobs.get("updates_per_interval")
    if interval:
        config = knobs.turned("updates_per_interval", (updates or interval) * ranks)
    _check_minibatches(Knobs(recipe, config), ranks)
    return config


def _check_minibatches(knobs: Knobs, ranks: int) -> None:
    """Mini-batches are equal parts of each rank's own rollout."""
    count, steps, envs = (knobs.get(name) for name in ("minibatches", "num_steps", "num_envs"))
    if count and steps and envs and steps * envs % count:
        raise ConfigError(
            f"minibatches={count} do not divide the {steps * envs} samples that each of {ranks} ranks has of a "
            f"rollout. Choose a divisor of {steps * envs}."
        )
