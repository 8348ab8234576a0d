"""Checks the options of an evaluation of libero against those of the run. This file does not import torch."""

from __future__ import annotations

import os
import re
from dataclasses import replace

from powerband.core.errors import ConfigError
from powerband.recipes.libero.config import Config
from powerband.recipes.libero.env.tasks import find_benchmark
from powerband.recipes.libero.settings import Evaluation

HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
"""Name of a model on the Hugging Face hub, such as google/t5-v1_1-xxl."""


def finalize_evaluation(config: Config, options: Evaluation) -> tuple[Evaluation, list[str]]:
    """Replaces encoders that are named by the hub by those of the run.

    Args:
        config: Configuration of the run.
        options: Options as the user wrote them.

    Returns:
        The options, and messages for the user about them and about `max_steps` and `num_tasks`.

    Raises:
        ConfigError: `sample_steps` is set, and the policy of the run has no sampler; or there are fewer `seeds` than
            `episodes`.
    """
    if options.sample_steps and config.rdt.objective == "regression":
        raise ConfigError(
            f"sample_steps={options.sample_steps} has no effect: this run has rdt.objective=regression, which predicts "
            f"a chunk in one step. Leave sample_steps out."
        )
    if options.seeds and options.episodes > len(options.seeds):
        raise ConfigError(
            f"episodes={options.episodes} is more than the {len(options.seeds)} seeds, so episodes would be repeated. "
            f"Leave episodes out, which plays each seed once."
        )
    messages: list[str] = []
    for name in ("text_encoder", "vision_encoder"):
        value, own = getattr(options, name), getattr(config, name)
        if HUB_NAME.fullmatch(value) and not os.path.exists(value):
            options = replace(options, **{name: ""})  # type: ignore[arg-type]
            messages.append(
                f"{name}={value}: the folder does not exist, and nothing is downloaded. The run's encoder applies: "
                f"{own or 'the built-in one'}."
            )
    if options.max_steps:
        horizon = options.exec_horizon or config.rdt.exec_horizon
        messages.append(
            f"max_steps={options.max_steps} counts actions, in {-(-options.max_steps // horizon)} inferences of "
            f"{horizon} actions. In the guide's code it counts inferences: {options.max_steps} of them are "
            f"{options.max_steps * horizon:,} actions, max_steps={options.max_steps * horizon}."
        )
    if not options.tasks and config.tasks and find_benchmark(options.benchmark or config.benchmark) == config.benchmark:
        if options.num_tasks > len(config.tasks):
            messages.append(
                f"num_tasks={options.num_tasks}: the run has {len(config.tasks)} task(s), which are all played. Name "
                f"other tasks of {config.benchmark} by their numbers, such as tasks=0,1."
            )
    return options, messages
