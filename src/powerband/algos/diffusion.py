"""Diffusion of action chunks: how noise is added in training and taken away in sampling; both are diffusers'.

Source: Ho et al. 2020, equation 4; Nichol and Dhariwal 2021, equation 17 (squared cosine).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor

from powerband.core.flags import ConfigError

CLIP = 1.0
"""Samples of DDIM are kept within this: codes of actions that lie in -1..1."""


class Diffusion(Protocol):
    """What a configuration says of it."""

    @property
    def sample_steps(self) -> int: ...

    @property
    def noise_steps(self) -> int: ...
    @property
    def predict(self) -> str: ...
    @property
    def sampler(self) -> str: ...


def noise_schedule(config: Diffusion) -> Any:
    """The forward process of training.

    Raises:
        ConfigError: diffusers is not installed.
    """
    try:
        from diffusers import DDPMScheduler
    except ImportError:
        raise ConfigError("Diffusion of chunks needs diffusers: pip install 'powerband[diffusion]'") from None
    return DDPMScheduler(config.noise_steps, beta_schedule="squaredcos_cap_v2", prediction_type=config.predict)


def noise_sampler(config: Diffusion) -> Any:
    """A new sampler for one call: some remember their steps."""
    from diffusers import DDIMScheduler, DPMSolverMultistepScheduler

    same = {"beta_schedule": "squaredcos_cap_v2", "prediction_type": config.predict}
    if config.sampler == "ddim":
        return DDIMScheduler(config.noise_steps, clip_sample=True, clip_sample_range=CLIP, **same)
    return DPMSolverMultistepScheduler(config.noise_steps, algorithm_type="dpmsolver++", **same)


def drawn(config: Diffusion, chunk: Tensor, says: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Takes the noise of chunks away, step by step.

    Args:
        config: Which sampler, and its steps.
        chunk: (R, T, V) noise.
        says: (chunks, steps (R,)) -> what the network says of them.

    Returns:
        (R, T, V) chunks.
    """
    sampler = noise_sampler(config)
    sampler.set_timesteps(config.sample_steps, device=chunk.device)
    for step in sampler.timesteps:
        chunk = sampler.step(says(chunk, step.expand(len(chunk))), step, chunk).prev_sample
    return chunk
