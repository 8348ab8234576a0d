"""Diffusion of action chunks: the forward process of training and the samplers, both from diffusers.

Source: Ho et al. 2020, equation 4; Nichol and Dhariwal 2021, equation 17 (squared cosine).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor

from powerband.core.errors import ConfigError

CLIP = 1.0
"""DDIM clips its samples to this absolute value: codes of actions are in -1..1."""


class DiffusionConfig(Protocol):
    """Settings of the diffusion process.

    Attributes:
        noise_steps: Diffusion steps in training.
        sample_steps: Steps of the sampler.
        predict: Prediction of the network, "epsilon" (the noise) or "sample" (the clean chunk).
        sampler: "ddim" or "dpm" (DPM-Solver++).
    """

    @property
    def noise_steps(self) -> int: ...
    @property
    def sample_steps(self) -> int: ...
    @property
    def predict(self) -> str: ...
    @property
    def sampler(self) -> str: ...


def noise_schedule(config: DiffusionConfig) -> Any:
    """Creates the forward process of training, a scheduler of diffusers.

    Raises:
        ConfigError: diffusers is not installed.
    """
    try:
        from diffusers import DDPMScheduler
    except ImportError:
        raise ConfigError(
            "Diffusion of action chunks needs the package diffusers. Install it: pip install 'powerband[diffusion]'"
        ) from None
    return DDPMScheduler(config.noise_steps, beta_schedule="squaredcos_cap_v2", prediction_type=config.predict)


def noise_sampler(config: DiffusionConfig) -> Any:
    """Creates a sampler for one call of `sample_chunks`; some samplers store a history and cannot be reused."""
    from diffusers import DDIMScheduler, DPMSolverMultistepScheduler

    shared = {"beta_schedule": "squaredcos_cap_v2", "prediction_type": config.predict}
    if config.sampler == "ddim":
        return DDIMScheduler(config.noise_steps, clip_sample=True, clip_sample_range=CLIP, **shared)
    return DPMSolverMultistepScheduler(config.noise_steps, algorithm_type="dpmsolver++", **shared)


def sample_chunks(config: DiffusionConfig, chunk: Tensor, denoise: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Samples chunks by removing noise step by step. Shapes: R rows, T actions of a chunk, V numbers per action.

    Args:
        config: Settings of the diffusion process.
        chunk: Initial chunks (R, T, V), standard normal noise.
        denoise: Network as a function (chunks (R, T, V), steps (R,)) -> prediction (R, T, V).

    Returns:
        Chunks (R, T, V).
    """
    sampler = noise_sampler(config)
    sampler.set_timesteps(config.sample_steps, device=chunk.device)
    for step in sampler.timesteps:
        chunk = sampler.step(denoise(chunk, step.expand(len(chunk))), step, chunk).prev_sample
    return chunk
