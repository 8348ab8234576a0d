"""Training and evaluation of point-mass."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from powerband.core.config.sizes import per_rank
from powerband.core.rank_context import RankContext
from powerband.core.recipe import load_object
from powerband.core.run.checkpoints.checkpoint import load_checkpoint, resolve_resume
from powerband.core.run.hooks import RunHooks
from powerband.core.run.run import Run
from powerband.data.types import EnvSpec, Learner
from powerband.loops.evaluate import evaluate as play_episodes
from powerband.loops.evaluate import wilson_interval
from powerband.loops.off_policy import off_policy
from powerband.loops.on_policy import on_policy
from powerband_point_mass.config import ALGORITHMS, Config, Evaluation
from powerband_point_mass.env import PointMassEnv


def build_learner(config: Config, context: RankContext) -> tuple[Learner, EnvSpec, Any]:
    """A new learner, the spaces of its environment, and the sizes of its loop."""
    spec = PointMassEnv(1, config.horizon, config.speed).spec
    return load_object(ALGORITHMS[config.algo].learner)(spec, getattr(config, config.algo), context), spec, config.loop


def train(config: Config, run: Run) -> None:
    """Trains the algorithm that `algo` names."""
    num_envs = per_rank("num_envs", config.loop.num_envs, run.ranks.world_size)
    first_env = run.ranks.rank * num_envs
    env = PointMassEnv(num_envs, config.horizon, config.speed, config.run.seed, first_env, run.device)
    learner, _, _ = build_learner(config, run.context)
    hooks = RunHooks(evaluate=lambda: success(config, learner, 50, run.device))
    if ALGORITHMS[config.algo].loop == "on_policy":
        on_policy(run, env, learner, config.on_policy, hooks=hooks)
    else:
        off_policy(run, env, learner, config.off_policy, hooks=hooks)
    run.export_policy(learner.policy_state())


def success(config: Config, learner: Learner, episodes: int, device: torch.device | str = "cpu") -> dict[str, float]:
    """Plays episodes without exploration on the device of the learner, on seeds that training does not use."""
    env = PointMassEnv(min(episodes, 50), config.horizon, config.speed, seed=10_000, device=device)
    carry = learner.initial_carry(env.num_envs)
    figures = play_episodes(env, lambda obs, carry: learner.act(obs, carry, False)[::2], episodes, 10_000, carry)
    return {"success": float(figures["success"].mean()), "length": float(figures["length"].mean())}


def evaluate(config: Config, folder: Path, options: Evaluation) -> list[dict]:
    """Success rate of the newest checkpoint, with a 95 % interval."""
    path, _ = resolve_resume(str(folder))
    learner, _, _ = build_learner(config, RankContext.single())
    learner.load_state_dict(load_checkpoint(path, "shared")[0]["learner"])
    result = success(config, learner, options.episodes)
    low, high = wilson_interval(result["success"] * options.episodes, options.episodes)
    print(f"success {result['success']:.1%} [{low:.1%}, {high:.1%}] in {result['length']:.1f} steps on average")
    rows = [{"episodes": options.episodes, **result, "success_95": [low, high]}]
    (folder / "eval.json").write_text(json.dumps(rows, indent=2))
    return rows
