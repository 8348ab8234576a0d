"""Diffusion of action chunks: the forward process of training and the samplers, both from diffusers.

Source: Ho et al. 2020, equation 4; Nichol and Dhariwal 2021, equation 17 (squared cosine).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor

from powerband.core.errors import ConfigError

CLIP = 1.0
"""DDIM clips its samples to this absolute value, because the vectors that represent actions are in -1..1."""


class DiffusionConfig(Protocol):
    """Settings of the diffusion process.

    Attributes:
        noise_steps: Diffusion steps in training, from a clean chunk to pure noise.
        sample_steps: Denoising steps per sampled chunk, one call of the network each.
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
    """Creates the forward process of training, which adds noise to clean action chunks.

    Returns:
        `diffusers.DDPMScheduler` with the squared cosine schedule.

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
    """Creates a sampler, a scheduler of diffusers, for one call of `sample_chunks`.

    Some samplers store a history, so each call needs a new one.
    """
    from diffusers import DDIMScheduler, DPMSolverMultistepScheduler

    shared = {"beta_schedule": "squaredcos_cap_v2", "prediction_type": config.predict}
    if config.sampler == "ddim":
        return DDIMScheduler(config.noise_steps, clip_sample=True, clip_sample_range=CLIP, **shared)
    return DPMSolverMultistepScheduler(config.noise_steps, algorithm_type="dpmsolver++", **shared)


def sample_chunks(config: DiffusionConfig, chunk: Tensor, denoise: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Samples action chunks by removing noise step by step.

    Shapes: R rows, T actions of a chunk, V numbers per action.

    Args:
        config: Settings of the diffusion process.
        chunk: Initial chunks (R, T, V), standard normal noise.
        denoise: Network as a function (noisy chunks (R, T, V), diffusion step of each row (R,)) -> prediction
            (R, T, V) of the noise or of the clean chunk, according to `config.predict`.

    Returns:
        Clean chunks (R, T, V).
    """
    sampler = noise_sampler(config)
    sampler.set_timesteps(config.sample_steps, device=chunk.device)
    for step in sampler.timesteps:
        chunk = sampler.step(denoise(chunk, step.expand(len(chunk))), step, chunk).prev_sample
    return chunk
