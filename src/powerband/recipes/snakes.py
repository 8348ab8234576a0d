"""snakes: three snakes learn to out-eat three others. DDPG and BiCNet as in the guide, PPO with self-play."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn

from powerband.algos.ddpg import DDPG, DDPGConfig
from powerband.algos.ppo import PPO, PPOConfig
from powerband.core.checkpoint import load_checkpoint, resolve_resume
from powerband.core.config import RunConfig, from_json
from powerband.core.noise import NoiseSource
from powerband.core.precision import Precision
from powerband.core.run import Run
from powerband.core.scaling import per_rank, scaled_lr
from powerband.data.types import EnvSpec
from powerband.envs.snakes.env import SnakesEnv, spec_of
from powerband.envs.snakes.opponents import PolicyOpponent
from powerband.loops.off_policy import OffPolicyConfig, off_policy
from powerband.loops.on_policy import OnPolicyConfig, on_policy
from powerband.loops.self_play import PastSelves
from powerband.nets.torus import TorusConv
from powerband.recipes.snakes_match import RIVALS, Evaluation, evaluate_run, player, win_rates

describe = (
    "3v3 snakes on a torus: ddpg and bicnet as in the guide (update interval), ppo with self-play (the strong agent)"
)


@dataclass(frozen=True)
class Config:
    algo: Literal["ddpg", "bicnet", "ppo"] = "ppo"
    """ddpg and bicnet as in the guide; ppo with self-play is the strong agent."""
    observation: Literal["auto", "features", "planes", "fork35", "baseline26"] = "auto"
    """What a snake sees; auto is features for ppo, fork35 for ddpg and bicnet."""
    reward: Literal["auto", "mixed", "game", "shaped"] = "auto"
    """mixed is 0.8 own + 0.1 team difference; auto is mixed for ppo, shaped for ddpg and bicnet."""
    opponent: Literal["auto", "self", "random", "greedy", "greedy_torus"] = "auto"
    """Who plays the other team in training; auto is self for ppo, random for ddpg and bicnet."""
    mirrored: float = 0.75
    """Share of the boards on which the learner plays both teams (opponent=self); past selves play the others."""
    pool_size: int = 4
    """Past selves in the pool (opponent=self)."""
    snapshot_interval: int = 20
    """Rollouts between two snapshots for the pool."""
    episodes: int = 0
    """Budget in episodes over all ranks, of 200 steps each, instead of env_steps; 0 leaves it to env_steps."""
    eval_games: int = 100
    """Games against random and against greedy in an evaluation during training (eval_interval)."""
    run: RunConfig = field(
        default_factory=lambda: RunConfig(env_steps=100_000_000, precision="auto", save_interval=5_000_000)
    )
    off_policy: OffPolicyConfig = field(default_factory=lambda: OffPolicyConfig(num_envs=1, global_batch_size=512))
    on_policy: OnPolicyConfig = field(default_factory=lambda: OnPolicyConfig(num_envs=256, gamma=0.98))
    ddpg: DDPGConfig = field(default_factory=DDPGConfig)
    ppo: PPOConfig = field(default_factory=lambda: PPOConfig(lr=1e-3, activation="relu"))

    def __post_init__(self) -> None:
        if not 0 <= self.mirrored <= 1:
            raise ValueError(f"mirrored={self.mirrored} is a share of the boards: give 0 to 1.")
        if self.algo != "ppo" and self.opponent == "self":
            raise ValueError(f"opponent=self is ppo's: with algo={self.algo} give random, greedy or greedy_torus.")

    def settled(self) -> Config:
        """The same configuration with every `auto` decided and `episodes` turned into env steps."""
        strong = self.algo == "ppo"
        auto = {
            "observation": ("fork35", "features"),
            "reward": ("shaped", "mixed"),
            "opponent": ("random", "self"),
        }
        chosen = {name: pair[strong] for name, pair in auto.items() if getattr(self, name) == "auto"}
        run = replace(self.run, env_steps=200 * self.episodes) if self.episodes else self.run
        return replace(self, run=run, episodes=0, **chosen)


def train(config: Config, run: Run) -> dict[str, Any]:
    """Trains the algorithm that `algo` names against the opponent that `opponent` names."""
    strong = config.algo == "ppo"
    opponent = PolicyOpponent(None, config.observation) if config.opponent == "self" else RIVALS[config.opponent]()
    boards = per_rank("num_envs", (config.on_policy if strong else config.off_policy).num_envs, run.ranks.world_size)
    mirrored = config.mirrored if config.opponent == "self" else 0.0
    run.console.note("building the boards; the first start on a machine compiles their rules, about half a minute")
    env = SnakesEnv(
        boards,
        device=run.device,
        seed=config.run.seed,
        observation=config.observation,
        reward=config.reward,
        opponents=[(1.0 - mirrored, opponent)],
        mirrored=mirrored,
        first_board=run.ranks.rank * boards,
    )
    section = "ppo" if strong else "ddpg"
    rates, run.facts["learning rates"] = scaled_lr(getattr(config, section), config.run.lr_scale, run.ranks.world_size)
    learner = make_learner(replace(config, **{section: rates}), env.spec, run)
    run.evaluate = lambda: win_rates(player(learner, config.observation), config.eval_games, run.device)
    run.facts["env"] = (
        f"{boards} boards a rank ({env.mirrored} mirrored: two rows), {config.observation}, reward {config.reward}"
    )
    run.facts["opponent"] = config.opponent
    if not strong:
        off_policy(run, env, learner, config.off_policy)
    elif config.opponent != "self":
        on_policy(run, env, learner, config.on_policy)
    else:
        pool = PastSelves(learner.modules, best_actions, config.pool_size, config.snapshot_interval)
        opponent.act_fn = pool.act
        run.attach("pool", pool, shared=True)
        on_policy(run, env, learner, config.on_policy, after_update=pool.after_update)
    run.export_policy(learner.policy_state())
    return {}


def make_learner(config: Config, spec: EnvSpec, run: Run) -> DDPG | PPO:
    """The algorithm of a settled configuration, on this rank."""
    return learner_of(config, spec, run.device, run.precision, run.noise, run.ranks.average_, run.ranks.world_size)


def learner_of(config: Config, spec: EnvSpec, *shared: Any) -> DDPG | PPO:
    """The algorithm of a settled configuration; `shared` is device, precision, noise and what ranks share."""
    if config.algo == "ppo":
        encoder = TorusConv(*spec.obs.shape[1:]) if config.observation == "planes" else None
        return PPO(spec, config.ppo, *shared, encoder=encoder)
    communicate = "lstm" if config.algo == "bicnet" else config.ddpg.communicate
    return DDPG(spec, replace(config.ddpg, communicate=communicate), *shared)


def networks(config: Config, device: Any, precision: Precision) -> tuple[Any, EnvSpec, Any]:
    """A new learner of a settled configuration, what it sees, and its loop's sizes; `doctor` times it."""
    spec, loop = spec_of(config.observation), config.on_policy if config.algo == "ppo" else config.off_policy
    return learner_of(config, spec, device, precision, NoiseSource(0, device)), spec, loop


def best_actions(modules: nn.ModuleDict, obs: Tensor) -> Tensor:
    """(n, 3, ...) -> (n, 3): the likeliest actions of a PPO network and its encoder, where it has one."""
    rows = obs.flatten(0, 1)
    if "encoder" in modules:
        rows = modules["encoder"](rows)
    return modules["net"](rows)[0].argmax(-1).view(obs.shape[:2])


def load(folder: Path) -> tuple[Any, str]:
    """A trained learner and the observation it was trained with, from a run folder or one of its checkpoints."""
    path, _ = resolve_resume(str(folder))
    run_dir = path.parent.parent
    config = from_json(Config, (run_dir / "config.json").read_text(), str(run_dir / "config.json"))
    learner = learner_of(config, spec_of(config.observation), "cpu", Precision("fp32", "cpu"), NoiseSource(0))
    learner.load_state_dict(load_checkpoint(path, "shared")[0]["learner"])
    return learner, config.observation


def evaluate(config: Config, folder: Path, options: Evaluation) -> list[dict]:
    """Games of the newest checkpoint against each opponent of `options`; table, picture and video in the run folder."""
    return evaluate_run(folder, options, load)


def settle(config: Config, stage: str) -> Config:
    """What is trained, saved and shown."""
    return config.settled()


def check(config: Config, world_size: int) -> None:
    """Refuses sizes that do not divide by the ranks, before any rank is started."""
    loop = config.on_policy if config.algo == "ppo" else config.off_policy
    loop.check(world_size)


STAGES = {"train": train}
SECTIONS = {"ddpg": ("ddpg", "off_policy"), "bicnet": ("ddpg", "off_policy"), "ppo": ("ppo", "on_policy")}
DEFAULT_STAGE = "train"
VARIANTS = {
    "demo": {"run.time_limit_s": 75, "run.env_steps": 1_000_000_000, "run.log_interval_s": 5},
    "full": {"run.time_limit_s": 720, "run.env_steps": 1_000_000_000, "ppo.hidden": (256, 256)},
    "guide": {  # 3,600 episodes at a 32nd of the guide's updates: 10 minutes of one core instead of hours
        "algo": "ddpg",
        "episodes": 3600,
        "off_policy.num_envs": 32,
        "off_policy.update_interval": 32,
        "off_policy.updates_per_interval": 1,
    },
    "smoke": {"run.env_steps": 20_000, "on_policy.num_envs": 16, "ppo.hidden": (32, 32)},
}
RENAMED = {
    "batch_size": ("off_policy.global_batch_size", "sizes are over all ranks; the guide's was for each rank"),
    "max_episodes": ("episodes", "over all ranks; the guide's was for each rank"),
    "a_lr": "ddpg.actor_lr",
    "c_lr": "ddpg.critic_lr",
    "load_model": ("run.resume", "a run folder or a checkpoint"),
}
