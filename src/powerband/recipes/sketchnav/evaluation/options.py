"""Defines the options of ``powerband eval`` for a run of sketchnav, without importing torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from powerband.core.config.ranges import FilePath, Range, Seed, SizeOrZero, Threads, check_ranges
from powerband.core.errors import ConfigError
from powerband.recipes.sketchnav.settings import Level, Split

OLD_EVALUATION_NAMES = {"threads": "workers"}
PolicyName = Literal["random", "forward-and-turn", "likeliest", "policy", "expert"]


@dataclass(frozen=True)
@check_ranges
class Evaluation:
    """Options of ``powerband eval`` for a run of sketchnav."""

    episodes: SizeOrZero = 0
    """Episodes of each split, spread evenly over its plans; 0 plays all."""
    seed: Seed = 0
    """Seed of the actions that policies sample. The episodes follow from the run's own seed."""
    splits: tuple[Split, ...] = ()
    """Splits of episodes: val_seen (new episodes in training plans), val_unseen (new plans), train. Empty is the
    first two."""
    sketches: tuple[Level, ...] = ()
    """Levels of the sketches: smooth, varied, abstract, true, blank; empty is the level of the run."""
    drawings: FilePath = ""
    """Folder of your own sketches, PNGs named by the number of their episode (0.png) in the one split that splits
    names. Only these episodes are played, with your sketches. Draw over the images in plans-SPLIT/ that `powerband
    train sketchnav episodes` writes."""
    plans_dir: FilePath = ""
    """Folder of your own floor plans, all of which are played, as the split ``own``; see the option of training."""
    metres_per_pixel: Annotated[float, Range(at_least=0, at_most=1000)] = 0.0
    """Scale of the plans in plans_dir."""
    episode_file: FilePath = ""
    """PointNav episodes of Habitat (.json, .json.gz) in the maps of plans_dir; empty generates episodes in them."""
    policies: tuple[PolicyName, ...] = ()
    """Policies: random, forward-and-turn, policy (the run's; ppo samples its actions, as in training), likeliest (the
    same with the likeliest action; ppo), expert (the shortest-path follower). Empty is all."""
    temperature: Annotated[float, Range(at_least=0, at_most=1e12)] = 1.0
    """Temperature of ppo's policy: actions are sampled by probabilities to the power of 1 / temperature; values below 1
    make rare actions rarer. policies=likeliest is the limit of 0."""
    plans: SizeOrZero = 0
    """Plans of a split; 0 uses eval_plans of the run."""
    video: bool = True
    """Write images of three episodes of policy (or of likeliest if policy is not played), and a video of the first."""
    draw: bool = False
    """Open a page on this machine in which you draw a sketch over a plan, or import a photograph of one. The agent
    navigates by it. Nothing else is evaluated; the address is printed, and Ctrl-C ends."""
    port: Annotated[int, Range(at_least=0, at_most=65535)] = 0
    """Port of the page (draw=true) on 127.0.0.1; 0 takes a free one."""
    gpus: str = "none"
    """Device of the policy: none for the CPU, or the index of one GPU, such as 0."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Precision of the networks."""
    workers: Threads = 0
    """CPU threads of the environments and of the policy; 0 is the number of the run (threads)."""

    def __post_init__(self) -> None:
        if self.plans_dir and (self.splits or self.drawings):
            raise ConfigError(
                f"plans_dir={self.plans_dir} has a split of its own, without drawings. Leave splits and drawings out."
            )
        if self.plans_dir and self.plans:
            raise ConfigError(
                f"plans={self.plans} has no effect with plans_dir={self.plans_dir}: all plans of the folder are "
                f"played. Leave plans out."
            )
        if self.metres_per_pixel and not self.plans_dir:
            raise ConfigError(
                f"metres_per_pixel={self.metres_per_pixel:g} is the scale of the plans in plans_dir. Write "
                f"plans_dir=FOLDER, too."
            )
        if self.drawings and (self.sketches or self.episodes):
            unused = "sketches" if self.sketches else f"episodes={self.episodes}"
            raise ConfigError(
                f"{unused} has no effect with drawings={self.drawings}: the episodes of the drawings are played, with "
                f"these sketches. Leave {unused.partition('=')[0]} out."
            )
        if self.drawings and len(self.splits) != 1:
            raise ConfigError(
                f"drawings={self.drawings} has drawings of the episodes of one split, but splits names "
                f"{len(self.splits) or 'none'}. Write splits=val_unseen."
            )
        if self.port and not self.draw:
            raise ConfigError(f"port={self.port} is the port of the drawing page. Write draw=true, too.")
        if self.episode_file and not self.plans_dir:
            raise ConfigError(
                f"episode_file={self.episode_file} needs maps of its scenes. Write plans_dir=FOLDER, too."
            )
        if self.temperature == 0:
            raise ConfigError(
                "temperature=0 is not above 0. Write temperature=1, or policies=likeliest for the likeliest actions, "
                "which are the limit of 0."
            )
