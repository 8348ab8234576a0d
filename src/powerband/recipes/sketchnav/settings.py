"""Defines the settings of rules, sensors, episodes and encoder of sketchnav, without importing torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from powerband.core.errors import ConfigError

Split = Literal["train", "val_seen", "val_unseen"]
SPLITS: tuple[Split, ...] = ("train", "val_seen", "val_unseen")
Level = Literal["smooth", "abstract", "true", "blank"]
LEVELS: tuple[Level, ...] = ("smooth", "abstract", "true", "blank")
"""Levels of abstraction of a sketch; `plans.sketch` describes them."""
MIN_PIXELS, MAX_PIXELS = 16, 512
"""Range of the side of a camera image."""
SUBSTEP_M = 0.025
"""Length of the substeps of a move; each substep is checked for collisions."""
DEFAULT_SHADING = 0.08
"""Default of `Sensors.shading`, with which the stored results and demonstrations were made."""
MIN_SIZE_M, MAX_SIZE_M = 8.0, 24.0
"""Range of the width and height of a floor plan."""
PAGE_PX = 512
"""Side of a drawn page in pixels."""
MARGIN_PX = 34
"""Blank margin of a page in pixels."""
MAP_SQUARE_M = 0.25
"""Side of a square of the explored map in metres."""
MAP_SQUARES = 96
"""Squares along one side of the explored map, which therefore reaches 12 m from the start."""


@dataclass(frozen=True)
class Rules:
    """Rules of an episode: success, moves and reward.

    Raises:
        ConfigError: A value is out of range.
    """

    success_m: float = 1.0
    """STOP succeeds if the shortest path to the goal is at most this long, in metres."""
    forward_m: float = 0.25
    """Length of the action FORWARD in metres; 1.0 in the code that this recipe replaces."""
    max_steps: int = 500
    """Actions after which an episode is truncated."""
    expert_bonus: float = 0.0
    """Reward for the action that the shortest-path follower would take; 0.1 in the code that this recipe
    replaces."""

    def __post_init__(self) -> None:
        if not 0.1 <= self.success_m <= 5:
            raise ConfigError(f"rules.success_m={self.success_m:g} is outside 0.1 to 5 m. Write rules.success_m=1.")
        substeps = self.forward_m / SUBSTEP_M
        if not 0 < self.forward_m <= 2 or abs(substeps - round(substeps)) > 1e-6:
            raise ConfigError(
                f"rules.forward_m={self.forward_m:g} is not a multiple of {SUBSTEP_M:g} m up to 2 m. Write "
                f"rules.forward_m=0.25."
            )
        if not 1 <= self.max_steps <= 100_000:
            raise ConfigError(f"rules.max_steps={self.max_steps} is outside 1 to 100000. Write rules.max_steps=500.")
        if not 0 <= self.expert_bonus <= 10:
            raise ConfigError(
                f"rules.expert_bonus={self.expert_bonus:g} is outside 0 to 10. Write rules.expert_bonus=0.1."
            )


@dataclass(frozen=True)
class Sensors:
    """Light and sensor noise. All noise is off by default.

    Raises:
        ConfigError: A value is out of range.
    """

    shading: float = DEFAULT_SHADING
    """Light falls with depth as 1 / (1 + shading z), z in metres; 0 lights all distances equally (renderer=caster)."""
    depth_noise: float = 0.0
    """Standard deviation of depth at 1 m, in metres. It grows with the square of depth and is added before depth is
    clipped to 0.5 to 5 m. 0.001425 is a Kinect's (Khoshelham and Elberink 2012): 36 mm at 5 m."""
    rgb_noise: float = 0.0
    """Standard deviation of each colour of each pixel, in levels of 255."""
    gps_noise_m: float = 0.0
    """Standard deviation of both GPS coordinates of each reading, in metres; it does not accumulate."""
    compass_noise_deg: float = 0.0
    """Standard deviation of the compass at each reading, in degrees."""

    def __post_init__(self) -> None:
        limits = {"shading": 1.0, "depth_noise": 0.1, "rgb_noise": 128.0, "gps_noise_m": 5.0, "compass_noise_deg": 60.0}
        for name, limit in limits.items():
            value = getattr(self, name)
            if not 0 <= value <= limit:
                raise ConfigError(
                    f"sensors.{name}={value:g} is outside 0 to {limit:g}. Write sensors.{name}=0 to turn it off."
                )

    @property
    def image_noise(self) -> bool:
        """True if colours or depth are noisy."""
        return self.depth_noise > 0 or self.rgb_noise > 0

    @property
    def pose_noise(self) -> bool:
        """True if GPS or compass are noisy."""
        return self.gps_noise_m > 0 or self.compass_noise_deg > 0


@dataclass(frozen=True)
class EpisodeConfig:
    """Distribution of floor plans, episodes and sketches.

    Raises:
        ConfigError: A value is out of range, or a range is empty.
    """

    min_size_m: float = 8.0
    """Smallest width and height of a plan, in metres (8 to 24)."""
    max_size_m: float = 24.0
    """Largest width and height of a plan, in metres."""
    plans: int = 200
    """Plans of a split."""
    goals: int = 5
    """Goals in each plan."""
    starts: int = 4
    """Starts for each goal; each start is one episode."""
    min_path_m: float = 2.0
    """Smallest length of the shortest path from start to goal, in metres."""
    max_path_m: float = 30.0
    """Largest length of the shortest path, in metres."""
    min_path_ratio: float = 1.0
    """Smallest ratio of the length of the shortest path to the straight-line distance."""
    sketch: Literal["smooth", "abstract", "mixed", "true", "blank"] = "mixed"
    """Level of the sketches: mixed alternates smooth and abstract, true is the plan itself, blank is an empty page."""
    sketch_px: int = 64
    """Side of the sketch that the policy sees, in pixels."""

    def __post_init__(self) -> None:
        if not MIN_SIZE_M <= self.min_size_m <= self.max_size_m <= MAX_SIZE_M:
            raise ConfigError(
                f"scenes.min_size_m={self.min_size_m:g} and scenes.max_size_m={self.max_size_m:g} do not form a range "
                f"within {MIN_SIZE_M:g} to {MAX_SIZE_M:g} m. Write scenes.min_size_m=8 scenes.max_size_m=24."
            )
        if min(self.plans, self.goals, self.starts) < 1:
            raise ConfigError(
                f"scenes.plans={self.plans}, scenes.goals={self.goals}, scenes.starts={self.starts}: each must be 1 "
                f"or more. Write scenes.plans=200 scenes.goals=5 scenes.starts=4, for example."
            )
        if not 0 < self.min_path_m < self.max_path_m:
            raise ConfigError(
                f"scenes.min_path_m={self.min_path_m:g} and scenes.max_path_m={self.max_path_m:g} do not form a range "
                f"above 0. Write scenes.min_path_m=2 scenes.max_path_m=30."
            )
        if not 1 <= self.min_path_ratio <= 3:
            raise ConfigError(
                f"scenes.min_path_ratio={self.min_path_ratio:g} is outside 1 to 3. Write scenes.min_path_ratio=1."
            )
        if not 16 <= self.sketch_px <= 512:
            raise ConfigError(f"scenes.sketch_px={self.sketch_px} is outside 16 to 512. Write scenes.sketch_px=64.")

    @property
    def count(self) -> int:
        """Number of episodes of a split."""
        return self.plans * self.goals * self.starts

    @property
    def page_m(self) -> float:
        """Width in metres that a page (sketch image) shows for a plan of medium size.

        The medium size is the geometric mean of the smallest and the largest size.
        """
        return math.sqrt(self.min_size_m * self.max_size_m) * PAGE_PX / (PAGE_PX - 2 * MARGIN_PX)

    def level(self, episode: int) -> Level:
        """Returns the level of abstraction of the sketch of episode number `episode`."""
        if self.sketch == "mixed":
            return "abstract" if episode % 2 else "smooth"
        return self.sketch


@dataclass(frozen=True)
class SketchNetConfig:
    """Settings of the network that encodes observations.

    Raises:
        ConfigError: A value is out of range, or two settings contradict each other.
    """

    image_encoder: Literal["auto", "plain", "efficient"] = "auto"
    """Encoder of images: plain is three convolutions, efficient is EfficientNet-B0 with group norms; auto is plain for
    ppo and efficient for diffusion and clone."""
    width: int = 512
    """Features per image."""
    channels: float = 1.0
    """Factor on the channels of the convolutions."""
    blocks: float = 1.0
    """Factor on the number of blocks of each stage of EfficientNet."""
    use_rgb: bool = True
    """Observe the colours of the camera."""
    use_depth: bool = True
    """Observe the depth of the camera."""
    use_pose: bool = True
    """Observe position and heading since the start (GPS and compass)."""
    crop_m: float = 8.0
    """Side, in metres, of the crop of the sketch around the agent's estimated position, with its heading up; 0 shows
    the page alone. Needs net.use_pose=true."""
    crop_px: int = 52
    """Side of the crop in pixels, 36 or more."""
    learn_page_size: bool = True
    """Learn the size of a page in metres from its image; false takes the size of a medium plan, and is faster."""
    goal: bool = False
    """Predict the goal position from the explored map and the sketch, as an input of the policy; needs algo=ppo and
    net.crop_m above 0."""

    def __post_init__(self) -> None:
        if self.width < 1 or not 0.125 <= self.channels <= 8:
            raise ConfigError(
                f"net.width={self.width}, net.channels={self.channels}: net.width must be 1 or more and "
                f"net.channels 0.125 to 8. Write net.width=512 net.channels=1."
            )
        if not 0 < self.blocks <= 4:
            raise ConfigError(f"net.blocks={self.blocks:g} must be above 0 and at most 4. Write net.blocks=1.")
        if not 0 <= self.crop_m <= 100:
            raise ConfigError(
                f"net.crop_m={self.crop_m:g} is outside 0 to 100 m. Write net.crop_m=8, or net.crop_m=0 for no crop."
            )
        if self.crop_m and not self.use_pose:
            raise ConfigError(
                f"net.crop_m={self.crop_m:g} needs net.use_pose=true. Write net.crop_m=0 if net.use_pose is false."
            )
        if self.goal and not self.crop_m:
            raise ConfigError("net.goal=true needs net.crop_m above 0. Write net.crop_m=8, or net.goal=false.")


def check_pixels(pixels: int) -> None:
    """Refuses camera images whose side of `pixels` pixels the renderers do not support.

    Raises:
        ConfigError: The side is odd or out of range.
    """
    if not MIN_PIXELS <= pixels <= MAX_PIXELS or pixels % 2:
        raise ConfigError(
            f"pixels={pixels} is not an even number from {MIN_PIXELS} to {MAX_PIXELS}. Write pixels=64, for example."
        )
