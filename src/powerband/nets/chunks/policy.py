"""ChunkPolicy: an observation encoder, an optional GRU, and a head that denoises or classifies chunks of actions."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from powerband.core.errors import ConfigError
from powerband.data.types import Tree, tree_map
from powerband.nets.chunks.unet import ChunkUNet
from powerband.nets.recurrent import GRU

WIDTH = 512
"""Number of features of an encoded observation."""
ALL_ROWS = slice(None)


class ChunkPolicy(nn.Module):
    """Policy network for chunks, which are sequences of T discrete actions that are predicted at once.

    It consists of an observation encoder, an optional GRU over the observations of an episode, and a head. The head is
    a U-Net that denoises chunks (diffusion), or layers that compute the logits of each action of a chunk (behaviour
    cloning).

    Shapes: R rows, T actions of a chunk, K discrete actions, L steps of S sequences, H width of the GRU, F features:
    H with a GRU, otherwise 512. A code is a vector of A numbers that represents an action.

    Attributes:
        shape: (T, K).
        gru: Memory over the observations of an episode; None without memory.
        unet: Denoising head; None for cloning.
        logits: Classification head; None for diffusion.
    """

    def __init__(
        self,
        encoder: nn.Module,
        horizon: int,
        actions: int,
        codes: int,
        unet: tuple[int, ...] | None,
        gru_width: int = 0,
    ) -> None:
        """
        Args:
            encoder: Module from observations to features (R, encoder.width).
            horizon: T, number of actions in a chunk.
            actions: K, number of discrete actions.
            codes: A, length of the code of an action.
            unet: Channels of the levels of the U-Net; None builds the classification head.
            gru_width: Width of the GRU; 0 builds none.

        Raises:
            ConfigError: The horizon cannot be halved at each level of the U-Net after the first.
        """
        super().__init__()
        if unet is not None and horizon % 2 ** (len(unet) - 1):
            raise ConfigError(
                f"chunks.horizon={horizon} cannot be halved {len(unet) - 1} times, once per level of "
                f"chunks.unet={unet} after the first. Write a horizon that is a multiple of {2 ** (len(unet) - 1)}."
            )
        self.encoder, self.shape = encoder, (horizon, actions)
        self.joined = nn.Sequential(nn.Linear(int(cast(int, encoder.width)), WIDTH), nn.SiLU())
        self.gru = GRU(WIDTH, gru_width) if gru_width else None
        width = gru_width or WIDTH
        self.unet = None if unet is None else ChunkUNet(codes, width, unet)
        self.logits: nn.Sequential | None = None
        if unet is None:
            self.logits = nn.Sequential(nn.Linear(width, WIDTH), nn.SiLU(), nn.Linear(WIDTH, horizon * actions))

    def encode(self, obs: Tree, carry: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Computes the features of R observations, and the next state of the memory.

        Args:
            obs: Tensor or nested dict of tensors (R, ...).
            carry: State of the GRU (R, H) before the observations; None without a GRU.

        Returns:
            Features (R, F), and the next state (R, H); None without a GRU.
        """
        features = self.joined(self.encoder(obs))
        if self.gru is None:
            return features, None
        assert carry is not None
        outputs, carry = self.gru(features.unsqueeze(0), carry)
        return outputs[0], carry

    def encode_sequences(self, obs: Tree, carry: Tensor, starts: Tensor) -> Tensor:
        """Computes the features of S sequences of L steps; only with a GRU.

        Args:
            obs: Tensor or nested dict of tensors (L, S, ...).
            carry: State of the GRU (S, H) before the first step.
            starts: Bools (L, S), True at the first step of an episode.

        Returns:
            Features (S * L, H): all steps of the first sequence, then those of the next one.
        """
        assert self.gru is not None
        features = self.joined(self.encoder(tree_map(lambda leaf: leaf.flatten(0, 1), obs)))
        return by_sequence(self.gru(features.unflatten(0, starts.shape), carry, starts)[0])

    def classify(self, features: Tensor) -> Tensor:
        """Computes the logits of a chunk from the result of `encode`; only without a U-Net (behaviour cloning).

        Returns:
            Logits (R, T, K) of R rows, T actions of a chunk and K discrete actions.
        """
        assert self.logits is not None
        return self.logits(features).view(-1, *self.shape)

    def denoise(self, noisy: Tensor, step: Tensor, features: Tensor) -> Tensor:
        """Predicts the noise or the clean chunk from a noisy chunk; only with a U-Net (diffusion).

        Args:
            noisy: Noisy chunks (R, T, A) of R rows, T actions of a chunk and A numbers per action.
            step: Diffusion step of each row (R,) int64.
            features: Features (R, F).

        Returns:
            Prediction (R, T, A) float32.
        """
        assert self.unet is not None
        return self.unet(noisy, step, features)

    def forward(
        self,
        obs: Tree,
        noisy: Tensor | None = None,
        step: Tensor | None = None,
        carry: Tensor | None = None,
        starts: Tensor | None = None,
        labelled: Tensor | slice = ALL_ROWS,
    ) -> Tensor:
        """Computes the output of the head: that of `classify`, or of `denoise` if `noisy` and `step` are not None.

        Args:
            obs: Observations of N rows; with a GRU, those of S sequences of L steps, and N is S * L.
            noisy: Noisy chunks (R, T, A) of T actions with A numbers each; None for behaviour cloning.
            step: Diffusion step of each row (R,) int64; None for behaviour cloning.
            carry: State of the GRU (S, H) before the sequences; None without a GRU.
            starts: Bools (L, S), True at the first step of an episode; None without a GRU.
            labelled: Bools (N,), True at the R rows for which the head computes its output; by default all.

        Returns:
            Logits (R, T, K) float32 of K discrete actions, or the predicted noise or clean chunks (R, T, A) float32.
        """
        if carry is None or starts is None:
            features, _ = self.encode(obs)
        else:
            features = self.encode_sequences(obs, carry, starts)
        features = features[labelled]
        if noisy is None or step is None:
            return self.classify(features).float()
        return self.denoise(noisy, step, features)


def by_sequence(steps: Tensor) -> Tensor:
    """Joins the axes of steps and sequences: (L, S, ...) of S sequences of L steps -> (S * L, ...).

    The sequences follow each other, so that the rows of several ranks have the order of one rank with all sequences.
    """
    return steps.transpose(0, 1).flatten(0, 1)


def nearest(codes: Tensor, table: Tensor) -> Tensor:
    """Decodes vectors to actions: finds the action whose code is nearest in Euclidean distance.

    Args:
        codes: Vectors (..., A) to decode, of A numbers each.
        table: Codes (K, A) of K actions.

    Returns:
        Actions (...) int64, rows of `table`.
    """
    return torch.cdist(codes.flatten(0, -2), table).argmin(1).view(codes.shape[:-1])
