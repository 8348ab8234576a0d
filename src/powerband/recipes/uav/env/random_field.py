"""Random field: draws hidden maps that are Gaussian random fields."""

from __future__ import annotations

import numpy as np

LOW, HIGH = 0.3, 0.6  # share of the map that the region of interest covers


def random_field(cells: int, seed: int, mission: int, episode: int) -> np.ndarray:
    """Draws a hidden binary map: a Gaussian random field with the power spectrum k^-5, cut at a threshold.

    The field is drawn on the CPU, so that all devices have the same maps.

    Args:
        cells: Cells along each side.
        seed: Seed of the environment.
        mission: Index of the mission among the missions of all ranks.
        episode: How many times this mission has started since the seed was set.

    Returns:
        (cells, cells) uint8: 1 in the region of interest, which covers 30 to 60 % of the map.
    """
    generator = np.random.Generator(np.random.Philox(key=[seed % 2**64, (mission << 24) + episode]))
    share = generator.uniform(LOW, HIGH)
    spectrum = np.fft.rfft2(generator.standard_normal((cells, cells), dtype=np.float32))
    k = np.hypot(np.fft.fftfreq(cells)[:, None], np.fft.rfftfreq(cells)[None, :])
    k[0, 0] = np.inf
    field = np.fft.irfft2(spectrum * k**-2.5, s=(cells, cells))
    return (field > np.quantile(field, 1 - share)).astype(np.uint8)
