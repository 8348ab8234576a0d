"""What a navigator sees as features: camera, depth, sketch, place. Suffixes: R rows, C channels, H, W, V pixels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from powerband.nets.efficient import EfficientNet
from powerband.nets.goal_net import POLAR, GoalNet, polar_of
from powerband.nets.sketch_view import GOAL_RGB, START_RGB, Surroundings, dots, unit

CHANNELS = (32, 64, 64)
KERNELS = ((8, 4), (4, 2), (3, 2))
"""Side and stride."""
LEAST_PX = 36
"""Below so many pixels nothing is left for the last kernel."""
GPS_M = 10.0
POSE, POSE_WIDTH = 4, 32
SQUARE_M = 0.25
"""Along a square of the explored map."""


@dataclass(frozen=True)
class SketchNetConfig:
    pictures: Literal["auto", "plain", "efficient"] = "auto"
    """What pictures are encoded by: three convolutions, or EfficientNet-B0 with group norms; auto is plain for ppo."""
    width: int = 512
    """Features of each picture."""
    channels: float = 1.0
    """Factor on the channels of the convolutions."""
    blocks: float = 1.0
    """Factor on the blocks of each stage of EfficientNet."""
    use_rgb: bool = True
    """See the camera's colours."""
    use_depth: bool = True
    """See the depth."""
    use_pose: bool = True
    """Know position and heading since the start (GPS and compass)."""
    around_m: float = 8.0
    """Metres of the sketch that are seen around where the agent should be on it, its heading up; 0 sees the page alone.
    Needs use_pose."""
    around_px: int = 52
    """Pixels along that part, 36 or more."""
    learn_size: bool = True
    """Learn from a page how many metres it is wide; false takes that of a plan of middling size, and is faster."""
    goal: bool = False
    """Predict from what was explored and from the sketch where the goal is, and tell the policy (ppo, around_m)."""

    def __post_init__(self) -> None:
        if self.width < 1 or not 0.125 <= self.channels <= 8:
            raise ValueError(f"width={self.width}, channels={self.channels}: give 1 or more, and 0.125 to 8.")
        if not 0 < self.blocks <= 4:
            raise ValueError(f"blocks={self.blocks:g}: give more than 0, up to 4.")
        if not 0 <= self.around_m <= 100 or (self.around_m and not self.use_pose):
            raise ValueError(f"around_m={self.around_m:g}: give 0 to 100 m, and 0 where use_pose is false.")
        if self.goal and not self.around_m:
            raise ValueError("net.goal=true needs the sketch laid over the world: write around_m=8.")


class PictureNet(nn.Module):
    """Three convolutions and a linear layer. Source: Mnih et al. 2015, with a stride of 2 at the last."""

    def __init__(self, channels: int, pixels: int, width: int, factor: float = 1.0):
        """
        Args:
            channels: C of the picture.
            pixels: Its side, 36 or more.
            width: Features.
            factor: On the channels of the convolutions.

        Raises:
            ValueError: Too few pixels.
        """
        super().__init__()
        if pixels < LEAST_PX:
            raise ValueError(f"a picture of {pixels} pixels is too small for the kernels: give {LEAST_PX} or more.")
        widths, side = [channels, *(max(8, round(factor * width)) for width in CHANNELS)], pixels
        layers = []
        for number, (kernel, stride) in enumerate(KERNELS):
            layers.append(nn.Conv2d(widths[number], widths[number + 1], kernel, stride))
            side = (side - kernel) // stride + 1
        self.convs = nn.ModuleList(layers)
        self.linear = nn.Linear(widths[-1] * side * side, width)
        for layer in [*layers, self.linear]:
            nn.init.orthogonal_(layer.weight, 2**0.5)
            nn.init.zeros_(layer.bias)

    def forward(self, x_RCHW: Tensor) -> Tensor:
        """(R, C, H, W) floats in 0..1 -> (R, width)."""
        kind = (
            x_RCHW.device.type
        )  # one copy: to the type of the products, and 1.6 times as fast from the second layer on
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x_RCHW.dtype
        x_RCHW = x_RCHW.to(dtype, memory_format=torch.channels_last)
        for conv in self.convs:
            x_RCHW = torch.relu(conv(x_RCHW))
        return torch.relu(self.linear(x_RCHW.flatten(1)))


KEPT = 2
"""Batches of agents whose codes are kept: two halves may act by turns."""


class EpisodeCodes(nn.Module):
    """Codes of sketches, which do not change while an episode lasts.

    A sketch is encoded once an episode in each update, and between updates once an episode: codes are kept until a
    forward pass with gradients, after which weights change.
    """

    def __init__(self, net: nn.Module, sketches: Tensor):
        """
        Args:
            net: (n, 3, s, s) floats, 0 where the page is white -> (n, width).
            sketches: (E, 3, s, s) uint8, by number of the episode; not part of the state.
        """
        super().__init__()
        self.net = net
        self._lay_out(sketches)
        self._kept: list[tuple[Tensor, tuple[Tensor, Tensor, Tensor]]] = []
        self.register_load_state_dict_post_hook(lambda module, _: module.forget())

    def forget(self) -> None:
        """Encode all sketches anew: weights or sketches have changed."""
        self._kept.clear()

    def show(self, sketches: Tensor) -> None:
        """Episodes of another set from now on: (E', 3, s, s) uint8."""
        self._lay_out(sketches)
        self.forget()

    def _lay_out(self, sketches: Tensor) -> None:
        self.sketches = sketches
        self.starts, self.goals = dots(sketches, START_RGB), dots(sketches, GOAL_RGB)

    def forward(self, episode: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Codes of episodes' sketches.

        Args:
            episode: (R,) int64 numbers.

        Returns:
            Codes (R, width); the ink (U, 3, s, s) of the sketches, each once; which of them each row has, (R,).
        """
        learning = torch.is_grad_enabled()
        if learning:
            self.forget()
        else:
            for episodes, found in self._kept:
                if torch.equal(episodes, episode):
                    return found
        numbers, where = torch.unique(episode, return_inverse=True)
        ink = 1 - unit(self.sketches.index_select(0, numbers))
        found = self.net(ink)[where], ink, where
        if not learning:
            self._kept = [*self._kept, (episode.clone(), found)][-KEPT:]
        return found


class SketchNet(nn.Module):
    """Encoder of a navigator's observations."""

    def __init__(
        self, sketches: Tensor, pixels: int, config: SketchNetConfig, page_m: float = 10.0, frames: int = 1
    ) -> None:
        """
        Args:
            sketches: (E, 3, s, s) uint8, by number of the episode.
            pixels: Side of the camera's pictures.
            config: Widths and senses.
            page_m: Metres along a page, as far as is known before any is seen.
            frames: Pictures of the camera that are seen together, along the channels.
        """
        super().__init__()
        side = sketches.shape[-1]

        def net(channels: int, pixels: int) -> nn.Module:
            if config.pictures == "efficient":
                return EfficientNet(channels, config.width, config.channels, config.blocks)
            return PictureNet(channels, pixels, config.width, config.channels)

        self.sketch = EpisodeCodes(net(3, side), sketches)
        self.around = self.surroundings = None
        if config.around_m:
            self.around = net(3, config.around_px)
            sizes = config.around_m, config.around_px, config.learn_size
            self.surroundings = Surroundings(config.width, page_m, *sizes)
        self.rgb = net(3 * frames, pixels) if config.use_rgb else None
        self.depth = net(frames, pixels) if config.use_depth else None
        self.pose = nn.Linear(POSE, POSE_WIDTH) if config.use_pose else None
        senses = 1 + bool(config.around_m) + config.use_rgb + config.use_depth
        self.width = senses * config.width + (POSE_WIDTH if config.use_pose else 0)
        self.goal = GoalNet() if config.goal else None
        self.width += POLAR if config.goal else 0
        self._predicted: Tensor | None = None

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        """Observations with leaves (R, ...), as `SketchNavEnv` gives them -> (R, width)."""
        episode = obs["episode"]
        codes, ink, where = self.sketch(episode)
        parts = [codes]
        if self.surroundings is not None:
            starts = self.sketch.starts.index_select(0, episode)
            parts.append(self.around(self.surroundings(ink, where, starts, codes, obs["gps"], obs["compass"])))
        if self.goal is not None:
            dots = starts, self.sketch.goals.index_select(0, episode)
            page_m = self.surroundings.size_m(codes).detach()
            self._predicted = self.goal(obs["explored"], SQUARE_M, ink, where, *dots, page_m)
            parts.append(polar_of(self._predicted.detach(), obs["gps"], obs["compass"]))
        for name in ("rgb", "depth"):
            net = getattr(self, name)
            if net is not None:
                parts.append(net(unit(obs[name])))
        if self.pose is not None:
            parts.append(torch.relu(self.pose(pose_of(obs))))
        return torch.cat([part.float() for part in parts], 1)

    def auxiliary(self, obs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Losses of what the last forward pass predicted: 0-d tensors by name; obs with leaves (..., ...)."""
        if self.goal is None:
            return {}
        return {"goal": F.mse_loss(self._predicted, obs["goal"].reshape(-1, 2)) / GPS_M**2}

    @torch.no_grad()
    def believed(self, obs: dict[str, Tensor]) -> Tensor | None:
        """(R, 2) in 0..1: where on the page the agents take themselves to be; None without `around_m`."""
        if self.surroundings is None:
            return None
        page_m = self.surroundings.size_m(self.sketch(obs["episode"])[0])
        return self.sketch.starts.index_select(0, obs["episode"]) + obs["gps"] / page_m


def pose_of(obs: dict[str, Tensor]) -> Tensor:
    """(R, 4): tens of metres since the start, sine and cosine of the heading."""
    turn = obs["compass"]
    return torch.cat([obs["gps"] / GPS_M, turn.sin(), turn.cos()], 1)
