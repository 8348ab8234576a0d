"""Defines the options, algorithms and variants (named sets of options) of the recipe gym, without importing torch."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from powerband.algos.settings import DQNConfig, FastTD3Config, PPOConfig, SACConfig, TD3Config
from powerband.core.config import RunConfig
from powerband.core.config.ranges import Range, Seed, Size, Workers, check_ranges
from powerband.core.config.texts import shortened
from powerband.core.errors import ConfigError
from powerband.core.recipe import Algorithm
from powerband.envs.adapters.wrapping import Wrapping
from powerband.loops.config import OffPolicyConfig, OnPolicyConfig
from powerband.nets.choices import ImageNet
from powerband.recipes.gym.tuned import TUNED

IMPORTED = re.compile(r"[A-Za-z_][\w.]*:[\w./-]+")
"""Argument of an environment that may name something to import, as ``module:Name``."""
Hyper = Literal["tuned", "default"]

ALGORITHMS = {
    "sac": Algorithm("powerband.algos.sac:SAC", SACConfig(), "off_policy"),
    "td3": Algorithm("powerband.algos.td3:TD3", TD3Config(), "off_policy"),
    "fast_td3": Algorithm("powerband.algos.fast_td3:FastTD3", FastTD3Config(), "off_policy"),
    "dqn": Algorithm("powerband.algos.dqn:DQN", DQNConfig(), "off_policy"),
    "ppo": Algorithm(
        "powerband.algos.ppo:PPO",
        PPOConfig(hidden=(64, 64), entropy_coef=0.0, shared_trunk=False, fused=True),
        "on_policy",
    ),
}


@dataclass(frozen=True)
@check_ranges
class Config:
    env_id: str = "Pendulum-v1"
    """Gymnasium id, module:EnvId-v0 if the import of the module registers it, or module:parallel_env for a parallel
    environment of PettingZoo."""
    env_kwargs: str = ""
    """Keyword arguments of the environment as a JSON object, for example '{"continuous": true}'."""
    algo: str = "sac"
    """Algorithm: sac, td3 and fast_td3 need continuous actions, dqn needs discrete ones; ppo supports both."""
    num_workers: Workers = -1
    """Worker processes of each rank; 0 steps in the training process, -1 starts one per core of the rank (two with
    double_buffer), at most one per environment."""
    supervise: bool = True
    """Restart a simulator that fails, count the failure and end its episode; false ends the run instead."""
    worker_deadline_s: Annotated[float, Range(above=0, at_most=1e9)] = 60.0
    """Seconds without an answer after which a worker is restarted; needs supervise=true and workers."""
    hyper: Hyper = "tuned"
    """Hyper-parameters: tuned uses those of the task if powerband has an entry for it and the algorithm; default uses
    the general ones."""
    image_net: ImageNet = "auto"
    """Network for images in observations: auto is nature for sides of 36 pixels or more and small for smaller ones;
    flat joins the pixels to the other features."""
    eval_episodes: Size = 20
    """Episodes of an evaluation."""
    wrap: Wrapping = field(default_factory=Wrapping)
    run: RunConfig = field(default_factory=lambda: RunConfig(env_steps=100_000))
    off_policy: OffPolicyConfig = field(default_factory=lambda: OffPolicyConfig(num_envs=4, random_steps=1_000))
    on_policy: OnPolicyConfig = field(
        default_factory=lambda: OnPolicyConfig(num_envs=8, num_steps=256, epochs=10, minibatches=32, anneal_lr=False)
    )

    def __post_init__(self) -> None:
        self.env_arguments()

    def env_arguments(self) -> dict[str, Any]:
        """Returns the keyword arguments of the environment, read from `env_kwargs`.

        Raises:
            ConfigError: `env_kwargs` is not a JSON object.
        """
        try:
            arguments = json.loads(self.env_kwargs or "{}")
        except (ValueError, RecursionError) as error:
            arguments = error
        if not isinstance(arguments, dict):
            raise ConfigError(
                f"env_kwargs={shortened(self.env_kwargs)} is not a JSON object. Write for example "
                f"env_kwargs='{{\"continuous\": true}}', with double quotes around the names."
            )
        return arguments

    @property
    def loop(self) -> OffPolicyConfig | OnPolicyConfig:
        """Settings of the training loop that the chosen algorithm runs in: `off_policy` or `on_policy`."""
        return self.off_policy if ALGORITHMS[self.algo].loop == "off_policy" else self.on_policy


@dataclass(frozen=True)
@check_ranges
class Evaluation:
    """Options of ``powerband eval`` for a run of the recipe gym."""

    episodes: Size = 100
    """Episodes of each policy."""
    seed: Seed = 20_000
    """Seed of the environments; training and its evaluations use other seeds."""
    policies: tuple[Literal["policy", "random"], ...] = ("policy",)
    """Policies to evaluate: the policy of the run, and uniformly random actions."""
    video: bool = True
    """Record a video of one episode of the policy, if the environment renders images."""
    gpus: str = "none"
    """Device of the policy: none for the CPU, or the index of one GPU, such as 0."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Precision of the networks."""
    workers: Workers = 0
    """Worker processes of the environments; -1 starts one per core, 0 steps in this process."""


def task_settings(config: Config) -> dict[str, Any]:
    """Returns the tuned hyper-parameters for the task and algorithm of `config`: qualified name -> value.

    The dict is empty if there are none, or without ``hyper=tuned``.
    """
    return TUNED.get((config.env_id, config.algo), {}) if config.hyper == "tuned" else {}


def notices(config: Config) -> list[str]:
    """Returns messages that name the tuned hyper-parameters in use, and a deadline that has no effect."""
    settings, messages = task_settings(config), []
    if settings and not config.run.resume:
        listed = ", ".join(f"{name}={value}" for name, value in settings.items())
        messages.append(
            f"hyper=tuned: {config.env_id} with algo={config.algo} starts from {listed}. Settings that you give "
            f"override these; hyper=default uses the general ones."
        )
    if config.worker_deadline_s != Config.worker_deadline_s and not (config.supervise and config.num_workers):
        messages.append(
            f"worker_deadline_s={config.worker_deadline_s:g}: no effect with supervise=false or num_workers=0, which "
            f"restart no worker. Leave it out."
        )
    return messages


def imports(config: Config) -> dict[str, tuple[str, ...]]:
    """Returns option -> the names ``module:Name`` in it, which the environment imports."""
    return {
        "env_id": (config.env_id,) if ":" in config.env_id else (),
        "env_kwargs": tuple(
            filter(IMPORTED.fullmatch, _strings(config.env_arguments()))
        ),  # of an environment that makes another one
        "wrap.wrappers": config.wrap.wrappers,
    }


def _strings(value: Any) -> list[str]:
    """Returns the strings in a JSON value, also those in lists and objects in it."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [text for part in value for text in _strings(part)]
    return [value] if isinstance(value, str) else []


def check(config: Config, world_size: int) -> None:
    """Checks that batch sizes and numbers of environments are divisible by the number of ranks.

    It also checks that a rank has no more worker processes than environments, and that no action is repeated for goals
    that are relabelled.

    Args:
        config: Configuration of the run.
        world_size: Number of ranks (training processes of a distributed run).

    Raises:
        ConfigError: A setting is invalid.
    """
    config.loop.check(world_size)
    if config.loop is config.off_policy and config.off_policy.hindsight and config.wrap.action_repeat > 1:
        raise ConfigError(
            f"off_policy.hindsight={config.off_policy.hindsight} does not support wrap.action_repeat="
            f"{config.wrap.action_repeat}: the reward of a relabelled goal is that of one step, and a stored reward is "
            f"the sum of several. Write wrap.action_repeat=1, or off_policy.hindsight=0."
        )
    most = config.loop.num_envs // world_size
    if config.num_workers > most:
        raise ConfigError(
            f"num_workers={config.num_workers} is too large: it counts per rank, and each of {world_size} rank(s) has "
            f"{most} environments. Write num_workers={most} or less, or 0 to step in the training process."
        )


VARIANTS: dict[str, dict[str, Any]] = {
    "smoke": {
        "num_workers": 0,
        "run.env_steps": 1_000,
        "off_policy.num_envs": 1,
        "off_policy.learning_starts": 300,
        "off_policy.random_steps": 300,
        "sac.hidden": (64, 64),
    },
    "pendulum": {
        "hyper": "default",
        "env_id": "Pendulum-v1",
        "algo": "sac",
        "num_workers": 0,
        "run.env_steps": 15_000,
        "run.threads": 1,
        "off_policy.num_envs": 1,
        "off_policy.learning_starts": 300,
        "off_policy.random_steps": 300,
        "sac.actor_lr": 1e-3,
        "sac.critic_lr": 1e-3,
        "sac.hidden": (64, 64),  # an update takes a third of the time of 256 x 256
    },
    "fast_td3": {
        "algo": "fast_td3",
        "off_policy.num_envs": 32,
        "off_policy.global_batch_size": 512,
        "off_policy.update_interval": 32,
        "off_policy.updates_per_interval": 4,
        "off_policy.replay_size": 500_000,
    },
    "cartpole": {
        "hyper": "default",
        "env_id": "CartPole-v1",
        "algo": "ppo",
        "num_workers": 0,  # a step takes less time than to wake a worker
        "run.env_steps": 100_000,
        "run.threads": 1,
        "on_policy.num_steps": 32,
        "on_policy.epochs": 20,
        "on_policy.minibatches": 1,
        "on_policy.anneal_lr": True,
        "ppo.shared_trunk": True,
        "on_policy.gamma": 0.98,
        "on_policy.gae_lambda": 0.8,
        "ppo.lr": 1e-3,
    },
}
OLD_NAMES = {
    "env": "env_id",
    "total_timesteps": "env_steps",
    "warmup": "off_policy.learning_starts",
    "off_policy.warmup": "off_policy.learning_starts",
    "batch_size": "global_batch_size",
    "learning_rate": "lr",
    "n_envs": "num_envs",
    "n_steps": "num_steps",
    "n_epochs": "epochs",
    "buffer_size": "replay_size",
    "ent_coef": "entropy_coef",
    "clip_range": "clip",
}
