"""Values: the values at which an option is tried. One of them is extreme."""

from __future__ import annotations

import re
from typing import Any

from powerband.attach.audit.options import ScriptOption

UNIT = re.compile(
    r"gamma|tau|momentum|beta|dropout|prob|ratio|fraction|smooth|lambda|lam$|eps(ilon)?(_|$)|polyak|quantile|alpha|decay_rate|lr_decay|decay_factor"
)
"""Names of values between 0 and 1."""
INTERVAL = re.compile(r"interval|every|freq|period|cadence|delay")
TOTAL = re.compile(
    r"total|max_steps|num_steps|n_steps|steps$|epochs?$|iterations?$|updates$|episodes$|timesteps$|frames$"
)
LATER = re.compile(
    r"interval|every|freq|total|max_|steps|epoch|iter|warm|anneal|schedule|decay_|patience|save|eval|checkpoint|final|"
    r"end|start|milestone|resume"
)
"""Names of options that may act after the window of a short run."""
ALTERNATIVES = {
    "relu": ["tanh"], "tanh": ["relu"], "gelu": ["relu"], "silu": ["relu"], "adam": ["sgd"], "adamw": ["sgd"],
    "sgd": ["adam"], "float32": ["bfloat16"], "fp32": ["bf16"], "bf16": ["fp32"], "no": ["bf16"],
    "mse": ["l1"], "l1": ["mse"], "linear": ["cosine", "constant"], "cosine": ["linear"], "constant": ["linear"],
    "cpu": [], "auto": [],
}  # fmt: skip
"""Text value -> texts that often replace it."""
MOST_VALUES = 4


def values_to_try(option: ScriptOption, alternatives: list[Any], updates: int) -> list[Any]:
    """Returns up to `MOST_VALUES` other values of an option, the one most likely to act first.

    Args:
        option: The option.
        alternatives: Values that the source code compares the option with.
        updates: Optimiser steps of the unchanged run; totals below it act within the window.
    """
    value = option.value
    if option.opaque:
        return []
    if isinstance(value, bool) or option.type == "bool":
        return [not value]
    choices = option.choices
    if isinstance(value, list):  # the choices are those of one item
        choices = [choice if isinstance(choice, list) else [choice] for choice in choices]
    others = [choice for choice in [*choices, *alternatives] if choice != value]
    if others:
        return others[:MOST_VALUES]
    if isinstance(value, int):
        tried: list[Any] = _integers(option.last_name, value, updates)
    elif isinstance(value, float):
        tried = _floats(option.last_name, value)
    elif isinstance(value, str):
        tried = _texts(value)
    elif isinstance(value, list) and value and all(isinstance(item, int | float) for item in value):
        tried = [[type(item)(item * 2) for item in value], [type(item)(item // 2 or 1) for item in value], value[:1]]
    elif value is None:
        tried = [1, 10] if option.type == "int" else [0.1, 1.0] if option.type == "float" else []
    else:
        tried = []
    return [item for index, item in enumerate(tried) if item != value and item not in tried[:index]][:MOST_VALUES]


def acts_within(option: ScriptOption, tried: list[Any], updates: int) -> bool:
    """Whether an option that may act later was tried at a value that must act within the window."""
    name = option.last_name
    if not LATER.search(name) or isinstance(option.value, bool) or not isinstance(option.value, int | float):
        return not LATER.search(name)
    return any(isinstance(value, int | float) and 0 < value <= max(1, updates // 2) for value in tried)


def _integers(name: str, value: int, updates: int) -> list[int]:
    if "seed" in name:
        return [value + 1, value + 1000]
    if value <= 0:
        return [1, 10, max(2, updates // 4)]
    if INTERVAL.search(name):
        return [1, value * 10, 2, value * 2] if value > 1 else [2, 10]
    if TOTAL.search(name) or LATER.search(name):
        return [max(1, updates // 4), max(1, value // 4), value * 2, 1]
    return [value * 2, max(1, value // 2), value * 10, 1]


def _floats(name: str, value: float) -> list[float]:
    if value == 0:
        return [0.1, 1.0, 1e-3]
    if UNIT.search(name) and 0 < value <= 1:
        return [value / 2, (1 + value) / 2, 0.01, 0.0]
    return [value * 10, value / 10, value * 1000, value / 1000]


def _texts(value: str) -> list[Any]:
    if value.lower() in ALTERNATIVES:
        return list(ALTERNATIVES[value.lower()])
    if re.fullmatch(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+", value):  # YAML 1.1 reads 1e-3 as a text
        return [str(float(value) * factor) for factor in (10, 0.1, 1000, 0.001)]
    return [value + "_x"] if value else ["x"]
