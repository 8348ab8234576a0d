"""RDTPolicy: encodes raw observations as tokens for RDT, and converts its chunks to raw actions.

States and actions are vectors of V entries with fixed meanings; a robot has some of the entries, and a mask names them.
The policy normalises them with the statistics of the recorded data, which are part of its state dict.
Suffixes: R rows, T actions of a chunk, V entries, F frames, C cameras, P patches, L tokens, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from powerband.core.errors import ConfigError
from powerband.recipes.libero.nets.keyframe import POSITION_DIM, KeyframeHead, offset_features
from powerband.recipes.libero.nets.rdt import RDT, RDTShape, RDTSize

STATISTICS = ("state_mean", "state_std", "action_mean", "action_std")
MASKS = ("state_mask", "action_mask")
OLD_MASKS = {"state_there": "state_mask", "action_there": "action_mask"}
"""Names of the masks in checkpoints of earlier versions."""
ImageEncoder = Callable[[Tensor, Tensor | None], Tensor]
"""(images (n, H, W, 3) uint8, draws of `jitter_images` or None) -> features (n, P, D)."""


class Conditioning(NamedTuple):
    """Encoded observations of R rows: the inputs of `RDT.forward` that stay the same while a chunk is sampled.

    Attributes:
        state_R1D: Token of the state (R, 1, D features).
        hz: Control frequency (R,) in actions per second.
        language_RLD: Tokens of the instruction (R, L tokens, D).
        language_mask: Mask (R, L) bool of these tokens.
        images_RLD: Tokens of the images (R, tokens, D).
        image_mask: Mask (R, tokens) bool of these tokens; None means that all take part in the attention.
        keyframe_R3: Predicted position of the end effector at the next keyframe (R, 3), normalised as the state is;
            None if the policy does not predict it.
    """

    state_R1D: Tensor
    hz: Tensor
    language_RLD: Tensor
    language_mask: Tensor
    images_RLD: Tensor
    image_mask: Tensor | None
    keyframe_R3: Tensor | None = None


def adaptor(inputs: int, width: int, layers: int) -> nn.Sequential:
    """Builds a network of linear layers with GELU between them, whose initial weights preserve the scale of the input.

    With torch's own initialisation, a state token would be small compared with its position embedding.

    Args:
        inputs: Entries of the input.
        width: Entries of the output and of the hidden layers.
        layers: Number of linear layers.
    """
    first = nn.Linear(inputs, width)
    linears: list[nn.Linear] = [first]
    parts: list[nn.Module] = [first]
    for _ in range(layers - 1):
        linears.append(nn.Linear(width, width))
        parts += [nn.GELU(approximate="tanh"), linears[-1]]
    for layer in linears:
        nn.init.xavier_uniform_(layer.weight, 2**0.5)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(*parts)


class RDTPolicy(nn.Module):
    """Predicts action chunks from observations: normalises vectors, encodes all inputs as tokens, and applies RDT.

    Shapes: R rows of a batch, V entries of a vector, T actions of a chunk, F frames, C cameras, P patches, D features,
    L tokens of an instruction, H and W pixels.

    An observation is a dict with ``state`` (R, V) float32, not normalised, ``state_mask`` (R, V) bool, True for entries
    that the state has, ``task`` (R,) int64, the index of the instruction, and ``hz`` (R,) float32, actions per second.
    Unless the policy observes no images, the dict contains ``images`` (R, F, C, H, W, 3) uint8, or ``features``
    (R, F, C, P, D) of a frozen encoder, frames oldest first, and ``image_mask`` (R, F, C) bool, True for existing
    images.

    Attributes:
        vision: Image encoder; None if observations contain features or no images. An encoder that is an
            nn.Module is trained with the policy.
        state_mean, state_std, action_mean, action_std: Statistics (V,) of the recorded data; see `set_statistics`.
        state_mask, action_mask: Masks (V,) bool of the entries that the robot's states and actions have.
        language_tokens: Tokens of the K instructions (K, L, ``shape.language_width``); see `set_instructions`.
        language_mask: Mask (K, L) bool of the tokens.
    """

    state_mean: Tensor
    state_std: Tensor
    action_mean: Tensor
    action_std: Tensor
    state_mask: Tensor
    action_mask: Tensor

    def __init__(
        self,
        size: RDTSize,
        shape: RDTShape,
        vision: ImageEncoder | None = None,
        gradient_checkpointing: bool = False,
        keyframe_entries: Sequence[int] = (),
    ) -> None:
        """
        Args:
            size: Size of the RDT.
            shape: Shapes of its inputs and outputs.
            vision: Image encoder whose features have ``shape.patch_width`` entries; None if observations contain
                features, or no images.
            gradient_checkpointing: See `RDT`.
            keyframe_entries: Indices of the position of the end effector (x, y, z) in the state. With them, the policy
                predicts this position at the next keyframe and observes the prediction; see `KeyframeHead`. Empty does
                not predict it.
        """
        super().__init__()
        self.shape, width = shape, size.width
        self.model = RDT(size, shape, gradient_checkpointing)
        self.lang_adaptor = adaptor(shape.language_width, width, 2)
        self.img_adaptor = adaptor(shape.patch_width, width, 2)
        self.state_adaptor = adaptor(2 * shape.vector, width, 3)
        self.background = nn.Parameter(torch.zeros(shape.patch_width))
        self.vision = vision
        self.keyframe_entries = list(keyframe_entries)
        if keyframe_entries:
            patches = shape.cameras * shape.patches if vision is not None else 0
            self.keyframe = KeyframeHead(shape.vector, shape.language_width, shape.patch_width, patches)
            self.keyframe_adaptor = adaptor(2 * POSITION_DIM, width, 2)
        for name in STATISTICS:
            self.register_buffer(name, torch.full((shape.vector,), float(name.endswith("std"))))
        for name in MASKS:
            self.register_buffer(name, torch.ones(shape.vector, dtype=torch.bool))
        self.register_load_state_dict_pre_hook(_rename_old_masks)
        # Instructions are plain tensors: they are not saved, and the averaged policy shares them.
        self.language_tokens: Tensor = torch.zeros(0, 0, shape.language_width)
        self.language_mask: Tensor = torch.zeros(0, 0, dtype=torch.bool)

    def set_statistics(self, **statistics: Tensor) -> None:
        """Sets the statistics of the recorded data.

        Args:
            statistics: ``state_mean``, ``state_std``, ``action_mean`` and ``action_std`` (V entries,).
                ``state_mask`` and ``action_mask`` (V,) bool are True for entries that the robot has. All standard
                deviations must be positive; entries that the robot does not have may have any positive value.

        Raises:
            ConfigError: A value is missing, or a standard deviation is not above 0.
        """
        for name in (*STATISTICS, *MASKS):
            if name not in statistics:
                raise ConfigError(
                    f"The statistics of the recorded data have no {name}. set_statistics needs "
                    f"{', '.join((*STATISTICS, *MASKS))}."
                )
            if name.endswith("std") and not bool((statistics[name] > 0).all()):
                entries = (~(statistics[name] > 0)).nonzero()[:, 0].tolist()
                raise ConfigError(
                    f"{name} must be above 0, but is not at these indices of the {name.split('_')[0]} vector: "
                    f"{entries}. Pass 1 for entries that the robot does not have or that never change."
                )
            getattr(self, name).copy_(statistics[name])

    def set_instructions(self, tokens: Tensor, token_mask: Tensor) -> None:
        """Sets the instructions that ``obs["task"]`` refers to. The instructions are not part of the state dict.

        Args:
            tokens: Tokens of K instructions, (K, L tokens, ``shape.language_width``).
            token_mask: Mask (K, L) bool, True for tokens and False for padding, with at least one True in each row.

        Raises:
            ConfigError: The tokens are from another encoder, or too many.
        """
        _, length, width = tokens.shape
        if width != self.shape.language_width or length > self.shape.language_tokens:
            raise ConfigError(
                f"The instructions have {length} tokens of {width} features; this policy reads up to "
                f"{self.shape.language_tokens} tokens of {self.shape.language_width}. Use the text encoder "
                f"(text_encoder=) of its training, and shorter instructions."
            )
        assert bool(token_mask.any(1).all()), "an instruction without a token"
        self.language_tokens = tokens.to(self.background)
        self.language_mask = token_mask.to(self.background.device)

    # -- vectors --------------------------------------------------------------------------------------------------

    def normalize(self, kind: str, raw: Tensor, mask: Tensor) -> Tensor:
        """Normalises vectors (..., V entries) to mean 0 and standard deviation 1 with the statistics of the data.

        Args:
            kind: Statistics to use: "state" or "action".
            raw: Vectors (..., V).
            mask: Mask (..., V) bool of the entries that exist; all remaining entries become 0.

        Returns:
            Normalised vectors (..., V).
        """
        normalized = (raw - getattr(self, f"{kind}_mean")) / getattr(self, f"{kind}_std")
        return torch.where(mask, normalized, torch.zeros_like(normalized))

    def denormalize_actions(self, normalized: Tensor, mask: Tensor) -> Tensor:
        """Inverts `normalize` for actions (..., V entries); entries that are False in `mask` (..., V) become 0."""
        raw = normalized * self.action_std + self.action_mean
        return torch.where(mask, raw, torch.zeros_like(raw))

    def _vector_tokens(self, normalized: Tensor, mask: Tensor) -> Tensor:
        """Encodes n normalised vectors per row (R, n, V) and their masks as tokens (R, n, D)."""
        dtype = self.background.dtype
        return self.state_adaptor(torch.cat([normalized.to(dtype), mask.to(dtype).expand_as(normalized)], -1))

    # -- observations ---------------------------------------------------------------------------------------------

    def condition(self, obs: dict[str, Tensor], hidden: dict[str, Tensor] | None = None) -> Conditioning:
        """Encodes an observation as the inputs of the RDT.

        Args:
            obs: Observation; the docstring of the class lists its fields.
            hidden: In training, what to mask or perturb: ``state``, ``language``, ``hz`` (R,) and ``images``
                (R, F, C) bool, True is masked; ``state_noise`` (R, V), added to the normalised state; ``jitter`` (R,
                C, 5), parameters of `jitter_images` for each camera. None masks and changes nothing.
        """
        assert len(self.language_tokens), "no instructions: call set_instructions first"
        state_mask, hz = obs["state_mask"], obs["hz"]
        state = self.normalize("state", obs["state"], state_mask)
        language, language_mask = self.language_tokens[obs["task"]], self.language_mask[obs["task"]]
        if hidden is not None:
            state = torch.where(state_mask, state + hidden["state_noise"], state)
            state_mask = state_mask & ~hidden["state"].unsqueeze(1)
            state = state * state_mask
            hz = torch.where(hidden["hz"], torch.zeros_like(hz), hz)
            # A masked instruction is one token of zeros, so that its length is masked too.
            first_token = torch.arange(language.shape[1], device=language.device) == 0
            language_mask = torch.where(hidden["language"].unsqueeze(1), first_token, language_mask)
            language = torch.where(hidden["language"].view(-1, 1, 1), torch.zeros_like(language), language)
        features, image_mask = self._image_features(obs, hidden)
        images, token_mask = self._image_tokens(features, image_mask, len(state))
        state_token = self._vector_tokens(state.unsqueeze(1), state_mask.unsqueeze(1))
        keyframe = None
        if self.keyframe_entries:
            keyframe = self.keyframe(state, state_mask, language, language_mask, features)
            # The loss of the chunks does not train the head: its output remains the position that its name states.
            offset = offset_features(keyframe.detach() - state[:, self.keyframe_entries])
            state_token = state_token + self.keyframe_adaptor(offset.to(state_token.dtype)).unsqueeze(1)
        return Conditioning(state_token, hz, self.lang_adaptor(language), language_mask, images, token_mask, keyframe)

    def _image_features(
        self, obs: dict[str, Tensor], hidden: dict[str, Tensor] | None
    ) -> tuple[Tensor | None, Tensor | None]:
        """Returns features of the images (R, F, C, P, D) and the mask (R, F, C) of the existing ones.

        `hidden` is the argument of `condition`. Masked images have the features `background`. Without images, both are
        None.
        """
        if "images" not in obs and "features" not in obs:
            return None, None
        features = obs["features"] if "features" in obs else self._encode_images(obs["images"], hidden)
        shape = self.shape
        _, frames, cameras, patches, _ = features.shape
        if (frames, patches) != (shape.frames, shape.patches) or cameras > shape.cameras:
            raise ConfigError(
                f"The images are {frames} frames of {cameras} cameras with {patches} patches; this policy observes "
                f"{shape.frames} frames of up to {shape.cameras} cameras with {shape.patches}. Write frames=, pixels= "
                f"and the image encoder (net.* or vision_encoder=) as in its training."
            )
        mask = obs["image_mask"] if hidden is None else obs["image_mask"] & ~hidden["images"]
        return torch.where(mask[..., None, None], features.to(self.background.dtype), self.background), mask

    def _image_tokens(self, features: Tensor | None, mask: Tensor | None, rows: int) -> tuple[Tensor, Tensor | None]:
        """Returns image tokens (R, F * C * P, D) with position embeddings, and their mask (R, F * C * P).

        The mask is True for tokens to attend to. `features` and `mask` are the results of `_image_features`. Without
        images, the result is one token of `background`, the learned features of a masked patch, and None as the mask.
        """
        if features is None or mask is None:
            token = self.img_adaptor(self.background).expand(rows, 1, -1)
            return token + self.model.image_positions(1)[:, :1], None
        cameras, patches = features.shape[2:4]
        all_masked = ~mask.flatten(1).any(1, keepdim=True)  # attention needs a token: then it is the background
        token_mask = (mask.flatten(1) | all_masked).repeat_interleave(patches, 1)
        return self.img_adaptor(features.flatten(1, 3)) + self.model.image_positions(cameras), token_mask

    def _encode_images(self, images: Tensor, hidden: dict[str, Tensor] | None) -> Tensor:
        """Encodes images.

        Args:
            images: (R rows, F frames, C cameras, H, W, 3) uint8.
            hidden: Draws of `RDTLearner` for training, of which ``jitter`` changes the colours; None changes nothing.

        Returns:
            Features (R, F, C, P patches, D).
        """
        assert self.vision is not None, "the observation has images, and the policy has no image encoder"
        rows, frames, cameras = images.shape[:3]
        draws = None
        if hidden is not None and "jitter" in hidden:
            draws = hidden["jitter"].unsqueeze(1).expand(-1, frames, -1, -1).flatten(0, 2)
        return self.vision(images.flatten(0, 2), draws).unflatten(0, (rows, frames, cameras))

    # -- chunks ---------------------------------------------------------------------------------------------------

    def denoise(self, conditioning: Conditioning, noisy: Tensor, action_mask: Tensor, step: Tensor) -> Tensor:
        """Predicts clean chunks of T actions from noisy ones, for R rows.

        Args:
            conditioning: Result of `condition`.
            noisy: Normalised actions with noise (R, T, V).
            action_mask: Mask (R, V) bool of the entries that actions have; all remaining entries are ignored.
            step: Diffusion steps (R,).

        Returns:
            Normalised chunks (R, T, V), float32 or wider.
        """
        mask = action_mask.unsqueeze(1)
        actions = self._vector_tokens(torch.where(mask, noisy, torch.zeros_like(noisy)), mask)
        prediction = self.model(
            torch.cat([conditioning.state_R1D, actions], 1),
            conditioning.hz,
            step,
            conditioning.language_RLD,
            conditioning.images_RLD,
            conditioning.language_mask,
            conditioning.image_mask,
        )
        return prediction.to(torch.promote_types(prediction.dtype, torch.float32))

    def forward(
        self,
        obs: dict[str, Tensor],
        noisy: Tensor,
        action_mask: Tensor,
        step: Tensor,
        hidden: dict[str, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Predicts clean chunks (R, T, V) for observations; `condition` and `denoise` explain the arguments.

        Returns:
            The chunks, and the predicted keyframe (R, 3) of `Conditioning`.
        """
        conditioning = self.condition(obs, hidden)
        return self.denoise(conditioning, noisy, action_mask, step), conditioning.keyframe_R3

    def keyframe_target(self, position: Tensor) -> Tensor:
        """Normalises positions of the end effector (R, 3) in metres, as the state and the predicted keyframes are."""
        entries = self.keyframe_entries
        return (position - self.state_mean[entries]) / self.state_std[entries]


def _rename_old_masks(module: nn.Module, state: dict[str, Tensor], prefix: str, *_: object) -> None:
    """Renames the masks in the state dict of an earlier version; torch calls it before it loads the state dict."""
    for old, new in OLD_MASKS.items():
        if prefix + old in state:
            state[prefix + new] = state.pop(prefix + old)
