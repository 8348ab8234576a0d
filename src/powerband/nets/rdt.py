"""RDT: a transformer over the tokens of an action chunk that looks in turn at an instruction and at pictures.

Names and shapes of the weights are those of the published code (thu-ml/RoboticsDiffusionTransformer), so that its
checkpoints load by name. Source: Liu et al. 2024, arXiv 2410.07864, section 4.
Suffixes: R rows, N tokens (diffusion step, control frequency, state, T actions), L tokens looked at, D width, H heads,
V numbers of a state or an action.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from powerband.nets.attention import attend

EPS = 1e-6
STEP_FEATURES, LONGEST_PERIOD = 256, 10_000
BEFORE_ACTIONS = 3
"""Tokens of the diffusion step, the control frequency and the state."""


@dataclass(frozen=True)
class RDTSize:
    width: int
    """Of a token."""
    depth: int
    """Blocks."""
    heads: int
    """Of each attention."""


SIZES = {
    "rdt-1b": RDTSize(2048, 28, 32),
    "rdt-170m": RDTSize(1024, 14, 32),
    "rdt-tiny": RDTSize(192, 6, 6),
}


@dataclass(frozen=True)
class RDTShape:
    """What surrounds the transformer; the defaults are the published checkpoints'."""

    horizon: int = 64
    """Actions of a chunk, T."""
    vector: int = 128
    """Numbers of a state or an action, V."""
    language_tokens: int = 1024
    """Tokens of an instruction at most."""
    frames: int = 2
    """Pictures of one camera that are seen together."""
    cameras: int = 3
    """Cameras at most."""
    patches: int = 729
    """Tokens of one picture."""
    language_width: int = 4096
    """Of what the language encoder gives for a token."""
    picture_width: int = 1152
    """Of what the vision encoder gives for a patch."""


class Norm(nn.Module):
    """RMSNorm as the published weights were trained with: divides by the deviation of a token, not by its root mean
    square, and does not centre it. Both are the same where a token's mean is 0.

    Source: Zhang and Sennrich 2019, as timm 1.0.3 computes it (huggingface/pytorch-image-models, issue 2380).
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """(..., width) -> the same, in the same type; computed in float32 at least."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        away = wide - wide.mean(-1, keepdim=True)  # Tensor.var takes four times as long on a CPU
        variance = away.square().sum(-1, keepdim=True) / (x.shape[-1] - 1)
        return (wide * torch.rsqrt(variance + EPS) * self.weight).to(x.dtype)


class ScalarEmbedding(nn.Module):
    """A number, such as the step of diffusion, as a token. Source: Nichol and Dhariwal 2021, with cosines first."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(STEP_FEATURES, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, number: Tensor) -> Tensor:
        """(R,) -> (R, 1, D)."""
        half = STEP_FEATURES // 2
        rate = torch.exp(torch.arange(half, device=number.device) * (-math.log(LONGEST_PERIOD) / half))
        angle = number.float().unsqueeze(1) * rate
        features = torch.cat([angle.cos(), angle.sin()], 1).to(self.mlp[0].weight.dtype)
        return self.mlp(features).unsqueeze(1)


class SelfAttention(nn.Module):
    """Every token looks at every token; queries and keys are normalised. Source: Henry et al. 2020 (QK-norm)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.q_norm, self.k_norm = Norm(width // heads), Norm(width // heads)

    def forward(self, x_RND: Tensor) -> Tensor:
        q, k, v = self.qkv(x_RND).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        found = attend(self.q_norm(q), self.k_norm(k), v)
        return self.proj(found.transpose(1, 2).flatten(2))


class CrossAttention(nn.Module):
    """Every token looks at the tokens of an instruction or of pictures; queries and keys are normalised."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.kv, self.proj = nn.Linear(width, width), nn.Linear(width, 2 * width), nn.Linear(width, width)
        self.q_norm, self.k_norm = Norm(width // heads), Norm(width // heads)

    def forward(self, x_RND: Tensor, seen_RLD: Tensor, there_RL: Tensor | None) -> Tensor:
        q = self.q(x_RND).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = self.kv(seen_RLD).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mask = None if there_RL is None else there_RL[:, None, None]
        found = attend(self.q_norm(q), self.k_norm(k), v, mask)
        return self.proj(found.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """Two linear layers; inside it is as wide as outside."""

    def __init__(self, width: int, outputs: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, width), nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x), approximate="tanh"))


class Block(nn.Module):
    """Self-attention, cross-attention, feed-forward: each normalised before and added."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2, self.norm3 = Norm(width), Norm(width), Norm(width)
        self.attn, self.cross_attn = SelfAttention(width, heads), CrossAttention(width, heads)
        self.ffn = FeedForward(width, width)

    def forward(self, x_RND: Tensor, seen_RLD: Tensor, there_RL: Tensor | None) -> Tensor:
        x_RND = x_RND + self.attn(self.norm1(x_RND))
        x_RND = x_RND + self.cross_attn(self.norm2(x_RND), seen_RLD, there_RL)
        return x_RND + self.ffn(self.norm3(x_RND))


class FinalLayer(nn.Module):
    """Reads numbers from tokens; zero at first."""

    def __init__(self, width: int, outputs: int) -> None:
        super().__init__()
        self.norm_final, self.ffn_final = Norm(width), FeedForward(width, outputs)

    def forward(self, x_RND: Tensor) -> Tensor:
        return self.ffn_final(self.norm_final(x_RND))


class RDT(nn.Module):
    """What a noisy chunk is said to be, given its state, an instruction and pictures.

    Attributes:
        checkpoint_activations: Compute the activations of blocks again in the backward pass instead of keeping them.
    """

    def __init__(self, size: RDTSize, shape: RDTShape, checkpoint_activations: bool = False) -> None:
        """
        Args:
            size: Width and depth.
            shape: Tokens and numbers around them.
            checkpoint_activations: See the attribute.

        Raises:
            ValueError: A width that the heads, or four parts of a position, do not divide.
        """
        super().__init__()
        width = size.width
        if width % size.heads or width % 4:
            raise ValueError(f"width={width} with heads={size.heads}: give a multiple of {math.lcm(4, size.heads)}.")
        self.shape, self.checkpoint_activations = shape, checkpoint_activations
        self.t_embedder, self.freq_embedder = ScalarEmbedding(width), ScalarEmbedding(width)
        self.x_pos_embed = nn.Parameter(token_places(shape.horizon, width))
        # Whatever the encoders say of places, they say in their tokens: at first all tokens of a kind have one place.
        language = sincos(torch.zeros(1), width).expand(shape.language_tokens, -1)
        self.lang_cond_pos_embed = nn.Parameter(language.unsqueeze(0).clone())
        self.img_cond_pos_embed = nn.Parameter(picture_places(shape, width))
        self.blocks = nn.ModuleList(Block(width, size.heads) for _ in range(size.depth))
        self.final_layer = FinalLayer(width, shape.vector)
        self._begin()

    def _begin(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
        for embedder in (self.t_embedder, self.freq_embedder):
            for layer in (embedder.mlp[0], embedder.mlp[2]):
                nn.init.normal_(layer.weight, std=0.02)
        nn.init.zeros_(self.final_layer.ffn_final.fc2.weight)

    def places(self, cameras: int) -> Tensor:
        """(1, F * cameras * P, D): places of the patches of the first `cameras` cameras: by frame, camera and patch."""
        shape = self.shape
        known = self.img_cond_pos_embed.view(1, shape.frames, shape.cameras, shape.patches, -1)
        return known[:, :, :cameras].flatten(1, 3)

    def forward(
        self,
        x_RND: Tensor,
        hz: Tensor,
        step: Tensor,
        language_RLD: Tensor,
        pictures_RLD: Tensor,
        language_there: Tensor | None = None,
        pictures_there: Tensor | None = None,
    ) -> Tensor:
        """
        Args:
            x_RND: Tokens of the state and of the T noisy actions, (R, 1 + T, D).
            hz: (R,) control frequency; 0 where it is not known.
            step: (R,) steps of diffusion.
            language_RLD: Tokens of the instruction, at most ``shape.language_tokens``.
            pictures_RLD: Tokens of the pictures with their `places`.
            language_there, pictures_there: (R, L) bool: which of them may be looked at, one at least in each row; None
                is all.

        Returns:
            (R, T, V).
        """
        x_RND = torch.cat([self.t_embedder(step), self.freq_embedder(hz), x_RND], 1) + self.x_pos_embed
        language_RLD = language_RLD + self.lang_cond_pos_embed[:, : language_RLD.shape[1]]
        looked_at = ((language_RLD, language_there), (pictures_RLD, pictures_there))
        for number, block in enumerate(self.blocks):
            if self.checkpoint_activations and torch.is_grad_enabled():
                x_RND = checkpoint(block, x_RND, *looked_at[number % 2], use_reentrant=False)
            else:
                x_RND = block(x_RND, *looked_at[number % 2])
        return self.final_layer(x_RND[:, BEFORE_ACTIONS:])


def sincos(position: Tensor, width: int) -> Tensor:
    """(n,) -> (n, width): sines, then cosines. Source: Vaswani et al. 2017, section 3.5."""
    half = width // 2
    rate = LONGEST_PERIOD ** -(torch.arange(half, dtype=torch.float64) / half)
    angle = position.double().unsqueeze(1) * rate
    return torch.cat([angle.sin(), angle.cos()], 1).float()


def token_places(horizon: int, width: int) -> Tensor:
    """(1, 3 + T, D): half of a place says which kind of token it is, half where in its kind."""
    kind = torch.arange(BEFORE_ACTIONS + horizon).clamp(max=BEFORE_ACTIONS)
    where = (torch.arange(BEFORE_ACTIONS + horizon) - BEFORE_ACTIONS).clamp(min=0)
    return torch.cat([sincos(kind, width // 2), sincos(where, width // 2)], 1).unsqueeze(0)


def picture_places(shape: RDTShape, width: int) -> Tensor:
    """(1, F * C * P, D): frame and camera, each where there are several; patches of a picture have one place."""
    places = torch.zeros(shape.frames, shape.cameras, shape.patches, width)
    several = [axis for axis, count in enumerate((shape.frames, shape.cameras)) if count > 1]
    part = width // max(1, len(several)) // 2 * 2
    for number, axis in enumerate(several):
        known = sincos(torch.arange(places.shape[axis]), part)
        places[..., number * part : (number + 1) * part] = known[:, None, None] if axis == 0 else known[None, :, None]
    return places.view(1, -1, width)
