"""RDT: a transformer over the tokens of an action chunk that attends to an instruction and to images alternately.

Names and shapes of the weights are those of the published code (thu-ml/RoboticsDiffusionTransformer), so that its
checkpoints load by name. Source: Liu et al. 2024, arXiv 2410.07864, section 4.
Suffixes: R rows, N tokens (diffusion step, control frequency, state, T actions), L tokens of the condition, D width,
H heads, V entries of a state or an action, F frames, C cameras, P patches of an image.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from powerband.core.errors import ConfigError
from powerband.nets.attention import attend

EPS = 1e-6
STEP_FEATURES, LONGEST_PERIOD = 256, 10_000
NUM_PREFIX_TOKENS = 3
"""Tokens before the actions: the diffusion step, the control frequency and the state."""


@dataclass(frozen=True)
class RDTSize:
    """Size of the transformer: width, number of blocks, and heads."""

    width: int
    """Features of a token."""
    depth: int
    """Number of blocks."""
    heads: int
    """Heads of each attention."""


SIZES = {
    "rdt-1b": RDTSize(2048, 28, 32),
    "rdt-170m": RDTSize(1024, 14, 32),
    "rdt-tiny": RDTSize(192, 6, 6),
}


@dataclass(frozen=True)
class RDTShape:
    """Shapes of inputs and outputs; the defaults are those of the published checkpoints."""

    horizon: int = 64
    """Actions of a chunk, T."""
    vector: int = 128
    """Entries of a state or an action, V."""
    language_tokens: int = 1024
    """Largest number of tokens of an instruction."""
    frames: int = 2
    """Images of one camera in an observation."""
    cameras: int = 3
    """Largest number of cameras."""
    patches: int = 729
    """Tokens of one image."""
    language_width: int = 4096
    """Features per token of the language encoder."""
    patch_width: int = 1152
    """Features per patch of the image encoder."""


class StdNorm(nn.Module):
    """RMSNorm of the published weights: divides a token by its standard deviation, and does not centre it.

    RMSNorm proper divides by the root mean square, which is the same if the mean of a token is 0.
    Source: Zhang and Sennrich 2019, as timm 1.0.3 computes it (huggingface/pytorch-image-models, issue 2380).
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Normalises (..., width); computes in float32 or wider and keeps the dtype."""
        x_wide = x.to(torch.promote_types(x.dtype, torch.float32))
        deviation = x_wide - x_wide.mean(-1, keepdim=True)  # Tensor.var takes four times as long on a CPU
        variance = deviation.square().sum(-1, keepdim=True) / (x.shape[-1] - 1)
        return (x_wide * torch.rsqrt(variance + EPS) * self.weight).to(x.dtype)


class ScalarEmbedding(nn.Module):
    """Embeds a number, such as the diffusion step, as a token. Source: Nichol and Dhariwal 2021, with cosines first."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(STEP_FEATURES, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, number: Tensor) -> Tensor:
        """Embeds R numbers (R,) as tokens (R, 1, D features)."""
        half = STEP_FEATURES // 2
        rate = torch.exp(torch.arange(half, device=number.device) * (-math.log(LONGEST_PERIOD) / half))
        angle = number.float().unsqueeze(1) * rate
        weight = self.mlp[0].weight
        assert isinstance(weight, Tensor)
        features = torch.cat([angle.cos(), angle.sin()], 1).to(weight.dtype)
        return self.mlp(features).unsqueeze(1)


class SelfAttention(nn.Module):
    """Self-attention with normalised queries and keys. Source: Henry et al. 2020 (QK-norm)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.q_norm, self.k_norm = StdNorm(width // heads), StdNorm(width // heads)

    def forward(self, x_RND: Tensor) -> Tensor:
        q, k, v = self.qkv(x_RND).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = attend(self.q_norm(q), self.k_norm(k), v)
        return self.proj(attended.transpose(1, 2).flatten(2))


class CrossAttention(nn.Module):
    """Cross-attention to the tokens of an instruction or of images, with normalised queries and keys."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.kv, self.proj = nn.Linear(width, width), nn.Linear(width, 2 * width), nn.Linear(width, width)
        self.q_norm, self.k_norm = StdNorm(width // heads), StdNorm(width // heads)

    def forward(self, x_RND: Tensor, condition_RLD: Tensor, mask_RL: Tensor | None) -> Tensor:
        q = self.q(x_RND).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = self.kv(condition_RLD).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mask = None if mask_RL is None else mask_RL[:, None, None]
        attended = attend(self.q_norm(q), self.k_norm(k), v, mask)
        return self.proj(attended.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """Two linear layers with GELU between them; the hidden layer is as wide as the input."""

    def __init__(self, width: int, outputs: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, width), nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x), approximate="tanh"))


class RDTBlock(nn.Module):
    """Pre-norm block: self-attention, cross-attention and feed-forward, each with a residual connection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2, self.norm3 = StdNorm(width), StdNorm(width), StdNorm(width)
        self.attn, self.cross_attn = SelfAttention(width, heads), CrossAttention(width, heads)
        self.ffn = FeedForward(width, width)

    def forward(self, x_RND: Tensor, condition_RLD: Tensor, mask_RL: Tensor | None) -> Tensor:
        x_RND = x_RND + self.attn(self.norm1(x_RND))
        x_RND = x_RND + self.cross_attn(self.norm2(x_RND), condition_RLD, mask_RL)
        return x_RND + self.ffn(self.norm3(x_RND))


class FinalLayer(nn.Module):
    """Maps tokens to outputs; its output is 0 at initialisation."""

    def __init__(self, width: int, outputs: int) -> None:
        super().__init__()
        self.norm_final, self.ffn_final = StdNorm(width), FeedForward(width, outputs)

    def forward(self, x_RND: Tensor) -> Tensor:
        return self.ffn_final(self.norm_final(x_RND))


class RDT(nn.Module):
    """Predicts a clean chunk of T actions from a noisy one, given the state, an instruction and images.

    Attributes:
        gradient_checkpointing: Compute the activations of blocks again in the backward pass instead of storing them.
    """

    def __init__(self, size: RDTSize, shape: RDTShape, gradient_checkpointing: bool = False) -> None:
        """
        Args:
            size: Width, depth and heads.
            shape: Shapes of inputs and outputs.
            gradient_checkpointing: See the class.

        Raises:
            ConfigError: The width is not a multiple of the heads, or of 4.
        """
        super().__init__()
        width = size.width
        if width % size.heads or width % 4:
            raise ConfigError(
                f"RDTSize.width={width} is not a multiple of 4 and of heads={size.heads}. Pass a multiple of "
                f"{math.lcm(4, size.heads)}."
            )
        self.shape, self.gradient_checkpointing = shape, gradient_checkpointing
        self.t_embedder, self.freq_embedder = ScalarEmbedding(width), ScalarEmbedding(width)
        self.x_pos_embed = nn.Parameter(token_position_embedding(shape.horizon, width))
        # The encoders' tokens contain positions: at initialisation all tokens of a kind have the same embedding.
        language = sincos(torch.zeros(1), width).expand(shape.language_tokens, -1)
        self.lang_cond_pos_embed = nn.Parameter(language.unsqueeze(0).clone())
        self.img_cond_pos_embed = nn.Parameter(image_position_embedding(shape, width))
        self.blocks = nn.ModuleList(RDTBlock(width, size.heads) for _ in range(size.depth))
        self.final_layer = FinalLayer(width, shape.vector)
        self._initialise()

    def _initialise(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
        for embedder in (self.t_embedder, self.freq_embedder):
            for layer in (embedder.mlp[0], embedder.mlp[2]):
                assert isinstance(layer, nn.Linear)
                nn.init.normal_(layer.weight, std=0.02)
        nn.init.zeros_(self.final_layer.ffn_final.fc2.weight)

    def image_positions(self, cameras: int) -> Tensor:
        """Returns position embeddings (1, F * cameras * P, D) of the patches of the first `cameras` cameras.

        F is the number of frames per camera, P of patches per image, and D of features per token.
        """
        shape = self.shape
        positions = self.img_cond_pos_embed.view(1, shape.frames, shape.cameras, shape.patches, -1)
        return positions[:, :, :cameras].flatten(1, 3)

    def forward(
        self,
        x_RND: Tensor,
        hz: Tensor,
        step: Tensor,
        language_RLD: Tensor,
        images_RLD: Tensor,
        language_mask: Tensor | None = None,
        image_mask: Tensor | None = None,
    ) -> Tensor:
        """Predicts clean chunks of actions from noisy ones.

        Args:
            x_RND: Tokens of the state and of the T noisy actions, (R rows, 1 + T tokens, D features).
            hz: Control frequency (R,) in actions per second; 0 if it is unknown.
            step: Diffusion steps (R,).
            language_RLD: Tokens of the instruction (R, L, D), at most ``shape.language_tokens`` of them.
            images_RLD: Tokens of the images (R, tokens, D), with their `image_positions` added.
            language_mask: Mask (R, L) bool of the tokens of the instruction; True takes part in the attention. Each
                row has at least one True. None means that all tokens take part.
            image_mask: The same for the tokens of the images, (R, tokens) bool or None.

        Returns:
            Predicted chunks (R, T, V entries of an action).
        """
        x_RND = torch.cat([self.t_embedder(step), self.freq_embedder(hz), x_RND], 1) + self.x_pos_embed
        language_RLD = language_RLD + self.lang_cond_pos_embed[:, : language_RLD.shape[1]]
        conditions = ((language_RLD, language_mask), (images_RLD, image_mask))
        for number, block in enumerate(self.blocks):
            if self.gradient_checkpointing and torch.is_grad_enabled():
                x_RND = checkpoint(block, x_RND, *conditions[number % 2], use_reentrant=False)
            else:
                x_RND = block(x_RND, *conditions[number % 2])
        return self.final_layer(x_RND[:, NUM_PREFIX_TOKENS:])


def sincos(position: Tensor, width: int) -> Tensor:
    """Embeds n positions (n,) as (n, width): sines, then cosines. Source: Vaswani et al. 2017, section 3.5."""
    half = width // 2
    rate = LONGEST_PERIOD ** -(torch.arange(half, dtype=torch.float64) / half)
    angle = position.double().unsqueeze(1) * rate
    return torch.cat([angle.sin(), angle.cos()], 1).float()


def token_position_embedding(horizon: int, width: int) -> Tensor:
    """Computes position embeddings (1, 3 + T, D) of the tokens: step, frequency, state and T = `horizon` actions.

    D is `width`. The first half of an embedding is for the kind of token, the second half for its index in the chunk.
    """
    kind = torch.arange(NUM_PREFIX_TOKENS + horizon).clamp(max=NUM_PREFIX_TOKENS)
    index = (torch.arange(NUM_PREFIX_TOKENS + horizon) - NUM_PREFIX_TOKENS).clamp(min=0)
    return torch.cat([sincos(kind, width // 2), sincos(index, width // 2)], 1).unsqueeze(0)


def image_position_embedding(shape: RDTShape, width: int) -> Tensor:
    """Computes position embeddings (1, F * C * P, D) of image patches, equal for all patches of an image.

    F, C and P are the numbers of frames, cameras and patches, and D is `width`. The embeddings encode the
    frame if there are several frames, and the camera if there are several cameras.
    """
    positions = torch.zeros(shape.frames, shape.cameras, shape.patches, width)
    several = [axis for axis, count in enumerate((shape.frames, shape.cameras)) if count > 1]
    part = width // max(1, len(several)) // 2 * 2
    for number, axis in enumerate(several):
        embedding = sincos(torch.arange(positions.shape[axis]), part)
        embedding = embedding[:, None, None] if axis == 0 else embedding[None, :, None]
        positions[..., number * part : (number + 1) * part] = embedding
    return positions.view(1, -1, width)
