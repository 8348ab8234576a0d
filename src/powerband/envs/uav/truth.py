"""Hidden fields that are no half planes: Gaussian random fields."""

from __future__ import annotations

import numpy as np

LOW, HIGH = 0.3, 0.6  # share of the region of interest


def random_field(cells: int, seed: int, mission: int, episode: int) -> np.ndarray:
    """(cells, cells) uint8: a Gaussian random field with P(k) = k^-5, 1 above a threshold that 30 to 60 % exceed.

    Drawn on the CPU whatever the device, so that all devices see the same fields.
    """
    generator = np.random.Generator(np.random.Philox(key=[seed % 2**64, (mission << 24) + episode]))
    share = generator.uniform(LOW, HIGH)
    spectrum = np.fft.rfft2(generator.standard_normal((cells, cells), dtype=np.float32))
    k = np.hypot(np.fft.fftfreq(cells)[:, None], np.fft.rfftfreq(cells)[None, :])
    k[0, 0] = np.inf
    field = np.fft.irfft2(spectrum * k**-2.5, s=(cells, cells))
    return (field > np.quantile(field, 1 - share)).astype(np.uint8)
