"""Encoders: turn observations with images or categories into one feature vector per row.

Images pass a convolutional network, categories become one-hot vectors, and other entries are joined unchanged. Images
stay bytes until `ObsEncoder.forward`, which scales them to 0..1 on their device.

Shapes: B rows, C channels, H height and W width of an image, F features.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from powerband.core.errors import ConfigError
from powerband.core.optim.precision import Precision
from powerband.data.types import TensorSpec, Tree, tree_paths
from powerband.nets.choices import ImageNet
from powerband.nets.observations.features import RESERVED

NATURE_MIN_SIDE = 36
"""Smallest side of an image, in pixels, that the three strided layers of the Nature network accept."""
IMPALA_MIN_SIDE = 16
"""Smallest side of an image, in pixels, that leaves the last layer of the IMPALA network more than one position."""


@dataclass(frozen=True)
class ImageLayout:
    """Position of the axes of an image in an observation.

    Attributes:
        channels, height, width: Sizes of the image; the channels of stacked frames are joined.
        order: Permutation that moves the axes of the observation to (frames, channels, height, width).
        shape: Shape of the observation with all four axes; an absent axis has length 1.
    """

    channels: int
    height: int
    width: int
    order: tuple[int, int, int, int]
    shape: tuple[int, int, int, int]


def image_layout(spec: TensorSpec) -> ImageLayout | None:
    """Returns the axes of the image in an entry of an observation, given its spec; None if the entry is not an image.

    Images are entries of rank 3, such as (height, width, channels) or (channels, height, width), and stacks of such
    frames (rank 4). Entries of rank 2 are images if they consist of bytes and have sides of 8 or more. The channels are
    the first or the last axis of a frame, whichever is shorter.
    """
    shape = spec.shape
    if spec.categories or not 2 <= len(shape) <= 4:
        return None
    if len(shape) == 2:
        if spec.dtype != torch.uint8 or min(shape) < 8:
            return None
        return ImageLayout(1, *shape, order=(0, 1, 2, 3), shape=(1, 1, *shape))
    frames = shape[0] if len(shape) == 4 else 1
    first, middle, last = shape[-3:]
    if first < last:
        return ImageLayout(frames * first, middle, last, (0, 1, 2, 3), (frames, first, middle, last))
    return ImageLayout(frames * last, first, middle, (0, 3, 1, 2), (frames, first, middle, last))


def needs_encoder(obs: Tree, num_agents: int | None = None) -> bool:
    """Returns whether observations contain images or categories.

    Args:
        obs: Specs of the observations of one environment.
        num_agents: Length of the agent axis that leads each entry; None without this axis.
    """
    specs = [_of_one_agent(spec, num_agents) for path, spec in tree_paths(obs) if _is_read(path)]
    return any(spec.categories or image_layout(spec) for spec in specs)


class ObsEncoder(nn.Module):
    """Network that maps an observation, a tree of tensors with images or categories, to one feature vector per row.

    Attributes:
        width: Number of features per row.
    """

    def __init__(self, obs: Tree, num_agents: int | None = None, image_net: ImageNet = "auto") -> None:
        """
        Args:
            obs: Specs of the observations of one environment.
            num_agents: Length of the agent axis that leads each entry; None without this axis.
            image_net: Network of images. ``auto`` is ``nature`` for sides of 36 pixels or more, otherwise ``small``;
                ``flat`` joins scaled pixels to the other features.

        Raises:
            ConfigError: An image is too small for `image_net`.
        """
        super().__init__()
        self.layouts: dict[str, ImageLayout] = {}
        self.scales: dict[str, float] = {}
        self.categories: dict[str, tuple[int, ...]] = {}
        self.images = nn.ModuleDict()
        self.width = 0
        for path, spec in tree_paths(obs):
            if not _is_read(path):
                continue
            spec = _of_one_agent(spec, num_agents)
            self.scales[path] = 1.0 / spec.high if spec.high else 1.0
            layout = image_layout(spec)
            if layout is not None and image_net != "flat":
                net = image_network(layout.channels, layout.height, layout.width, image_net)
                self.layouts[path], self.images[_module_name(path)] = layout, net
                self.width += net.width
            elif spec.categories:
                self.categories[path] = spec.categories
                self.width += sum(spec.categories)
            else:
                self.width += math.prod(spec.shape)

    def forward(self, obs: Tree) -> Tensor:
        """Maps observations of B rows, whose leaves have shapes (B, ...), to features (B, width) float32."""
        parts = []
        for path, leaf in tree_paths(obs):
            if not _is_read(path):
                continue
            rows = len(leaf)
            if path in self.categories:
                columns = leaf.reshape(rows, -1).unbind(1)
                sizes = self.categories[path]
                parts += [F.one_hot(column, size).float() for column, size in zip(columns, sizes, strict=True)]
                continue
            x = leaf.float() * self.scales[path] if self.scales[path] != 1.0 else leaf.float()
            if path not in self.layouts:
                parts.append(x.reshape(rows, -1))
                continue
            layout = self.layouts[path]
            x = x.view(rows, *layout.shape).permute(0, *(axis + 1 for axis in layout.order))
            x = x.reshape(rows, layout.channels, layout.height, layout.width)
            parts.append(self.images[_module_name(path)](x).float())
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


def encode(encoder: ObsEncoder, obs: Tree, precision: Precision) -> Tensor:
    """Maps observations of B rows, whose leaves have shapes (B, ...), to features (B, F numbers).

    Matrix products and convolutions run in `precision`.
    """
    with precision.autocast():
        return encoder(obs)


class ImageNetwork(nn.Module):
    """Convolutions, then one linear layer with ReLU.

    Args:
        convolutions: Module that maps B images (B, C, H, W) to feature maps (B, C', H', W').
        shape: (C, H, W) of the images: channels, height and width.
        width: Width of the linear layer.
    """

    def __init__(self, convolutions: nn.Sequential, shape: tuple[int, int, int], width: int) -> None:
        super().__init__()
        self.convolutions, self.width = convolutions, width
        # On CPUs, one convolution of a small image is 1.1 to 1.5 times as fast on channels-first memory. The larger
        # networks are slower on it, so that they keep the order of the observation.
        self.channels_first = min(shape[1:]) < IMPALA_MIN_SIDE
        with torch.no_grad():
            flat = convolutions(torch.zeros(1, *shape)).numel()
        self.linear = nn.Linear(flat, width)

    def forward(self, image: Tensor) -> Tensor:
        """Maps B images (B, channels, height, width) to features (B, width of the last layer)."""
        image = image.contiguous() if self.channels_first else image
        return torch.relu(self.linear(self.convolutions(image).flatten(1)))


class Residual(nn.Module):
    """Residual block: adds the result of two 3x3 convolutions to its input, B images or maps (B, channels, H, W)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(torch.relu(self.first(torch.relu(x))))


def image_network(channels: int, height: int, width: int, kind: ImageNet) -> ImageNetwork:
    """Creates the network for images of `channels` x `height` x `width`.

    - ``nature``: three strided convolutions and 512 features. Source: Mnih et al. 2015.
    - ``impala``: three residual stages and 256 features. Source: Espeholt et al. 2018, the deep network.
    - ``small``: one 3x3 convolution and 128 features. Source: Young and Tian 2019, MinAtar.

    Raises:
        ConfigError: The image is too small for the network.
    """
    side = min(height, width)
    if kind == "auto":
        kind = "nature" if side >= NATURE_MIN_SIDE else "small"
    least = {"nature": NATURE_MIN_SIDE, "impala": IMPALA_MIN_SIDE, "small": 3}[kind]
    if side < least:
        raise ConfigError(
            f"image_net={kind} needs images of {least} x {least} pixels or more; this one has {height} x {width}. "
            f"Write image_net={'small' if side >= 3 else 'flat'}."
        )
    shape = (channels, height, width)
    if kind == "small":
        return ImageNetwork(nn.Sequential(nn.Conv2d(channels, 16, 3), nn.ReLU()), shape, 128)
    if kind == "nature":
        layers = [nn.Conv2d(channels, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU()]
        return ImageNetwork(nn.Sequential(*layers, nn.Conv2d(64, 64, 3), nn.ReLU()), shape, 512)
    stages: list[nn.Module] = []
    for inputs, outputs in ((channels, 16), (16, 32), (32, 32)):
        stages += [
            nn.Conv2d(inputs, outputs, 3, padding=1),
            nn.MaxPool2d(3, 2, 1),
            Residual(outputs),
            Residual(outputs),
        ]
    return ImageNetwork(nn.Sequential(*stages, nn.ReLU()), shape, 256)


def _is_read(path: str) -> bool:
    """Returns whether the actor reads the entry at `path`."""
    return path.split("/")[0] not in RESERVED


def _of_one_agent(spec: TensorSpec, num_agents: int | None) -> TensorSpec:
    """Returns `spec` without the agent axis that leads its shape; `spec` itself if `num_agents` is None."""
    if num_agents is None:
        return spec
    return TensorSpec(spec.shape[1:], spec.dtype, spec.categories[: math.prod(spec.shape[1:])], spec.high)


def _module_name(path: str) -> str:
    """Name of the network of the entry at `path`; module names contain no dots."""
    return path.replace(".", "_") or "image"
