"""TrajectoryEncoder: the last steps of an episode as one short code of the task that they belong to.

Suffixes: B trajectories, T states, L tokens, D width, Z code.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from powerband.nets.attention import attend

PARTS = ("state", "action", "reward")


@dataclass(frozen=True)
class EncoderConfig:
    length: int = 20
    """States of a trajectory at most."""
    width: int = 32
    """Width of a token."""
    layers: int = 3
    """Layers of the encoder."""
    heads: int = 8
    """Heads of its attention."""
    feedforward: int = 128
    """Width inside a layer."""
    code: int = 6
    """Entries of the code z."""
    dropout: float = 0.1
    """Dropout inside the layers."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass instead of keeping them: less memory, a third more time."""

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(f"width={self.width} does not divide by heads={self.heads}. Write width=32, heads=8.")
        if self.length < 2:
            raise ValueError(f"length={self.length} is below 2: a trajectory has an action. Write length=20.")


class EncoderLayer(nn.Module):
    """Attention, then two linear layers, each added and normalised.

    Dropout is on what the two parts add and not on the attention's weights: fused attention need not store these.
    Source: Vaswani et al. 2017, section 3.
    """

    def __init__(self, width: int, heads: int, feedforward: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.inputs, self.outputs = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, feedforward), nn.Linear(feedforward, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))

    def forward(self, x_BLD: Tensor, seen: Tensor) -> Tensor:
        """(B, L, D), and what every token may look at (B, 1, 1, L) bool -> (B, L, D)."""
        parts = self.inputs(x_BLD).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = attend(*parts, seen)
        x_BLD = self.norms[0](x_BLD + self._dropped(self.outputs(attended.transpose(1, 2).flatten(2))))
        wide = self._dropped(torch.relu(self.widen(x_BLD)))
        return self.norms[1](x_BLD + self._dropped(self.narrow(wide)))

    def _dropped(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)


class TrajectoryEncoder(nn.Module):
    """States s_0 .. s_{T-1}, actions and rewards between them -> code z, and the tokens read back.

    Tokens are s_0, (a_0, r_0, s_1), (a_1, r_1, s_2), ..., then a learned one at which z is read. What happened at one
    time has one learned place. Attention goes both ways.
    """

    def __init__(self, config: EncoderConfig, state: int = 21, action: int = 4) -> None:
        """
        Args:
            config: Sizes.
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

    def forward(self, batch: dict[str, Tensor], shown: dict[str, Tensor] | None = None) -> tuple[Tensor, dict]:
        """
        Args:
            batch: ``state`` (B, T, S), ``action`` (B, T-1, A), ``reward`` (B, T-1, 1), ``length`` (B,) int64: states
                that are there, 1 to T; what lies behind them is not looked at.
            shown: In place of the three parts, what is shown of them: masked views.

        Returns:
            z (B, Z), and by part what the tokens at its places say (B, T or T-1, ...).
        """
        shown = shown or batch
        b, t = batch["state"].shape[:2]
        token = {part: self.norm[part](self.embed[part](shown[part])) for part in PARTS}
        token["state"] = token["state"] + self.place[:t]
        token["action"] = token["action"] + self.place[: t - 1]
        token["reward"] = token["reward"] + self.place[: t - 1]
        steps = torch.stack([token["action"], token["reward"], token["state"][:, 1:]], 2).flatten(1, 2)
        x_BLD = torch.cat([token["state"][:, :1], steps, self.last.expand(b, 1, -1)], 1)
        beyond = torch.arange(x_BLD.shape[1] - 1, device=x_BLD.device) > 3 * (batch["length"].unsqueeze(1) - 1)
        seen = ~torch.cat([beyond, beyond.new_zeros(b, 1)], 1)[:, None, None]
        for layer in self.layers:
            if self.config.gradient_checkpointing and self.training:
                x_BLD = checkpoint(layer, x_BLD, seen, use_reentrant=False)
            else:
                x_BLD = layer(x_BLD, seen)
        steps = x_BLD[:, 1:-1].unflatten(1, (t - 1, 3))
        said = {
            "state": torch.cat([x_BLD[:, :1], steps[:, :, 2]], 1),
            "action": steps[:, :, 0],
            "reward": steps[:, :, 1],
        }
        return self.code(x_BLD[:, -1]), {part: self.read[part](said[part]) for part in PARTS}

    @torch.no_grad()
    def encode(self, batch: dict[str, Tensor]) -> Tensor:
        """z (B, Z) of whole trajectories, without dropout."""
        trained = self.training
        self.eval()
        z = self(batch)[0]
        self.train(trained)
        return z
