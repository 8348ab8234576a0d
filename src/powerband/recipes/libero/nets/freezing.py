"""Freezes weights of a policy by patterns of their names."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from torch import nn

from powerband.core.errors import ConfigError


def freeze_weights(policy: nn.Module, patterns: Sequence[str]) -> None:
    """Excludes from training all weights whose name matches a pattern, such as ``vision.*``.

    Raises:
        ConfigError: A pattern matches no weight, or no weight is left to train.
    """
    weights = dict(policy.named_parameters())
    for pattern in patterns:
        matched = [name for name in weights if fnmatchcase(name, pattern)]
        if not matched:
            parts = sorted({name.split(".")[0] for name in weights})
            raise ConfigError(
                f"rdt.freeze={pattern} matches no weight. The weights are parts of {', '.join(parts)}. Write "
                f"rdt.freeze='{parts[0]}.*', for example."
            )
        for name in matched:
            weights[name].requires_grad_(False)
    if not any(weight.requires_grad for weight in weights.values()):
        raise ConfigError(f"rdt.freeze={','.join(patterns)} leaves no weight to train. Write fewer patterns.")
