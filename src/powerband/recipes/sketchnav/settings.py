"""Defines the settings of rules, sensors, episodes and encoder of sketchnav, without importing torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from powerband.core.config.ranges import Range, Share, Width, check_ranges
from powerband.core.errors import ConfigError

Split = Literal["train", "val_seen", "val_unseen"]
SPLITS: tuple[Split, ...] = ("train", "val_seen", "val_unseen")
Level = Literal["smooth", "varied", "abstract", "true", "blank"]
LEVELS: tuple[Level, ...] = ("smooth", "varied", "abstract", "true", "blank")
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
@check_ranges
class Rules:
    """Rules of an episode: success, moves and reward.

    Raises:
        ConfigError: A value is out of range.
    """

    success_m: Annotated[float, Range(at_least=0.1, at_most=5)] = 1.0
    """STOP succeeds if the shortest path to the goal is at most this long, in metres."""
    forward_m: Annotated[float, Range(above=0, at_most=2)] = 0.25
    """Length of the action FORWARD in metres; 1.0 in the code that this recipe replaces."""
    max_steps: Annotated[int, Range(at_least=1, at_most=100000)] = 500
    """Actions after which an episode is truncated."""
    expert_bonus: Annotated[float, Range(at_least=0, at_most=10)] = 0.0
    """Reward for the action that the shortest-path follower would take; 0.1 in the code that this recipe
    replaces."""

    def __post_init__(self) -> None:
        substeps = self.forward_m / SUBSTEP_M
        if abs(substeps - round(substeps)) > 1e-6 or not round(substeps):
            raise ConfigError(
                f"rules.forward_m={self.forward_m:g} is not a multiple of {SUBSTEP_M:g} m. Write rules.forward_m=0.25."
            )


@dataclass(frozen=True)
@check_ranges
class Sensors:
    """Light and sensor noise. All noise is off by default.

    Raises:
        ConfigError: A value is out of range.
    """

    shading: Share = DEFAULT_SHADING
    """Light falls with depth as 1 / (1 + shading z), z in metres; 0 lights all distances equally (renderer=caster)."""
    depth_noise: Annotated[float, Range(at_least=0, at_most=0.1)] = 0.0
    """Standard deviation of depth at 1 m, in metres. It grows with the square of depth and is added before depth is
    clipped to 0.5 to 5 m. 0.001425 is a Kinect's (Khoshelham and Elberink 2012): 36 mm at 5 m."""
    rgb_noise: Annotated[float, Range(at_least=0, at_most=128)] = 0.0
    """Standard deviation of each colour of each pixel, in levels of 255."""
    gps_noise_m: Annotated[float, Range(at_least=0, at_most=5)] = 0.0
    """Standard deviation of both GPS coordinates of each reading, in metres; it does not accumulate."""
    compass_noise_deg: Annotated[float, Range(at_least=0, at_most=60)] = 0.0
    """Standard deviation of the compass at each reading, in degrees."""

    @property
    def image_noise(self) -> bool:
        """True if colours or depth are noisy."""
        return self.depth_noise > 0 or self.rgb_noise > 0

    @property
    def pose_noise(self) -> bool:
        """True if GPS or compass are noisy."""
        return self.gps_noise_m > 0 or self.compass_noise_deg > 0


@dataclass(frozen=True)
@check_ranges
class EpisodeConfig:
    """Distribution of floor plans, episodes and sketches.

    Raises:
        ConfigError: A value is out of range, or a range is empty.
    """

    min_size_m: Annotated[float, Range(at_least=MIN_SIZE_M, at_most=MAX_SIZE_M)] = 8.0
    """Smallest width and height of a plan, in metres."""
    max_size_m: Annotated[float, Range(at_least=MIN_SIZE_M, at_most=MAX_SIZE_M)] = 24.0
    """Largest width and height of a plan, in metres."""
    plans: Annotated[int, Range(at_least=1, at_most=10_000_000)] = 200
    """Plans of the split train; eval_plans sets the number of the other splits."""
    goals: Annotated[int, Range(at_least=1, at_most=10_000_000)] = 5
    """Goals in each plan."""
    starts: Annotated[int, Range(at_least=1, at_most=10_000_000)] = 4
    """Starts for each goal; each start is one episode."""
    min_path_m: Annotated[float, Range(above=0, at_most=1000)] = 2.0
    """Smallest length of the shortest path from start to goal, in metres."""
    max_path_m: Annotated[float, Range(above=0, at_most=1000)] = 30.0
    """Largest length of the shortest path, in metres."""
    min_path_ratio: Annotated[float, Range(at_least=1, at_most=3)] = 1.0
    """Smallest ratio of the length of the shortest path to the straight-line distance."""
    sketch: Literal["smooth", "varied", "abstract", "mixed", "true", "blank"] = "mixed"
    """Level of the sketches: varied is smooth with other pens and pages, mixed alternates smooth and abstract, true is
    the plan itself, blank is an empty page."""
    sketch_px: Annotated[int, Range(at_least=36, at_most=512)] = 64
    """Side of the sketch that the policy sees, in pixels; dots are not visible on a smaller one than 36."""

    def __post_init__(self) -> None:
        if self.min_size_m > self.max_size_m:
            raise ConfigError(
                f"scenes.min_size_m={self.min_size_m:g} and scenes.max_size_m={self.max_size_m:g} do not form a range. "
                f"Write scenes.min_size_m=8 scenes.max_size_m=24."
            )
        if self.min_path_m >= self.max_path_m:
            raise ConfigError(
                f"scenes.min_path_m={self.min_path_m:g} and scenes.max_path_m={self.max_path_m:g} do not form a range. "
                f"Write scenes.min_path_m=2 scenes.max_path_m=30."
            )

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
@check_ranges
class SketchNetConfig:
    """Settings of the network that encodes observations.

    Raises:
        ConfigError: A value is out of range, or two settings contradict each other.
    """

    image_encoder: Literal["auto", "plain", "efficient"] = "auto"
    """Encoder of images: plain is three convolutions, efficient is EfficientNet-B0 with group norms; auto is plain for
    ppo and efficient for diffusion and clone."""
    width: Width = 512
    """Features per image."""
    channels: Annotated[float, Range(at_least=0.125, at_most=8)] = 1.0
    """Factor on the channels of the convolutions."""
    blocks: Annotated[float, Range(above=0, at_most=4)] = 1.0
    """Factor on the number of blocks of each stage of EfficientNet."""
    use_rgb: bool = True
    """Observe the colours of the camera."""
    use_depth: bool = True
    """Observe the depth of the camera."""
    use_pose: bool = True
    """Observe position and heading since the start (GPS and compass)."""
    crop_m: Annotated[float, Range(at_least=0, at_most=100)] = 8.0
    """Side, in metres, of the crop of the sketch around the agent's estimated position, with its heading up; 0 shows
    the page alone. Needs net.use_pose=true."""
    crop_px: Annotated[int, Range(at_least=36, at_most=512)] = 52
    """Side of the crop in pixels."""
    learn_page_size: bool = True
    """Learn the size of a page in metres from its image; false takes the size of a medium plan, and is faster."""
    align_page: bool = False
    """Learn size, rotation and stretch of each page from its image and the true positions of the training goals,
    instead of the size alone; needs algo=ppo, renderer=caster and net.crop_m above 0."""
    drawn_goal: bool = False
    """Measure distance and bearing of the goal between the two dots of the sketch, as inputs of the policy. A blank
    sketch has no dots, and the goal is then taken to be at the start. Needs net.use_pose=true."""
    stop_logit: Annotated[float, Range(at_least=-20, at_most=20)] = 0.0
    """Initial logit of STOP (ppo); those of the other actions are about 0. At 0 an episode of a new policy lasts four
    steps on average, at -4 about 170."""
    goal: bool = False
    """Predict the goal position from the explored map and the sketch, as an input of the policy; needs algo=ppo and
    net.crop_m above 0."""

    def __post_init__(self) -> None:
        if self.crop_m and not self.use_pose:
            raise ConfigError(
                f"net.crop_m={self.crop_m:g} needs net.use_pose=true. Write net.crop_m=0 if net.use_pose is false."
            )
        if self.drawn_goal and not self.use_pose:
            raise ConfigError("net.drawn_goal=true needs net.use_pose=true: the bearing is relative to the pose.")
        if self.goal and not self.crop_m:
            raise ConfigError("net.goal=true needs net.crop_m above 0. Write net.crop_m=8, or net.goal=false.")
        if self.align_page and not self.crop_m:
            raise ConfigError(
                "net.align_page=true needs net.crop_m above 0. Write net.crop_m=8, or net.align_page=false."
            )

    @property
    def learned(self) -> Literal["nothing", "size", "frame"]:
        """What the network learns about the geometry of a page."""
        return "frame" if self.align_page else "size" if self.learn_page_size else "nothing"

    @property
    def true_goals(self) -> bool:
        """Whether a loss of the network compares its predictions with the true positions of the goals."""
        return self.goal or self.align_page


def check_pixels(pixels: int) -> None:
    """Refuses camera images whose side of `pixels` pixels the renderers do not support.

    Raises:
        ConfigError: The side is odd or out of range.
    """
    if not MIN_PIXELS <= pixels <= MAX_PIXELS or pixels % 2:
        raise ConfigError(
            f"pixels={pixels} is not an even number from {MIN_PIXELS} to {MAX_PIXELS}. Write pixels=64, for example."
        )
