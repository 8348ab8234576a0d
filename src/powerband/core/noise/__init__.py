"""Noise: counter-based random streams, in PyTorch and compiled."""

from powerband.core.noise.noise import Noise, NoiseSource

__all__ = ["Noise", "NoiseSource"]
