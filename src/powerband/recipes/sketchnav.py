"""sketchnav: find a goal in a building by a hand-drawn sketch of it. Recurrent PPO, a diffusion policy, cloning."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from powerband.algos.chunks import ChunkConfig
from powerband.algos.ppo import PPO, PPOConfig
from powerband.core.config import ConfigError, RunConfig
from powerband.core.precision import Precision
from powerband.core.run import Run
from powerband.core.scaling import scaled_lr
from powerband.envs.sketchnav.env import spec_of
from powerband.envs.sketchnav.episodes import Episodes, Scenes
from powerband.envs.sketchnav.sensors import Sensors
from powerband.envs.sketchnav.world import DIMMING, Rules
from powerband.loops.offline import OfflineConfig
from powerband.loops.on_policy import OnPolicyConfig, on_policy
from powerband.nets.sketch_net import SketchNetConfig
from powerband.recipes import sketchnav_imitate
from powerband.recipes.sketchnav_agents import agents_of
from powerband.recipes.sketchnav_demos import demos
from powerband.recipes.sketchnav_learners import navigator, networks
from powerband.recipes.sketchnav_score import Evaluation, HeldOut, evaluate_run
from powerband.recipes.sketchnav_sets import episodes, episodes_of
from powerband.recipes.sketchnav_words import RENAMED as RENAMED

describe = "find a goal in a building by a hand-drawn sketch: recurrent PPO, a diffusion policy, cloning"


@dataclass(frozen=True)
class Config:
    algo: Literal["ppo", "diffusion", "clone"] = "ppo"
    """ppo has a GRU and learns by walking; diffusion and clone learn chunks of actions from demonstrations."""
    renderer: Literal["caster", "mujoco"] = "caster"
    """Who draws what agents see in training: the ray caster, or MuJoCo by OpenGL in worker processes (ppo)."""
    num_workers: int = -1
    """Worker processes of each rank with renderer=mujoco; -1 is one a core (two with double_buffer), 0 renders in this
    process."""
    pixels: int = 64
    """Pixels along the camera's picture, even, 36 to 512."""
    eval_episodes: int = 100
    """Episodes of an evaluation during training (eval_interval), in plans that training does not see."""
    eval_plans: int = 50
    """Plans of each evaluation split; goals and starts are as in scenes."""
    episode_file: str = ""
    """Train on the episodes of this file, written by the stage `episodes`; empty draws them from scenes and seed."""
    demos_dir: str = ""
    """Where the stage `demos` records; empty is ``demos`` in the run folder. A recording there is gone on with.
    diffusion and clone learn from it."""
    demo_episodes: int = 0
    """Episodes that `demos` records, of all plans alike; 0 is all."""
    demo_noise: float = 0.0
    """Share of the recorded steps at which a random move is made and the follower's recorded: the way back is shown."""
    keep_episodes: bool = True
    """Keep drawn episodes in the user's cache folder (XDG_CACHE_HOME/powerband/episodes), where the next start with
    the same scenes and seed reads them."""
    scene_seed: int = -1
    """Seed of plans, episodes and sketches; -1 is the run's. With a number, runs of other seeds share them."""
    scenes: Scenes = field(default_factory=Scenes)
    rules: Rules = field(default_factory=Rules)
    sensors: Sensors = field(default_factory=Sensors)
    run: RunConfig = field(default_factory=lambda: RunConfig(env_steps=10_000_000))
    on_policy: OnPolicyConfig = field(
        default_factory=lambda: OnPolicyConfig(num_envs=64, num_steps=150, epochs=4, minibatches=1)
    )
    ppo: PPOConfig = field(
        default_factory=lambda: PPOConfig(
            lr=2.5e-4, clip=0.1, entropy_coef=0.01, hidden=(512,), activation="relu", gru=512
        )
    )
    chunks: ChunkConfig = field(default_factory=ChunkConfig)
    offline: OfflineConfig = field(default_factory=lambda: OfflineConfig(global_batch_size=32))
    net: SketchNetConfig = field(default_factory=SketchNetConfig)


def train(config: Config, run: Run) -> None:
    """Trains on the episodes of the split train, or on their demonstrations."""
    if config.algo != "ppo":
        sketchnav_imitate.train(config, run, HeldOut)
        return
    walked = episodes_of(config, "train", run.console)
    env, ranks = agents_of(config, run, walked), run.ranks
    section, run.facts["learning rates"] = scaled_lr(config.ppo, config.run.lr_scale, ranks.world_size)
    shared = (run.device, run.precision, run.noise, ranks.average_, ranks.world_size)
    learner = PPO(env.spec, section, *shared, navigator(config, walked.sketch.to(run.device)))
    run.facts["episodes"] = (
        f"{len(walked):,} in {len(walked.size):,} plans, {config.scenes.sketch} sketches of "
        f"{walked.sketch.shape[-1]} pixels, ways of {float(walked.length.mean()):.1f} m on average"
    )
    run.evaluate = HeldOut(config, learner, run.device)
    try:
        on_policy(run, env, learner, config.on_policy)
    finally:
        env.close()
    run.export_policy(learner.policy_state())


def evaluate(config: Config, folder: Path, options: Evaluation) -> list[dict]:
    """The newest checkpoint beside random, forward-and-turn and the follower; table, pictures and a film."""
    return evaluate_run(config, folder, networks(config, "cpu", Precision("fp32", "cpu"))[0], options)


def check(config: Config, world_size: int) -> None:
    """Refuses what does not divide by the ranks, and files that are no episodes, before any rank is started."""
    config.on_policy.check(world_size) if config.algo == "ppo" else config.offline.check(world_size)
    spec_of(config.pixels, config.rules)
    if config.algo != "ppo":
        config.offline.refuse_device("chunks are read from demonstrations that are mapped from files")
    if not 0 <= config.demo_noise < 1:
        raise ConfigError(f"demo_noise={config.demo_noise:g} is no share. Write 0 or more and below 1.")
    if config.net.goal and (config.algo != "ppo" or config.renderer == "mujoco"):
        raise ConfigError(
            f"net.goal=true with algo={config.algo} and renderer={config.renderer}: it is taught while agents walk, by "
            f"what the ray caster's world knows. Write algo=ppo renderer=caster, or goal=false."
        )
    if config.ppo.expert_coef < 0 or (config.ppo.expert_coef and config.renderer == "mujoco"):
        raise ConfigError(
            f"ppo.expert_coef={config.ppo.expert_coef:g} with renderer={config.renderer}: it is 0 or more, and the "
            f"follower walks in the ray caster's world only. Write renderer=caster, or ppo.expert_coef=0."
        )
    if config.renderer == "mujoco" and config.sensors.shading != DIMMING:
        raise ConfigError(
            f"sensors.shading={config.sensors.shading:g} with renderer=mujoco: its light is MuJoCo's own. Write "
            f"renderer=caster, or leave it out."
        )
    if config.episode_file:
        try:
            Episodes.load(Path(config.episode_file))
        except ValueError as error:
            raise ConfigError(f"episode_file: {error}") from None


STAGES = {"train": train, "episodes": episodes, "demos": demos}
SECTIONS = {
    "ppo": ("ppo", "on_policy", "net"),
    "diffusion": ("chunks", "offline", "net"),
    "clone": ("chunks", "offline", "net"),
}
DEFAULT_STAGE = "train"
VARIANTS = {
    "small": {
        "scenes.most_m": 10.0,
        "scenes.plans": 400,
        "scenes.sketch": "smooth",
        "scenes.most_way_m": 12.0,
        "net.use_rgb": False,
        "net.learn_size": False,
        "net.channels": 0.5,
        "net.width": 128,
        "ppo.hidden": (256,),
        "ppo.gru": 256,
        "ppo.lr": 3e-4,
        "ppo.clip": 0.2,
        "ppo.value_coef": 0.05,
        "ppo.expert_coef": 1.0,
        "on_policy.num_envs": 64,
        "on_policy.num_steps": 75,
        "on_policy.minibatches": 8,
        "on_policy.epochs": 3,
        "net.pictures": "plain",
        "offline.global_batch_size": 256,
        "demo_noise": 0.15,
        "chunks.lr": 1e-3,
        "chunks.unet": (64, 128, 256),
        "chunks.predict": "sample",
        "run.precision": "auto",
        "run.env_steps": 2_000_000,
    },
    "smoke": {
        "scenes.most_m": 9.0,
        "scenes.plans": 2,
        "scenes.goals": 1,
        "scenes.starts": 2,
        "rules.max_steps": 150,
        "eval_plans": 1,
        "eval_episodes": 2,
        "pixels": 36,
        "scenes.sketch_px": 36,
        "net.width": 16,
        "net.channels": 0.25,
        "net.blocks": 0.25,
        "chunks.unet": (8, 16),
        "chunks.noise_steps": 20,
        "offline.global_batch_size": 8,
        "ppo.hidden": (16,),
        "ppo.gru": 16,
        "on_policy.num_envs": 2,
        "on_policy.num_steps": 8,
        "run.env_steps": 64,
    },
}
