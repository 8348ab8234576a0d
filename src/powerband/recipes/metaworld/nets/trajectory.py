"""TrajectoryEncoder: a transformer that encodes the last steps of an episode into a short code of its task.

Letters of shapes: B trajectories, T states, L tokens, D width of a token; S, A and Z entries of a state, an action and
a code.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from powerband.nets.attention import attend
from powerband.recipes.metaworld.settings import TrajectoryEncoderConfig

PARTS = ("state", "action", "reward")
"""Kinds of tokens."""


class EncoderLayer(nn.Module):
    """Layer of a transformer encoder: attention, then two linear layers, with residual connections and LayerNorm.

    Dropout applies to the outputs of attention and of the linear layers. It does not apply to the attention weights,
    which fused attention never stores.

    Source: Vaswani et al. 2017, section 3.
    """

    def __init__(self, width: int, heads: int, feedforward: int, dropout: float) -> None:
        """
        Args:
            width: Width of a token.
            heads: Number of attention heads.
            feedforward: Width of the hidden layer.
            dropout: Dropout rate.
        """
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.inputs, self.outputs = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, feedforward), nn.Linear(feedforward, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))

    def forward(self, x_BLD: Tensor, mask: Tensor) -> Tensor:
        """Applies the layer.

        Args:
            x_BLD: Tokens (B batch rows, L tokens, D features).
            mask: (B, 1, 1, L) bool: True for tokens that are attended to.

        Returns:
            Tokens (B, L, D).
        """
        query, key, value = self.inputs(x_BLD).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = attend(query, key, value, mask)
        x_BLD = self.norms[0](x_BLD + self._drop(self.outputs(attended.transpose(1, 2).flatten(2))))
        wide = self._drop(torch.relu(self.widen(x_BLD)))
        return self.norms[1](x_BLD + self._drop(self.narrow(wide)))

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)


class TrajectoryEncoder(nn.Module):
    """Maps states s_0 .. s_{T-1}, with the actions and rewards between them, to a code z and predicted tokens.

    The tokens are s_0, (a_0, r_0, s_1), (a_1, r_1, s_2), ..., and a learned last token whose output becomes z. Tokens
    of the same time step share a learned position embedding. Attention is bidirectional.
    """

    def __init__(self, config: TrajectoryEncoderConfig, state: int = 21, action: int = 4) -> None:
        """
        Args:
            config: Sizes of the network.
            state, action: Entries of a state and of an action.
        """
        super().__init__()
        self.config, width = config, config.width
        sizes = dict(zip(PARTS, (state, action, 1), strict=True))
        self.embed = nn.ModuleDict({part: nn.Linear(size, width) for part, size in sizes.items()})
        self.norm = nn.ModuleDict({part: nn.LayerNorm(width) for part in PARTS})
        self.read = nn.ModuleDict({part: nn.Linear(width, size) for part, size in sizes.items()})
        self.place = nn.Parameter(0.02 * torch.randn(config.length, width))
        self.last = nn.Parameter(0.02 * torch.randn(width))
        self.layers = nn.ModuleList(
            EncoderLayer(width, config.heads, config.feedforward, config.dropout) for _ in range(config.layers)
        )
        self.code = nn.Linear(width, config.code)

    def forward(
        self, batch: dict[str, Tensor], shown: dict[str, Tensor] | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Encodes trajectories.

        Args:
            batch: B trajectories of T steps: ``state`` (B, T, S entries), ``action`` (B, T-1, A entries), ``reward``
                (B, T-1, 1), and ``length`` (B,) int64: valid states, 1 to T. Later values are masked out.
            shown: ``state``, ``action`` and ``reward`` with masked entries, which the network sees in place of those
                of `batch`; None masks nothing.

        Returns:
            Codes z (B, Z entries), and a dict of the predicted ``state`` (B, T, S), ``action`` (B, T-1, A) and
            ``reward`` (B, T-1, 1).
        """
        shown = shown or batch
        b, t = batch["state"].shape[:2]
        token = {part: self.norm[part](self.embed[part](shown[part])) for part in PARTS}
        token["state"] = token["state"] + self.place[:t]
        token["action"] = token["action"] + self.place[: t - 1]
        token["reward"] = token["reward"] + self.place[: t - 1]
        steps = torch.stack([token["action"], token["reward"], token["state"][:, 1:]], 2).flatten(1, 2)
        x_BLD = torch.cat([token["state"][:, :1], steps, self.last.expand(b, 1, -1)], 1)
        padding = torch.arange(x_BLD.shape[1] - 1, device=x_BLD.device) > 3 * (batch["length"].unsqueeze(1) - 1)
        mask = ~torch.cat([padding, padding.new_zeros(b, 1)], 1)[:, None, None]
        for layer in self.layers:
            if self.config.gradient_checkpointing and self.training:
                x_BLD = checkpoint(layer, x_BLD, mask, use_reentrant=False)
            else:
                x_BLD = layer(x_BLD, mask)
        steps = x_BLD[:, 1:-1].unflatten(1, (t - 1, 3))
        outputs = {
            "state": torch.cat([x_BLD[:, :1], steps[:, :, 2]], 1),
            "action": steps[:, :, 0],
            "reward": steps[:, :, 1],
        }
        return self.code(x_BLD[:, -1]), {part: self.read[part](outputs[part]) for part in PARTS}

    @torch.no_grad()
    def encode(self, batch: dict[str, Tensor]) -> Tensor:
        """Computes the codes z (B, Z entries) of B trajectories without dropout; `batch` is that of `forward`."""
        training = self.training
        self.eval()
        z = self(batch)[0]
        self.train(training)
        return z
