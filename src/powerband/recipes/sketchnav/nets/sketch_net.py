"""SketchNet: encodes camera images, sketch and pose of each agent as features.

Shapes: R rows (agents), E episodes, U distinct pages, C channels, images of H x W pixels, s pixels along a sketch.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from powerband.core.errors import ConfigError
from powerband.nets.observations.auxiliary import AuxiliaryLosses
from powerband.recipes.sketchnav.nets.efficient_net import EfficientNet
from powerband.recipes.sketchnav.nets.goal_net import POLAR, GoalNet, polar_features
from powerband.recipes.sketchnav.nets.sketch_view import SketchCrop, find_dots, in_metres, on_page, to_unit_range
from powerband.recipes.sketchnav.plans.sketch import GOAL_RGB, START_RGB
from powerband.recipes.sketchnav.settings import MAP_SQUARE_M, SketchNetConfig

CHANNELS = (32, 64, 64)
"""Channels of the three convolutions of `ConvEncoder`."""
KERNELS = ((8, 4), (4, 2), (3, 2))
"""Side and stride of the kernels of these convolutions."""
MIN_CONV_PX = 36
"""Smallest image for which the last kernel has an input."""
GPS_M = 10.0
"""Unit of distances as features, in metres."""
AUXILIARY_M2 = {"goal": GPS_M**2, "frame": 10.0}
"""Squared error, in square metres, that counts as a loss of 1. The frames learn from few pages, so they count more."""
POSE, POSE_WIDTH = 4, 32
"""How many numbers describe a pose, and how many features encode it."""
CACHED_BATCHES = 2
"""Batches of agents whose codes are cached: double-buffered collection alternates between two halves."""


class ConvEncoder(nn.Module):
    """Three convolutions and a linear layer. Source: Mnih et al. 2015, with a stride of 2 in the last convolution."""

    def __init__(self, channels: int, pixels: int, width: int, factor: float = 1.0):
        """
        Args:
            channels: C, channels of an image.
            pixels: Side of an image, 36 or more.
            width: Number of features.
            factor: Factor on the channels of the convolutions.

        Raises:
            ConfigError: The image is too small.
        """
        super().__init__()
        if pixels < MIN_CONV_PX:
            raise ConfigError(
                f"An image side of {pixels} pixels is too small for net.image_encoder=plain. Set pixels, "
                f"scenes.sketch_px and net.crop_px to {MIN_CONV_PX} or more."
            )
        widths, side = [channels, *(max(8, round(factor * width)) for width in CHANNELS)], pixels
        layers: list[nn.Conv2d] = []
        for number, (kernel, stride) in enumerate(KERNELS):
            layers.append(nn.Conv2d(widths[number], widths[number + 1], kernel, stride))
            side = (side - kernel) // stride + 1
        self.convs = nn.ModuleList(layers)
        self.linear = nn.Linear(widths[-1] * side * side, width)
        weighted: tuple[nn.Conv2d | nn.Linear, ...] = (*layers, self.linear)
        for layer in weighted:
            assert layer.bias is not None
            nn.init.orthogonal_(layer.weight, 2**0.5)
            nn.init.zeros_(layer.bias)

    def forward(self, x_RCHW: Tensor) -> Tensor:
        """Encodes R images (R, C, H, W) of H x W pixels, floats in 0..1, as features (R, width)."""
        kind = x_RCHW.device.type
        # One copy changes dtype and memory format; channels_last makes the later layers 1.6 times as fast.
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x_RCHW.dtype
        x_RCHW = x_RCHW.to(dtype, memory_format=torch.channels_last)
        for conv in self.convs:
            x_RCHW = torch.relu(conv(x_RCHW))
        return torch.relu(self.linear(x_RCHW.flatten(1)))


class SketchEncoder(nn.Module):
    """Encoder of sketches with a cache, because a sketch does not change during an episode.

    During an update, each distinct sketch of a batch is encoded once. Between updates, the features (codes) are cached
    until a forward pass with gradients, because the weights change after that pass.

    Attributes:
        sketches: Sketches (E, 3, s, s) uint8 of E episodes, with s x s pixels; not part of the state.
        starts, goals: Positions (x, y) of the start and goal dots on the sketches, (E, 2), in 0..1.
    """

    def __init__(self, net: nn.Module, sketches: Tensor):
        """
        Args:
            net: Network from n sketch images (n, 3, s, s), floats in which white is 0, to features (n, width).
            sketches: Sketch images (E, 3, s, s) uint8 of E episodes, indexed by episode number.
        """
        super().__init__()
        self.net = net
        self._assign(sketches)
        self._cache: list[tuple[Tensor, tuple[Tensor, Tensor, Tensor]]] = []
        self.register_load_state_dict_post_hook(lambda module, _: module.clear_cache())

    def clear_cache(self) -> None:
        """Discards all cached codes, because weights or sketches have changed."""
        self._cache.clear()

    def set_sketches(self, sketches: Tensor) -> None:
        """Replaces the sketches by those (E', 3, s, s) uint8 of another set of E' episodes, with s x s pixels."""
        self._assign(sketches)
        self.clear_cache()

    def _assign(self, sketches: Tensor) -> None:
        self.sketches = sketches
        self.starts, self.goals = find_dots(sketches, START_RGB), find_dots(sketches, GOAL_RGB)

    def forward(self, episode: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Encodes the sketches of the episodes of R agents (rows).

        Args:
            episode: Episode numbers (R,) int64.

        Returns:
            (codes, pages, index): features (R, width); the U distinct sketch images (U, 3, s, s), 0 where an image is
            white; the index (R,) of the image of each row.
        """
        learning = torch.is_grad_enabled()
        if learning:
            self.clear_cache()
        else:
            for episodes, cached in self._cache:
                if torch.equal(episodes, episode):
                    return cached
        numbers, page = torch.unique(episode, return_inverse=True)
        ink = 1 - to_unit_range(self.sketches.index_select(0, numbers))
        encoded = self.net(ink)[page], ink, page
        if not learning:
            self._cache = [*self._cache, (episode.clone(), encoded)][-CACHED_BATCHES:]
        return encoded


class SketchNet(nn.Module, AuxiliaryLosses):
    """Network that encodes the observations of sketchnav as features.

    Attributes:
        width: Number of features.
        image_keys: Keys of the camera images that the encoder reads from an observation.
    """

    def __init__(
        self, sketches: Tensor, pixels: int, config: SketchNetConfig, page_m: float = 10.0, frames: int = 1
    ) -> None:
        """
        Args:
            sketches: Sketches (E, 3, s, s) uint8 of E episodes, with s x s pixels, by episode number.
            pixels: Side of the camera images.
            config: Sizes and inputs of the encoder.
            page_m: Initial estimate of the side of the area that a sketch image (page) shows, in metres.
            frames: Camera images per observation, along the channels.
        """
        super().__init__()
        side = sketches.shape[-1]

        def net(channels: int, pixels: int) -> nn.Module:
            if config.image_encoder == "efficient":
                return EfficientNet(channels, config.width, config.channels, config.blocks)
            return ConvEncoder(channels, pixels, config.width, config.channels)

        self.sketch = SketchEncoder(net(3, side), sketches)
        self.around: nn.Module | None = None
        self.surroundings: SketchCrop | None = None
        if config.crop_m:
            self.around = net(3, config.crop_px)
            self.surroundings = SketchCrop(config.width, page_m, config.crop_m, config.crop_px, config.learned)
        self.rgb = net(3 * frames, pixels) if config.use_rgb else None
        self.depth = net(frames, pixels) if config.use_depth else None
        self.pose = nn.Linear(POSE, POSE_WIDTH) if config.use_pose else None
        images = 1 + bool(config.crop_m) + config.use_rgb + config.use_depth
        self.width = images * config.width + (POSE_WIDTH if config.use_pose else 0)
        self.goal = GoalNet() if config.goal else None
        self.drawn_goal, self.align_page, self.page_m = config.drawn_goal, config.align_page, page_m
        self.width += POLAR * (config.goal + config.drawn_goal)
        self._predictions: dict[str, Tensor] = {}
        self.image_keys = tuple(name for name, used in (("rgb", config.use_rgb), ("depth", config.use_depth)) if used)

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        """Encodes the observations of R agents, as `SketchNavEnv` returns them, as features (R, width)."""
        episode = obs["episode"]
        codes, ink, page = self.sketch(episode)
        parts = [codes]
        starts, goals = (dots.index_select(0, episode) for dots in (self.sketch.starts, self.sketch.goals))
        self._predictions = {}
        if self.drawn_goal or self.align_page:
            drawn = in_metres(self.frame(codes), goals - starts)
            if self.align_page:
                self._predictions["frame"] = drawn
            if self.drawn_goal:
                parts.append(polar_features(drawn.detach(), obs["gps"], obs["compass"]))
        if self.surroundings is not None and self.around is not None:
            crops = self.surroundings(ink, page, starts, codes, obs["gps"], obs["compass"])
            parts.append(self.around(crops))
            if self.goal is not None:
                frame = self.frame(codes).detach()
                predicted = self.goal(obs["explored"], MAP_SQUARE_M, ink, page, starts, goals, frame)
                parts.append(polar_features(predicted.detach(), obs["gps"], obs["compass"]))
                self._predictions["goal"] = predicted
        if self.rgb is not None:
            parts.append(self.rgb(to_unit_range(obs["rgb"])))
        if self.depth is not None:
            parts.append(self.depth(to_unit_range(obs["depth"])))
        if self.pose is not None:
            parts.append(torch.relu(self.pose(pose_features(obs))))
        return torch.cat([part.float() for part in parts], 1)

    def frame(self, codes: Tensor) -> Tensor:
        """Returns the frames (R, 2, 2) of R pages with the features `codes` (R, width): learned, or constant."""
        if self.surroundings is None:
            return self.page_m * torch.eye(2, device=codes.device).expand(len(codes), 2, 2)
        return self.surroundings.frame(codes)

    def auxiliary(self, obs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Returns the losses of the goal positions that the last forward pass predicted.

        Args:
            obs: Observations of the last forward pass with any leading axes.

        Returns:
            Mean squared errors (0-d) of positions: ``goal`` of `GoalNet` and ``frame`` of the frames of the pages. An
            encoder without these parts has no entries.
        """
        return {
            name: F.mse_loss(predicted, obs["goal"].reshape(-1, 2)) / AUXILIARY_M2[name]
            for name, predicted in self._predictions.items()
        }

    @torch.no_grad()
    def estimated_position(self, obs: dict[str, Tensor]) -> Tensor | None:
        """Estimates the positions (R, 2) of R agents on their sketches, in 0..1.

        Returns None if the encoder does not crop sketches.
        """
        if self.surroundings is None:
            return None
        frame = self.frame(self.sketch(obs["episode"])[0])
        return self.sketch.starts.index_select(0, obs["episode"]) + on_page(frame, obs["gps"])


def pose_features(obs: dict[str, Tensor]) -> Tensor:
    """Computes features of the poses of R agents.

    Args:
        obs: Observations with ``gps`` (R, 2) in metres from the start, and ``compass`` (R, 1), headings in radians.

    Returns:
        Features (R, 4): the position in tens of metres, and the sine and cosine of the heading.
    """
    heading = obs["compass"]
    return torch.cat([obs["gps"] / GPS_M, heading.sin(), heading.cos()], 1)
