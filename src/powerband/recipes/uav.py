"""uav: a team of UAVs learns where to look next, to map a hidden field within a budget of moves. COMA, and IAC."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from powerband.algos.coma import COMA, COMAConfig
from powerband.core.config import ConfigError, RunConfig
from powerband.core.noise import NoiseSource
from powerband.core.precision import Precision
from powerband.core.run import Run
from powerband.core.scaling import per_rank, scaled_lr
from powerband.data.types import EnvSpec
from powerband.envs.uav.env import UavEnv, spec_of
from powerband.envs.uav.world import World
from powerband.loops.on_policy import OnPolicyConfig, on_policy
from powerband.loops.returns import Targets
from powerband.recipes.uav_figures import Figures
from powerband.recipes.uav_mission import Evaluation, evaluate_run, quick_figures

describe = "a team of UAVs maps a hidden field: COMA (counterfactual) and IAC, thousands of missions on one device"


@dataclass(frozen=True)
class Config:
    algo: Literal["coma", "iac"] = "coma"
    """coma has a central critic and a counterfactual baseline; iac is the same without either."""
    batches: int = 5
    """Mini-batches' worth of transitions (of single UAVs) that a rollout collects at least, in whole missions."""
    iterations: int = 0
    """Budget in rollouts, instead of env_steps; 0 leaves it to episodes or env_steps."""
    episodes: int = 0
    """Budget in missions over all ranks, instead of env_steps; 0 leaves it to env_steps."""
    eval_missions: int = 50
    """Missions of an evaluation during training (eval_interval)."""
    figure_interval: int = 0
    """Rollouts between two pictures of a mission in TensorBoard, drawn beside the training; 0 draws none."""
    histogram_interval: int = 0
    """Rollouts between two sets of histograms of weights in TensorBoard; 0 writes none."""
    world: World = field(default_factory=World)
    run: RunConfig = field(default_factory=lambda: RunConfig(precision="auto", env_steps=1454 * 11 * 15))
    on_policy: OnPolicyConfig = field(
        default_factory=lambda: OnPolicyConfig(
            num_envs=0, num_steps=0, epochs=5, minibatches=1, minibatch_rows=128, gae_lambda=0.8, anneal_lr=False
        )
    )
    coma: COMAConfig = field(default_factory=COMAConfig)

    def settled(self) -> Config:
        """The same with the missions of a rollout counted and the budget in env steps.

        Raises:
            ConfigError: A rollout that does not hold whole missions, or two budgets.
        """
        steps, agents, loop = self.world.num_steps, self.world.n_agents, self.on_policy
        if loop.num_steps % steps:
            raise ConfigError(
                f"num_steps={loop.num_steps} is no whole number of missions of {steps} moves (budget + 1). "
                f"Write num_steps=0, or a multiple of {steps}."
            )
        if loop.minibatches != 1 or not loop.normalize_advantage:
            raise ConfigError(
                "minibatches and on_policy.normalize_advantage are ppo's and change nothing here. "
                "Write minibatch_rows=128, coma.normalize_advantage=true."
            )
        if self.batches < 1 or (not loop.num_envs and not loop.minibatch_rows):
            raise ConfigError("missions are counted from batches times minibatch_rows: both are 1 or more.")
        num_steps = loop.num_steps or steps
        missions = loop.num_envs or -(-self.batches * loop.minibatch_rows // (num_steps * agents))
        if self.iterations and self.episodes:
            raise ConfigError(
                f"iterations={self.iterations} and episodes={self.episodes} are two budgets. Write one of them."
            )
        a_rollout = missions * num_steps
        rollouts = self.iterations or -(-self.episodes * steps // a_rollout)
        run = replace(self.run, env_steps=rollouts * a_rollout) if rollouts else self.run
        loop = replace(loop, num_envs=missions, num_steps=num_steps)
        return replace(self, run=run, on_policy=loop, iterations=0, episodes=0)


def train(config: Config, run: Run) -> None:
    """Trains on missions of its own making."""
    loop, world, ranks = config.on_policy, config.world, run.ranks
    missions = per_rank("num_envs", loop.num_envs, ranks.world_size)
    run.console.note("building the missions; the first start on a machine compiles their rules, about a minute")
    env = UavEnv(missions, world, device=run.device, seed=config.run.seed, first_env=ranks.rank * missions)
    rates, run.facts["learning rates"] = scaled_lr(config.coma, config.run.lr_scale, ranks.world_size)
    shared = (run.device, run.precision, run.noise, ranks.average_, ranks.world_size)
    learner = COMA(env.spec, rates, *shared, env.masked_sample, config.algo == "coma")
    rollouts = -(-config.run.env_steps // (loop.num_envs * loop.num_steps))
    run.facts["missions"] = (
        f"{world.n_agents} UAVs, {world.num_steps} moves, {world.map_cells} x {world.map_cells} cells; "
        f"{rollouts:,} iterations of {loop.num_envs * loop.num_steps // world.num_steps} missions = "
        f"{rollouts * loop.num_envs * loop.num_steps // world.num_steps:,} episodes"
    )
    run.evaluate = lambda: quick_figures(learner, world, config.eval_missions, run.device)
    returns = Targets(run, learner, loop.gamma, loop.gae_lambda, world.n_agents)
    with Figures(run, learner, world, config.figure_interval, config.histogram_interval) as figures:
        on_policy(run, env, learner, loop, after_update=figures.after_update, returns=returns)
    run.export_policy(learner.policy_state())


def networks(config: Config, device: Any, precision: Precision) -> tuple[Any, EnvSpec, Any]:
    """A new learner of a settled configuration, what it sees, and its loop's sizes; `doctor` times it."""
    spec = spec_of(config.world)
    learner = COMA(spec, config.coma, device, precision, NoiseSource(0, device), counterfactual=config.algo == "coma")
    return learner, spec, config.on_policy


def evaluate(config: Config, folder: Path, options: Evaluation) -> list[dict]:
    """The newest checkpoint against the planners on the same missions; table, curves, picture, video."""
    return evaluate_run(folder, config.world, networks(config, "cpu", Precision("fp32", "cpu"))[0], options)


def settle(config: Config, stage: str) -> Config:
    """What is trained, saved and shown."""
    return config.settled()


def check(config: Config, world_size: int) -> None:
    """Refuses sizes that do not divide by the ranks, before any rank is started."""
    config.on_policy.check(world_size)
    config.world.own_map()


STAGES = {"train": train}
SECTIONS = {"coma": ("coma", "on_policy"), "iac": ("coma", "on_policy")}
DEFAULT_STAGE = "train"
CONFIG_VARIABLE = "CONFIG_FILE_PATH"
VARIANTS = {
    "paper": {"on_policy.minibatch_rows": 60, "run.env_steps": 1500 * 5 * 15, "run.precision": "fp32"},
    "guide": {"on_policy.minibatch_rows": 128, "run.env_steps": 1454 * 11 * 15},
    "fast": {
        "world.centred_maps": True,
        "run.time_limit_s": 900,
        "run.env_steps": 1_000_000_000,
        "coma.actor_lr": 2e-4,
        "coma.critic_lr": 1e-3,
        "coma.sampled_advantage": True,
        "coma.normalize_advantage": True,
        "coma.epsilon_start": 0.3,
        "coma.epsilon_episodes": 3_000,
        "coma.target_interval": 5,
        "coma.width": 64,
        "on_policy.gamma": 0.8,
        "on_policy.num_envs": 32,
        "on_policy.epochs": 1,
        "on_policy.anneal_lr": True,
    },
    "smoke": {"run.env_steps": 4 * 4 * 15, "on_policy.num_envs": 4, "coma.width": 16, "world.map_cells": 121},
}
RENAMED = {
    "networks.device": ("run.gpus", "cpu, cuda, or indices"),
    "device": ("run.gpus", "cpu, cuda, or indices"),
    "networks.batch_size": ("on_policy.minibatch_rows", "transitions of single UAVs, over all ranks"),
    "batch_size": ("on_policy.minibatch_rows", "transitions of single UAVs, over all ranks"),
    "networks.batch_number": "batches",
    "batch_number": "batches",
    "networks.data_passes": "on_policy.epochs",
    "data_passes": "on_policy.epochs",
    "networks.gamma": "on_policy.gamma",
    "networks.lambda": "on_policy.gae_lambda",
    "networks.copy_rate": "coma.target_interval",
    "networks.actor.learning_rate": "coma.actor_lr",
    "networks.critic.learning_rate": "coma.critic_lr",
    "experiment.missions.n_agents": "world.n_agents",
    "experiment.missions.n_episodes": ("iterations", "it counts collections of batch_size x batch_number transitions"),
    "n_episodes": ("iterations", "it counts collections of batch_size x batch_number transitions"),
    "experiment.missions.eps_max": "coma.epsilon_start",
    "experiment.missions.eps_min": "coma.epsilon_end",
    "experiment.missions.eps_anneal_phase": "coma.epsilon_episodes",
    "experiment.constraints.budget": "world.budget",
    "experiment.uav.communication_range": "world.comm_range_m",
    "experiment.uav.failure_rate": "world.failure_rate",
    "environment.seed": "run.seed",
    "logging.figure_interval": "figure_interval",
    "logging.histogram_interval": "histogram_interval",
}
