"""RunningNorm: normalisation by the running mean and variance of observations, part of the state of the policy."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from powerband.core.errors import ConfigError


class RunningNorm(nn.Module):
    """Normalises features by the mean and standard deviation of all rows passed to `update_statistics`.

    Source: Chan, Golub and LeVeque 1979, merging of moments.

    Args:
        width: Number of features.
        clip: Largest absolute value of a normalised feature.
    """

    mean: Tensor
    var: Tensor
    count: Tensor

    def __init__(self, width: int, clip: float = 10.0):
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("var", torch.ones(width))
        # float32 would stay at 2^24 rows. A float32 count of an old checkpoint is converted when it is loaded.
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.clip = clip

    @torch.no_grad()
    def update_statistics(
        self, x: Tensor, average: Callable[[Tensor], object] | None = None, world_size: int = 1
    ) -> None:
        """Adds rows to the statistics.

        Args:
            x: Rows (..., width), equally many on each rank (process of the training).
            average: Function that replaces a tensor in place by its mean over the ranks; None with one rank.
            world_size: Number of ranks.
        """
        rows = x.reshape(-1, x.shape[-1]).float()
        mean = rows.mean(0)
        if average is not None:
            average(mean)
        var = (rows - mean).square().mean(0)  # E[x^2] - E[x]^2 would cancel in float32 if the mean is large
        if average is not None:
            average(var)
        added = float(rows.shape[0] * world_size)
        before, total = self.count.float(), (self.count + added).float()
        shift = mean - self.mean
        self.var.copy_((self.var * before + var * added + shift * shift * (before * added / total)) / total)
        self.mean.add_(shift * (added / total))
        self.count.add_(added)

    def forward(self, x: Tensor) -> Tensor:
        """Normalises features (..., width) and clips them to -clip..clip."""
        return ((x - self.mean) * torch.rsqrt(self.var + 1e-8)).clamp(-self.clip, self.clip)


def vector_norm(section: str, inputs: int, encoder: nn.Module | None) -> RunningNorm:
    """Creates the normalisation of observations without images and categories for the algorithm `section`.

    Args:
        section: Section of the settings, for the error message.
        inputs: Number of features.
        encoder: Encoder of the observations; None if their entries are joined.

    Raises:
        ConfigError: There is an encoder, whose features change with its parameters.
    """
    if encoder is not None:
        raise ConfigError(
            f"{section}.normalize_obs=true needs observations of vectors, but these contain images or categories, "
            f"which their encoder scales. Write {section}.normalize_obs=false."
        )
    return RunningNorm(inputs)
