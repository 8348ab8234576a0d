"""sketchnav: find a goal in a building by a hand-drawn sketch of it. Recurrent PPO on a batched ray caster."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from powerband.algos.ppo import PPO, PPOConfig
from powerband.core.config import ConfigError, RunConfig, per_rank, scaled_lr
from powerband.core.noise import NoiseSource
from powerband.core.precision import Precision
from powerband.core.run import Run
from powerband.data.types import EnvSpec
from powerband.envs.sketchnav.env import SketchNavEnv, spec_of
from powerband.envs.sketchnav.episodes import Episodes, Scenes
from powerband.envs.sketchnav.world import Rules
from powerband.loops.on_policy import OnPolicyConfig, on_policy
from powerband.nets.sketch_net import SketchNet, SketchNetConfig
from powerband.recipes.sketchnav_demos import record
from powerband.recipes.sketchnav_score import Evaluation, HeldOut, evaluate_run
from powerband.recipes.sketchnav_sets import episodes_of
from powerband.recipes.sketchnav_words import RENAMED as RENAMED

describe = (
    "find a goal in a building by a hand-drawn sketch: recurrent PPO, thousands of agents drawn by one ray caster"
)


@dataclass(frozen=True)
class Config:
    algo: Literal["ppo"] = "ppo"
    """ppo has a GRU and sees camera, depth, sketch, GPS and compass."""
    pixels: int = 64
    """Pixels along the camera's picture, even, 36 to 512."""
    eval_episodes: int = 100
    """Episodes of an evaluation during training (eval_interval), in plans that training does not see."""
    eval_plans: int = 50
    """Plans of each evaluation split; goals and starts are as in scenes."""
    episode_file: str = ""
    """Train on the episodes of this file, written by the stage `episodes`; empty draws them from scenes and seed."""
    demos_dir: str = ""
    """Where the stage `demos` records; empty is ``demos`` in the run folder. A recording there is gone on with."""
    scenes: Scenes = field(default_factory=Scenes)
    rules: Rules = field(default_factory=Rules)
    run: RunConfig = field(default_factory=lambda: RunConfig(env_steps=10_000_000))
    on_policy: OnPolicyConfig = field(
        default_factory=lambda: OnPolicyConfig(num_envs=64, num_steps=150, epochs=4, minibatches=1)
    )
    ppo: PPOConfig = field(
        default_factory=lambda: PPOConfig(
            lr=2.5e-4, clip=0.1, entropy_coef=0.01, hidden=(512,), activation="relu", gru=512
        )
    )
    net: SketchNetConfig = field(default_factory=SketchNetConfig)


def train(config: Config, run: Run) -> None:
    """Trains on the episodes of the split train."""
    episodes = episodes_of(config, "train", run.console)
    envs, ranks = per_rank("num_envs", config.on_policy.num_envs, run.ranks.world_size), run.ranks
    run.console.note("building the agents; the first start on a machine compiles their rules, about a minute")
    env = SketchNavEnv(
        envs,
        episodes,
        config.rules,
        pixels=config.pixels,
        device=run.device,
        seed=config.run.seed,
        first_env=ranks.rank * envs,
        all_envs=config.on_policy.num_envs,
    )
    section, run.facts["learning rates"] = scaled_lr(config.ppo, config.run.lr_scale, ranks.world_size)
    shared = (run.device, run.precision, run.noise, ranks.average_, ranks.world_size)
    learner = PPO(env.spec, section, *shared, SketchNet(env.episodes.sketch, config.pixels, config.net))
    run.facts["episodes"] = (
        f"{len(episodes):,} in {len(episodes.size):,} plans, {config.scenes.sketch} sketches of "
        f"{episodes.sketch.shape[-1]} pixels, ways of {float(episodes.length.mean()):.1f} m on average"
    )
    run.evaluate = HeldOut(config, learner, run.device)
    on_policy(run, env, learner, config.on_policy)
    run.export_policy(learner.policy_state())


def write_episodes(config: Config, run: Run) -> None:
    """Writes the episodes of all splits as files that `episode_file` reads, and a page of sketches of each."""
    from powerband.envs.sketchnav.episodes import SPLITS
    from powerband.envs.sketchnav.picture import draw_sheet
    from powerband.report.film import save_picture

    for split in SPLITS:
        found = episodes_of(config, split, run.console)
        path = run.dir / f"episodes-{split}.safetensors"
        found.save(path, config.scenes, split, config.run.seed)
        run.console.note(f"{len(found):,} episodes of {split}: {path}")
        sheet = draw_sheet(config.scenes, split, config.run.seed, min(20, config.scenes.plans))
        save_picture(run.dir / f"sketches-{split}.png", sheet)


def demos(config: Config, run: Run) -> None:
    """Records the follower of the shortest way on the episodes of train."""
    run.console.note(f"whole recording: {record(config, run)}")


def networks(config: Config, device: Any, precision: Precision) -> tuple[Any, EnvSpec, Any]:
    """A new learner of `config`, what it sees, and its loop's sizes; `doctor` times it."""
    spec, size = spec_of(config.pixels, config.rules), config.scenes.sketch_px
    # Two, as whole numbers that an observation is filled with for timing are 0 and 1.
    sketches = torch.full((2, 3, size, size), 255, dtype=torch.uint8, device=device)
    net = SketchNet(sketches, config.pixels, config.net)
    return PPO(spec, config.ppo, device, precision, NoiseSource(0, device), encoder=net), spec, config.on_policy


def evaluate(config: Config, folder: Path, options: Evaluation) -> list[dict]:
    """The newest checkpoint beside random, forward-and-turn and the follower; table, pictures and a film."""
    return evaluate_run(config, folder, networks(config, "cpu", Precision("fp32", "cpu"))[0], options)


def check(config: Config, world_size: int) -> None:
    """Refuses what does not divide by the ranks, and files that are no episodes, before any rank is started."""
    config.on_policy.check(world_size)
    spec_of(config.pixels, config.rules)
    if config.episode_file:
        try:
            Episodes.load(Path(config.episode_file))
        except ValueError as error:
            raise ConfigError(f"episode_file: {error}") from None


STAGES = {"train": train, "episodes": write_episodes, "demos": demos}
SECTIONS = {"ppo": ("ppo", "on_policy", "net")}
DEFAULT_STAGE = "train"
VARIANTS = {
    "small": {
        "scenes.most_m": 10.0,
        "scenes.plans": 400,
        "scenes.sketch": "smooth",
        "scenes.most_way_m": 12.0,
        "on_policy.num_envs": 32,
        "run.precision": "bf16",
        "run.env_steps": 3_000_000,
    },
    "smoke": {
        "scenes.most_m": 9.0,
        "scenes.plans": 2,
        "scenes.goals": 1,
        "scenes.starts": 2,
        "eval_plans": 1,
        "eval_episodes": 2,
        "pixels": 36,
        "scenes.sketch_px": 36,
        "net.width": 16,
        "ppo.hidden": (16,),
        "ppo.gru": 16,
        "on_policy.num_envs": 2,
        "on_policy.num_steps": 8,
        "run.env_steps": 64,
    },
}
