"""Defines the options, algorithms and variants (named sets of options) of sketchnav, without importing torch."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from powerband.algos.chunks.settings import ChunkConfig
from powerband.algos.settings import PPOConfig
from powerband.core.config import RunConfig
from powerband.core.config.ranges import (
    MAX_COUNT,
    Count,
    FilePath,
    Range,
    ShareBelowOne,
    Size,
    SizeOrZero,
    Workers,
    check_ranges,
)
from powerband.core.config.schema import fields_of, not_default
from powerband.core.config.texts import shortened, some_of
from powerband.core.errors import ConfigError
from powerband.core.machine.device import expected_ranks
from powerband.core.recipe import Algorithm, load_object
from powerband.loops.config import OfflineConfig, OnPolicyConfig
from powerband.recipes.sketchnav.settings import (
    DEFAULT_SHADING,
    MAP_SQUARES,
    MAX_PIXELS,
    MIN_PIXELS,
    EpisodeConfig,
    Rules,
    Sensors,
    SketchNetConfig,
    check_pixels,
)

ALGORITHMS = {
    "ppo": Algorithm(
        "powerband.algos.ppo:PPO",
        PPOConfig(lr=2.5e-4, clip=0.1, entropy_coef=0.01, hidden=(512,), activation="relu", gru=512),
        "on_policy",
        also=("net",),
    ),
    "diffusion": Algorithm(
        "powerband.algos.chunks.action_chunks:ActionChunkLearner",
        ChunkConfig(),
        "offline",
        section="chunks",
        also=("net",),
    ),
    "clone": Algorithm(
        "powerband.algos.chunks.action_chunks:ActionChunkLearner",
        ChunkConfig(),
        "offline",
        section="chunks",
        also=("net",),
    ),
}
DRAW_OPTIONS = ("policy", "port", "plans_dir", "metres_per_pixel", "run.gpus", "run.precision", "run.threads")
"""Options that the stage draw reads; everything else is a setting of the run of its policy."""


@dataclass(frozen=True)
@check_ranges
class Config:
    algo: str = "ppo"
    """Algorithm: ppo has a GRU and learns from the environment; diffusion and clone learn chunks of actions from
    demonstrations."""
    renderer: Literal["caster", "mujoco"] = "caster"
    """Renderer of the camera in training: the ray caster, or MuJoCo by OpenGL in worker processes (ppo). Evaluations
    and demonstrations always have images of the ray caster."""
    num_workers: Workers = -1
    """Worker processes of each rank with renderer=mujoco; -1 starts one per core (two with double_buffer), 0 renders in
    the training process."""
    pixels: Annotated[int, Range(at_least=MIN_PIXELS, at_most=MAX_PIXELS)] = 64
    """Side of the camera image in pixels, even, 36 to 512."""
    eval_episodes: Size = 100
    """Episodes of an evaluation during training, spread evenly over eval_plans plans that neither
    training nor `powerband eval` uses."""
    eval_plans: Size = 50
    """Floor plans of each evaluation split; scenes.goals and scenes.starts set the episodes in each."""
    save_updates: Count = 0
    """Updates between two checkpoints, instead of run.save_interval: rollouts of ppo, batches of diffusion and clone; 0
    uses run.save_interval."""
    episode_file: FilePath = ""
    """File of training episodes: one that the stage `episodes` wrote, or PointNav episodes of Habitat (.json, .json.gz)
    with maps in plans_dir; empty generates them from scenes and seed."""
    plans_dir: FilePath = ""
    """Folder of your own floor plans: PNG, PGM, JPEG, SVG, or ROS maps (YAML with a picture). Dark is wall. One plan in
    five is held out for val_unseen. The network takes its first estimate of a page's size from scenes.min_size_m and
    scenes.max_size_m. Empty generates plans."""
    metres_per_pixel: Annotated[float, Range(at_least=0, at_most=1000)] = 0.0
    """Scale of the plans in plans_dir: metres per pixel of a picture, or per unit of an SVG drawing. A YAML file
    next to a picture states its own resolution."""
    demos_dir: FilePath = ""
    """Folder of the demonstrations that the stage `demos` records; empty is ``demos`` in the run folder. An unfinished
    recording is continued. diffusion and clone learn from it."""
    demo_episodes: SizeOrZero = 0
    """Episodes that `demos` records, spread evenly over the plans; 0 records all."""
    demo_noise: ShareBelowOne = 0.0
    """Share of the recorded steps that execute a random move while the action of the shortest-path follower is
    recorded, so that the demonstrations show how to recover."""
    demo_policy: FilePath = ""
    """Run whose policy moves the agent in half of the episodes that `demos` records, while the actions of the follower
    are recorded, so that they correct the mistakes of the policy (DAgger). Empty has none."""
    demo_actions: Literal["follower", "policy"] = "follower"
    """Actions that `demos` records: those of the shortest-path follower, which knows the plan, or those of demo_policy,
    which sees what a learner sees. demo_policy then acts in all episodes, and those without success are left out."""
    cache_episodes: bool = True
    """Keep generated episodes in the user's cache folder (XDG_CACHE_HOME/powerband/episodes), so that the next start
    with the same scenes and seed reads them."""
    policy: FilePath = ""
    """Run or checkpoint whose policy the stage `draw` plays; last is the newest run."""
    port: Annotated[int, Range(at_least=0, at_most=65535)] = 0
    """Port of the page of the stage `draw` on 127.0.0.1; 0 takes a free one."""
    scene_seed: Annotated[int, Range(at_least=-1, at_most=MAX_COUNT)] = -1
    """Seed of plans, episodes and sketches; -1 uses the seed of the run. Runs with the same seed have the same
    plans, episodes and sketches."""
    scenes: EpisodeConfig = field(default_factory=EpisodeConfig)
    rules: Rules = field(default_factory=Rules)
    sensors: Sensors = field(default_factory=Sensors)
    run: RunConfig = field(default_factory=lambda: RunConfig(env_steps=10_000_000))
    on_policy: OnPolicyConfig = field(
        default_factory=lambda: OnPolicyConfig(num_envs=64, num_steps=150, epochs=4, minibatches=1)
    )
    ppo: PPOConfig = field(default_factory=lambda: ALGORITHMS["ppo"].settings)
    chunks: ChunkConfig = field(default_factory=ChunkConfig)
    offline: OfflineConfig = field(default_factory=lambda: OfflineConfig(global_batch_size=32))
    net: SketchNetConfig = field(default_factory=SketchNetConfig)

    @property
    def loop(self) -> OnPolicyConfig | OfflineConfig:
        """Settings of the training loop that the chosen algorithm runs in: `on_policy` or `offline`."""
        return self.on_policy if self.algo == "ppo" else self.offline

    @property
    def steps_per_update(self) -> int:
        """Environment steps of one update over all ranks: of a rollout for ppo, of a batch for the others."""
        if self.algo == "ppo":
            return self.on_policy.num_envs * self.on_policy.num_steps
        per_rank = self.offline.batch_size_per_rank
        return per_rank * expected_ranks(self.run) if per_rank else self.offline.global_batch_size

    @property
    def episode_seed(self) -> int:
        """Seed of plans, episodes and sketches."""
        return self.run.seed if self.scene_seed < 0 else self.scene_seed

    @property
    def camera_keys(self) -> tuple[str, ...]:
        """Keys, in an observation, of the camera images that the policy observes: ``rgb``, ``depth``, both or none."""
        return tuple(name for name, used in (("rgb", self.net.use_rgb), ("depth", self.net.use_depth)) if used)

    @property
    def map_squares(self) -> int:
        """Squares along one side of the explored map that the policy observes; 0 for no map.

        The explored map shows from above which squares the agent has seen so far, and which of them are occupied.
        """
        return MAP_SQUARES if self.net.goal else 0


def finalize(config: Config, stage: str) -> Config:
    """Returns a copy of the configuration in which `save_updates`, if it is set, is converted to environment steps.

    Args:
        config: Configuration as the user wrote it.
        stage: Name of the stage.

    Raises:
        ConfigError: Both `save_updates` and ``run.save_interval`` are set, or the stage draw has no policy, or another
            stage has an option of draw or demos, or demo_actions=policy has no policy.
    """
    if stage == "draw" and not config.policy:
        raise ConfigError(
            "The stage draw plays a trained policy, but policy= names none. Write powerband train sketchnav draw "
            "policy=RUN, or policy=last for the newest run."
        )
    if stage != "draw" and (config.policy or config.port):
        option = f"policy={shortened(config.policy)}" if config.policy else f"port={config.port}"
        raise ConfigError(f"{option} belongs to the stage draw. Write powerband train sketchnav draw, or leave it out.")
    if stage != "demos" and config.demo_policy:
        raise ConfigError(
            f"demo_policy={shortened(config.demo_policy)} belongs to the stage demos. Write powerband train sketchnav "
            f"demos, or leave it out."
        )
    if config.demo_actions == "policy" and not config.demo_policy:
        raise ConfigError(
            "demo_actions=policy records the actions of a policy, but demo_policy= names none. Write demo_policy=RUN, "
            "or leave demo_actions out."
        )
    if not config.save_updates:
        return config
    if config.run.save_interval:
        raise ConfigError(
            f"save_updates={config.save_updates} and run.save_interval={config.run.save_interval} are two intervals "
            f"between checkpoints. Write only one of them."
        )
    run = replace(config.run, save_interval=config.save_updates * config.steps_per_update)
    return replace(config, run=run, save_updates=0)


def notices(config: Config) -> list[str]:
    """Returns messages for the user about options without effect and the environment steps between two checkpoints."""
    found = _unused_by_draw(config) if config.policy else []
    if config.plans_dir and config.scenes.plans != EpisodeConfig().plans:
        found.append(f"scenes.plans has no effect: plans_dir={config.plans_dir} has the plans.")
    if config.algo != "ppo" and not config.chunks.gru and config.chunks.sequence != ChunkConfig().sequence:
        found.append(f"chunks.sequence={config.chunks.sequence} has no effect without a memory. Write chunks.gru=256.")
    if config.renderer == "mujoco":
        found.append(
            "renderer=mujoco renders the images of training only: evaluations and the stage demos use the ray caster."
            if config.algo == "ppo"
            else f"renderer=mujoco has no effect with algo={config.algo}: the ray caster renders demonstrations and "
            f"evaluations."
        )
    steps = config.steps_per_update
    message = (
        f"save_updates={config.save_updates:,} is save_interval={config.save_updates * steps:,} environment steps: an "
        f"update has {steps:,}."
    )
    return [*found, message] if config.save_updates else found


def _unused_by_draw(config: Config) -> list[str]:
    """Returns a message about the options that the stage draw takes from the run of its policy instead."""
    unused = not_default(config, (path for path in fields_of(Config) if path not in DRAW_OPTIONS))
    message = f"{some_of(unused)}: no effect on the stage draw, which uses the settings of the run of policy."
    return [message] if unused else []


def check(config: Config, world_size: int) -> None:
    """Refuses contradictory settings, invalid episode files, and sizes that do not divide by the number of ranks.

    Args:
        config: Configuration of the run.
        world_size: Number of ranks (training processes of a distributed run).

    Raises:
        ConfigError: A setting is invalid.
    """
    config.loop.check(world_size)
    check_pixels(config.pixels)
    if config.algo != "ppo":
        config.offline.refuse_device("chunks are read from demonstrations that are mapped from files")
    if config.algo != "ppo" and config.chunks.gru and config.offline.batch(world_size) % config.chunks.sequence:
        raise ConfigError(
            f"A batch of {config.offline.batch(world_size)} rows on each rank is not a multiple of chunks.sequence="
            f"{config.chunks.sequence}, the rows of a sequence. Write offline.batch_size_per_rank="
            f"{4 * config.chunks.sequence}, for example."
        )
    if config.net.true_goals and (config.algo != "ppo" or config.renderer == "mujoco"):
        option = "net.goal" if config.net.goal else "net.align_page"
        raise ConfigError(
            f"{option}=true is not supported with algo={config.algo} renderer={config.renderer}: the prediction is "
            f"trained on the ray caster's ground truth. Write algo=ppo renderer=caster, or {option}=false."
        )
    if config.ppo.expert_coef and config.renderer == "mujoco":
        raise ConfigError(
            f"ppo.expert_coef={config.ppo.expert_coef:g} with renderer={config.renderer}: only the ray caster has an "
            f"expert. Write renderer=caster, or ppo.expert_coef=0."
        )
    if config.renderer == "mujoco" and config.sensors.shading != DEFAULT_SHADING:
        raise ConfigError(
            f"sensors.shading={config.sensors.shading:g} with renderer=mujoco: MuJoCo has its own light. Write "
            f"renderer=caster, or leave sensors.shading out."
        )
    check_files = load_object("powerband.recipes.sketchnav.plans.file_checks:check_files")
    check_files(config.episode_file, config.plans_dir, config.metres_per_pixel, config.scenes.sketch_px)


SMALL: dict[str, Any] = {
    "scenes.max_size_m": 10.0,
    "scenes.plans": 400,
    "scenes.sketch": "smooth",
    "scenes.max_path_m": 12.0,
    "net.use_rgb": False,
    "net.learn_page_size": False,
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
    "net.image_encoder": "plain",
    "offline.global_batch_size": 256,
    "demo_noise": 0.15,
    "chunks.lr": 1e-3,
    "chunks.unet": (64, 128, 256),
    "chunks.predict": "sample",
    "run.precision": "auto",
    "run.env_steps": 2_000_000,
}
"""Small plans and networks for a CPU."""
EXPERT_FIRST: dict[str, Any] = {
    **SMALL,
    "net.drawn_goal": True,
    "net.stop_logit": -4.0,
    "ppo.expert_until": 0.5,
    "run.env_steps": 1_500_000,
}
"""The weight of the expert falls to 0 within half of the budget; then the policy learns from the reward alone."""
VARIANTS: dict[str, dict[str, Any]] = {
    "small": SMALL,
    "expert-first": EXPERT_FIRST,
    "hand-drawn": {**EXPERT_FIRST, "scenes.sketch": "varied", "net.align_page": True},
    "smoke": {
        "run.threads": 1,  # loops for several threads take twice as long to compile
        "scenes.max_size_m": 9.0,
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
