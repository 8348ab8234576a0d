"""RDTPolicy: what is observed, raw, as the tokens that an RDT looks at; and its chunks of actions, raw again.

States and actions are vectors of V numbers with fixed meanings, of which each robot has some; which, says a mask. They
are normalised here with the statistics of what was recorded, which are part of the policy's state.
Suffixes: R rows, T actions of a chunk, V numbers, F frames, C cameras, P patches, L tokens, D width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from powerband.core.flags import ConfigError
from powerband.nets.rdt import RDT, RDTShape, RDTSize

STATISTICS = ("state_mean", "state_std", "action_mean", "action_std")
THERE = ("state_there", "action_there")


@dataclass(frozen=True)
class PolicyConfig:
    """Of the vision encoder that is trained with the policy; a frozen one has its own sizes."""

    width: int = 128
    """Numbers that are said of a patch, a multiple of 64."""
    subsample: int = 1
    """2 averages 2 x 2 pixels of a picture first, which is faster and coarser; 1 does not."""
    patch: int = 16
    """Pixels along a patch, 16 or 32: of a picture of 128 these are 64 or 16 tokens."""


class Seen(NamedTuple):
    """What does not change while a chunk is drawn."""

    state_R1D: Tensor
    hz: Tensor
    language_RLD: Tensor
    language_there: Tensor
    pictures_RLD: Tensor
    pictures_there: Tensor | None


def adaptor(inputs: int, width: int, layers: int) -> nn.Sequential:
    """Linear layers with GELU between them, which keep the size of what goes through.

    As torch begins them, what a state says is at first a twelfth of what its place says, and is learned at half the
    pace.
    """
    parts: list[nn.Module] = [nn.Linear(inputs, width)]
    for _ in range(layers - 1):
        parts += [nn.GELU(approximate="tanh"), nn.Linear(width, width)]
    for layer in parts[::2]:
        nn.init.xavier_uniform_(layer.weight, 2**0.5)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(*parts)


class RDTPolicy(nn.Module):
    """Adaptors, encoder of pictures, normalisation and RDT.

    An observation is a dict with ``state`` (R, V) float32 raw, ``state_there`` (R, V) bool, ``task`` (R,) int64 row of
    the table that `speak` was told, ``hz`` (R,) float32 control frequency, and, unless the policy is blind,
    ``pictures`` (R, F, C, H, W, 3) uint8 or ``features`` (R, F, C, P, D) of a frozen encoder, frames oldest first, with
    ``pictures_there`` (R, F, C) bool.

    Attributes:
        vision: Makes tokens of pictures; a module is trained with the policy.
        state_mean, state_std, action_mean, action_std: (V,) of what was recorded; see `know`.
        state_there, action_there: (V,) bool: numbers that the robot's states and actions have.
    """

    def __init__(
        self, size: RDTSize, shape: RDTShape, vision: Any = None, checkpoint_activations: bool = False
    ) -> None:
        """
        Args:
            size, shape, checkpoint_activations: Of the RDT.
            vision: (n, H, W, 3) uint8, and draws of `jittered` (n, DRAWS) or None -> (n, P, ``shape.picture_width``);
                None where features come in, or nothing.
        """
        super().__init__()
        self.shape, width = shape, size.width
        self.model = RDT(size, shape, checkpoint_activations)
        self.lang_adaptor = adaptor(shape.language_width, width, 2)
        self.img_adaptor = adaptor(shape.picture_width, width, 2)
        self.state_adaptor = adaptor(2 * shape.vector, width, 3)
        self.background = nn.Parameter(torch.zeros(shape.picture_width))
        self.vision = vision
        for name in STATISTICS:
            self.register_buffer(name, torch.full((shape.vector,), float(name.endswith("std"))))
        for name in THERE:
            self.register_buffer(name, torch.ones(shape.vector, dtype=torch.bool))
        self.language_tokens: Tensor | None = None
        self.language_there: Tensor | None = None

    def know(self, **statistics: Tensor) -> None:
        """Takes in what recorded vectors are like.

        Args:
            statistics: STATISTICS, (V,) each, deviations above 0, of numbers that are not there any such; and THERE,
                (V,) bool each: `act` gives these numbers of an action where an observation says nothing else.

        Raises:
            ValueError: One is missing, or a deviation is not above 0.
        """
        for name in (*STATISTICS, *THERE):
            if name not in statistics:
                raise ValueError(f"statistics have no {name}: they need {', '.join((*STATISTICS, *THERE))}.")
            if name.endswith("std") and not bool((statistics[name] > 0).all()):
                where = (~(statistics[name] > 0)).nonzero()[:, 0].tolist()
                raise ValueError(f"{name} is not above 0 at {where}: give 1 where a number is not there or constant.")
            getattr(self, name).copy_(statistics[name])

    def speak(self, tokens: Tensor, there: Tensor) -> None:
        """Instructions from now on; they are no weights.

        Args:
            tokens: (K, L, ``shape.language_width``).
            there: (K, L) bool, one at least in each row.

        Raises:
            ConfigError: They are of another encoder, or too long.
        """
        _, length, width = tokens.shape
        if width != self.shape.language_width or length > self.shape.language_tokens:
            raise ConfigError(
                f"instructions are {length} tokens of {width} numbers; this policy reads up to "
                f"{self.shape.language_tokens} of {self.shape.language_width}. Use the encoder that it was made with."
            )
        assert bool(there.any(1).all()), "an instruction without a token"
        self.language_tokens, self.language_there = tokens.to(self.background), there.to(self.background.device)

    # -- vectors --------------------------------------------------------------------------------------------------

    def normalised(self, kind: str, raw: Tensor, there: Tensor) -> Tensor:
        """Raw (..., V) of `kind`, state or action, with mean 0 and deviation 1; 0 where `there` (..., V) is False."""
        code = (raw - getattr(self, f"{kind}_mean")) / getattr(self, f"{kind}_std")
        return torch.where(there, code, torch.zeros_like(code))

    def raw_actions(self, code: Tensor, there: Tensor) -> Tensor:
        """The inverse of `normalised` for actions; 0 where they are not there."""
        raw = code * self.action_std + self.action_mean
        return torch.where(there, raw, torch.zeros_like(raw))

    def _tokens(self, code: Tensor, there: Tensor) -> Tensor:
        """(R, n, V) numbers and which are there -> (R, n, D)."""
        dtype = self.background.dtype
        return self.state_adaptor(torch.cat([code.to(dtype), there.to(dtype).expand_as(code)], -1))

    # -- what is seen ---------------------------------------------------------------------------------------------

    def condition(self, obs: dict[str, Tensor], hidden: dict[str, Tensor] | None = None) -> Seen:
        """Tokens of an observation.

        Args:
            obs: See the class.
            hidden: While learning, what is kept from the policy or disturbed: ``state``, ``language``, ``hz`` (R,) and
                ``pictures`` (R, F, C) bool, True is hidden; ``state_noise`` (R, V), added after normalisation;
                ``jitter`` (R, C, DRAWS) of each camera's pictures, all frames alike.
        """
        there, hz = obs["state_there"], obs["hz"]
        code = self.normalised("state", obs["state"], there)
        assert self.language_tokens is not None and self.language_there is not None, "no instructions: call speak"
        language, language_there = self.language_tokens[obs["task"]], self.language_there[obs["task"]]
        if hidden is not None:
            code = torch.where(there, code + hidden["state_noise"], code)
            there = there & ~hidden["state"].unsqueeze(1)
            code = code * there
            hz = torch.where(hidden["hz"], torch.zeros_like(hz), hz)
            # Nothing was said: one token of zeros, so that the length of what was meant cannot be seen either.
            nothing = torch.arange(language.shape[1], device=language.device) == 0
            language_there = torch.where(hidden["language"].unsqueeze(1), nothing, language_there)
            language = torch.where(hidden["language"].view(-1, 1, 1), torch.zeros_like(language), language)
        pictures, pictures_there = self._pictures(obs, hidden)
        state = self._tokens(code.unsqueeze(1), there.unsqueeze(1))
        return Seen(state, hz, self.lang_adaptor(language), language_there, pictures, pictures_there)

    def _pictures(self, obs: dict[str, Tensor], hidden: dict[str, Tensor] | None) -> tuple[Tensor, Tensor | None]:
        """Tokens (R, F C P, D) with their places and which may be looked at; the background alone for the blind."""
        if "pictures" not in obs and "features" not in obs:
            token = self.img_adaptor(self.background).expand(len(obs["state"]), 1, -1)
            return token + self.model.places(1)[:, :1], None
        found = obs["features"] if "features" in obs else self._encoded(obs["pictures"], hidden)
        shape = self.shape
        _, frames, cameras, patches, _ = found.shape
        if (frames, patches) != (shape.frames, shape.patches) or cameras > shape.cameras:
            raise ValueError(
                f"pictures are {frames} frames of {cameras} cameras with {patches} patches; this policy sees "
                f"{shape.frames} frames of up to {shape.cameras} cameras with {shape.patches}."
            )
        there = obs["pictures_there"] if hidden is None else obs["pictures_there"] & ~hidden["pictures"]
        found = torch.where(there[..., None, None], found.to(self.background.dtype), self.background)
        none = ~there.flatten(1).any(1, keepdim=True)  # attention has to look at something: then the background
        seen = (there.flatten(1) | none).repeat_interleave(patches, 1)
        return self.img_adaptor(found.flatten(1, 3)) + self.model.places(cameras), seen

    def _encoded(self, pictures: Tensor, hidden: dict[str, Tensor] | None) -> Tensor:
        """(R, F, C, H, W, 3) uint8 -> (R, F, C, P, D)."""
        assert self.vision is not None, "pictures came in, and there is nothing that encodes them"
        rows, frames, cameras = pictures.shape[:3]
        draws = None
        if hidden is not None and "jitter" in hidden:
            draws = hidden["jitter"].unsqueeze(1).expand(-1, frames, -1, -1).flatten(0, 2)
        return self.vision(pictures.flatten(0, 2), draws).unflatten(0, (rows, frames, cameras))

    # -- chunks ---------------------------------------------------------------------------------------------------

    def denoise(self, seen: Seen, noisy: Tensor, there: Tensor, step: Tensor) -> Tensor:
        """What noisy chunks are said to be.

        Args:
            seen: From `condition`.
            noisy: (R, T, V) normalised actions with noise.
            there: (R, V) bool: numbers that actions have; what `noisy` holds elsewhere is not looked at.
            step: (R,) steps of diffusion.

        Returns:
            (R, T, V) float32 or wider.
        """
        there = there.unsqueeze(1)
        actions = self._tokens(torch.where(there, noisy, torch.zeros_like(noisy)), there)
        said = self.model(
            torch.cat([seen.state_R1D, actions], 1),
            seen.hz,
            step,
            seen.language_RLD,
            seen.pictures_RLD,
            seen.language_there,
            seen.pictures_there,
        )
        return said.to(torch.promote_types(said.dtype, torch.float32))

    def forward(
        self,
        obs: dict[str, Tensor],
        noisy: Tensor,
        there: Tensor,
        step: Tensor,
        hidden: dict[str, Tensor] | None = None,
    ) -> Tensor:
        """`denoise` of what is seen in `obs`: (R, T, V)."""
        return self.denoise(self.condition(obs, hidden), noisy, there, step)
