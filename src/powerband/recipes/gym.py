"""gym: SAC and PPO on any Gymnasium id, the user's own included, simulators in worker processes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from powerband.algos.ppo import PPO, PPOConfig
from powerband.algos.sac import SAC, SACConfig
from powerband.core.checkpoint import load_checkpoint, resolve_resume
from powerband.core.config import ConfigError, RunConfig
from powerband.core.flags import at_least
from powerband.core.noise import NoiseSource
from powerband.core.precision import Precision
from powerband.core.run import Run
from powerband.core.scaling import per_rank, scaled_lr
from powerband.data.types import EnvSpec
from powerband.envs.gymnasium_env import GymVecEnv
from powerband.envs.supervision import Fault, Supervision
from powerband.envs.vector import WorkerVecEnv
from powerband.loops import evaluate as evaluation
from powerband.loops.off_policy import OffPolicyConfig, off_policy
from powerband.loops.on_policy import OnPolicyConfig, on_policy

describe = "SAC (continuous) and PPO (both) on any Gymnasium environment id, your own included"


@dataclass(frozen=True)
class Config:
    env_id: str = "Pendulum-v1"
    """A Gymnasium id, or module:EnvId-v0 where importing the module registers it."""
    algo: Literal["sac", "ppo"] = "sac"
    """sac learns off-policy and wants continuous actions; ppo takes both kinds."""
    num_workers: int = -1
    """Worker processes of each rank; 0 steps in the training process, -1 is one a core (two with double_buffer), at
    most one an environment."""
    supervise: bool = True
    """A simulator that fails is made anew, and the others go on: its episode is cut and counted. False ends the run."""
    worker_deadline_s: float = 60.0
    """Seconds that a worker may take for a step before it is ended as hanging and started again (supervise)."""
    eval_episodes: int = 20
    """Episodes of an evaluation."""
    run: RunConfig = field(default_factory=lambda: RunConfig(env_steps=20_000))
    off_policy: OffPolicyConfig = field(default_factory=lambda: OffPolicyConfig(num_envs=4, random_steps=1_000))
    on_policy: OnPolicyConfig = field(default_factory=lambda: OnPolicyConfig(num_envs=8, num_steps=64, epochs=10))
    sac: SACConfig = field(default_factory=SACConfig)
    ppo: PPOConfig = field(default_factory=lambda: PPOConfig(hidden=(64, 64), entropy_coef=0.0))


def make_env(
    config: Config,
    num_envs: int,
    workers: int,
    seed: int,
    rank: int = 0,
    device: str = "cpu",
    tell: Callable[[Fault], object] | None = None,
) -> WorkerVecEnv:
    """`num_envs` environments of this rank; `tell` is handed each failure that was recovered from."""
    if workers < 0:
        by_turns = config.algo == "ppo" and config.on_policy.double_buffer
        workers = min(num_envs, (os.cpu_count() or 1) * (2 if by_turns else 1))
    patience = Supervision(deadline_s=config.worker_deadline_s) if config.supervise else None
    words = {"first_env": rank * num_envs, "supervision": patience, "tell": tell}
    return GymVecEnv(config.env_id, num_envs, workers, device, seed, **words)


def make_learner(config: Config, env: WorkerVecEnv, run: Run) -> SAC | PPO:
    """The algorithm that ``algo=`` names, on this rank."""
    section, world_size = (config.sac if config.algo == "sac" else config.ppo), run.ranks.world_size
    section, run.facts["learning rates"] = scaled_lr(section, config.run.lr_scale, world_size)
    kind = SAC if config.algo == "sac" else PPO
    return kind(env.spec, section, run.device, run.precision, run.noise, run.ranks.average_, world_size)


def networks(config: Config, device: Any, precision: Precision) -> tuple[Any, EnvSpec, Any]:
    """A new learner of `config`, what it sees, and its loop's sizes; `doctor` times it."""
    env = make_env(config, 1, 0, config.run.seed)
    env.close()
    if config.algo == "sac":
        return SAC(env.spec, config.sac, device, precision, NoiseSource(0, device)), env.spec, config.off_policy
    return PPO(env.spec, config.ppo, device, precision, NoiseSource(0, device)), env.spec, config.on_policy


def train(config: Config, run: Run) -> None:
    """Trains on ``env_id``."""
    loop = config.off_policy if config.algo == "sac" else config.on_policy
    num_envs = per_rank("num_envs", loop.num_envs, run.ranks.world_size)

    def tell(fault: Fault) -> None:
        run.console.note(str(fault))
        run.metrics.scalar("charts/env_failures", sum(env.record.counts.values()))

    env = make_env(config, num_envs, config.num_workers, config.run.seed, run.ranks.rank, run.device, tell)
    try:
        learner = make_learner(config, env, run)
        run.evaluate = lambda: summary(play(config, learner, config.eval_episodes))
        if config.algo == "sac":
            off_policy(run, env, learner, config.off_policy)
        else:
            on_policy(run, env, learner, config.on_policy)
        run.export_policy(learner.policy_state())
    finally:
        env.close()


def play(config: Config, learner: SAC | PPO, episodes: int, seed: int = 10_000) -> dict:
    """Episodes without exploring, on seeds that training does not use."""
    env = make_env(config, min(episodes, 10), 0, seed)
    try:
        return evaluation.evaluate(
            env,
            lambda obs, carry: learner.act(obs, carry, explore=False)[::2],
            episodes,
            seed,
            learner.initial_carry(env.num_envs),
        )
    finally:
        env.close()


def summary(figures: dict) -> dict[str, float]:
    """Mean return with its interval, and the mean length."""
    mean, low, high = evaluation.mean_interval(figures["return"])
    return {"return": mean, "return_low": low, "return_high": high, "length": float(figures["length"].mean())}


def check(config: Config, world_size: int) -> None:
    """Refuses sizes that do not divide by the ranks, and idle workers, before any rank is started."""
    loop = config.off_policy if config.algo == "sac" else config.on_policy
    loop.check(world_size)
    most = loop.num_envs // world_size
    if config.num_workers > most:
        raise ConfigError(
            f"num_workers={config.num_workers} are of each rank, and each of {world_size} rank(s) has {most} "
            f"environments. Write num_workers={most} or less, 0 to step in the training process."
        )


@dataclass(frozen=True)
class Evaluation:
    """What `powerband eval` can be told about a run of gym."""

    episodes: int = 100
    """Episodes."""
    seed: int = 10_000
    """Seed of the environments; training uses others."""

    def __post_init__(self) -> None:
        at_least(self, episodes=1)


def evaluate(config: Config, folder: Path, options: Evaluation) -> list[dict]:
    """Plays the newest checkpoint without exploring; the table also goes to ``eval-episodes.json``."""
    path, _ = resolve_resume(str(folder))
    learner, _, _ = networks(config, "cpu", Precision("fp32", "cpu"))
    learner.load_state_dict(load_checkpoint(path, "shared")[0]["learner"])
    found = summary(play(config, learner, options.episodes, options.seed))
    interval = f"[{found['return_low']:,.1f}, {found['return_high']:,.1f}]"
    mean, length = f"{found['return']:,.1f}", f"{found['length']:,.0f}"
    print(f"{config.env_id}: return {mean} {interval} over {options.episodes} episodes of {length} steps")
    rows = [{"env_id": config.env_id, "episodes": options.episodes, **found}]
    (folder / "eval-episodes.json").write_text(json.dumps({"options": options.__dict__, "rows": rows}, indent=2))
    return rows


STAGES = {"train": train}
SECTIONS = {"sac": ("sac", "off_policy"), "ppo": ("ppo", "on_policy")}
DEFAULT_STAGE = "train"
VARIANTS = {
    "pendulum": {
        "env_id": "Pendulum-v1",
        "algo": "sac",
        "num_workers": 0,
        "run.env_steps": 15_000,
        "run.threads": 1,
        "off_policy.num_envs": 1,
        "off_policy.warmup": 300,
        "off_policy.random_steps": 300,
        "sac.actor_lr": 1e-3,
        "sac.critic_lr": 1e-3,
        "sac.hidden": (64, 64),  # three observations and one action: an update costs a third of 256 x 256
    },
    "cartpole": {
        "env_id": "CartPole-v1",
        "algo": "ppo",
        "num_workers": 0,  # a step costs less than waking a worker
        "run.env_steps": 100_000,
        "run.threads": 1,
        "on_policy.num_steps": 32,
        "on_policy.epochs": 20,
        "on_policy.minibatches": 1,
        "on_policy.gamma": 0.98,
        "on_policy.gae_lambda": 0.8,
        "ppo.lr": 1e-3,
    },
}
RENAMED = {
    "env": "env_id",
    "total_timesteps": "env_steps",
    "learning_starts": "warmup",
    "batch_size": "global_batch_size",
}
