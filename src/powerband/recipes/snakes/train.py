"""Training of snakes: builds boards, opponents and learners, runs the training loop, and evaluates a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from powerband.algos.ddpg import DDPG
from powerband.algos.ppo import PPO
from powerband.core.config import from_json
from powerband.core.config.saved import saved_text
from powerband.core.config.sizes import per_rank, scaled_lr
from powerband.core.rank_context import RankContext
from powerband.core.run.checkpoint import resolve_resume
from powerband.core.run.run import Run, RunHooks
from powerband.core.run.state_registry import restore_learner
from powerband.data.types import EnvSpec, Learner
from powerband.loops.off_policy import off_policy
from powerband.loops.on_policy import on_policy
from powerband.loops.support.self_play import OpponentPool
from powerband.recipes.snakes.config import OLD_NAMES, Config, Evaluation
from powerband.recipes.snakes.env.env import SnakesEnv, make_env_spec
from powerband.recipes.snakes.env.opponents import PolicyOpponent
from powerband.recipes.snakes.evaluation import SCRIPTED_OPPONENTS, as_player, evaluate_run, win_rates
from powerband.recipes.snakes.nets.team import TeamMLP
from powerband.recipes.snakes.nets.torus import TorusConv


def train(config: Config, run: Run) -> None:
    """Trains a team of snakes with the algorithm `config.algo` against the opponent `config.opponent`.

    The trained policy is exported at the end.

    Args:
        config: Configuration without automatic choices, the result of `finalize`.
        run: The run: its folder, device, ranks and console.
    """
    ranks, self_play = run.ranks, config.opponent == "self"
    opponent = PolicyOpponent(None, config.observation) if self_play else SCRIPTED_OPPONENTS[config.opponent]()
    num_envs = per_rank("num_envs", config.loop.num_envs, ranks.world_size)
    mirrored = config.mirrored if self_play else 0.0
    run.console.note("The first start on a machine compiles the rules of the game, which takes about half a minute.")
    env = SnakesEnv(
        num_envs,
        device=run.device,
        seed=config.run.seed,
        observation=config.observation,
        reward=config.reward,
        opponents=[(1.0 - mirrored, opponent)],
        mirrored=mirrored,
        first_board=ranks.rank * num_envs,
    )
    if config.algo == "ppo":
        settings, rates = scaled_lr(config.ppo, config.run.lr_scale, ranks.world_size)
        config = replace(config, ppo=settings)
    else:
        settings, rates = scaled_lr(config.ddpg, config.run.lr_scale, ranks.world_size)
        config = replace(config, ddpg=settings)
    learner = make_learner(config, env.spec, run.context)
    layout = f"{num_envs} boards per rank (the learner plays both teams on {env.mirrored}), {config.observation}"
    run.describe({"learning rates": rates, "env": f"{layout}, reward {config.reward}", "opponent": config.opponent})
    hooks = RunHooks(
        evaluate=lambda: win_rates(as_player(learner, config.observation), config.eval_games, run.device),
        evaluator="powerband.recipes.snakes.train:open_evaluator",
    )
    if isinstance(learner, DDPG):
        off_policy(run, env, learner, config.off_policy, hooks=hooks)
    elif not self_play:
        on_policy(run, env, learner, config.on_policy, hooks=hooks)
    else:
        pool = OpponentPool(learner.modules, best_actions, config.pool_size, config.snapshot_interval)
        opponent.act_fn = pool.act
        run.register("pool", pool, shared=True)
        on_policy(run, env, learner, config.on_policy, after_update=pool.after_update, hooks=hooks)
    run.export_policy(learner.policy_state())


def make_learner(config: Config, spec: EnvSpec, context: RankContext) -> DDPG | PPO:
    """Creates the learner that `config.algo` names: PPO for ppo, DDPG for ddpg and bicnet.

    Args:
        config: Configuration without automatic choices, the result of `finalize`.
        spec: Observation and action spaces of the boards.
        context: Device, precision and random numbers of this rank.
    """
    if config.algo == "ppo":
        encoder = TorusConv(*spec.obs.shape[1:]) if config.observation == "planes" else None
        return PPO(spec, config.ppo, context, encoder=encoder)
    communicate = "lstm" if config.algo == "bicnet" else config.ddpg.communicate
    settings = replace(config.ddpg, communicate=communicate)
    return DDPG(
        spec,
        settings,
        context,
        lambda inputs, outputs: TeamMLP(inputs, settings.hidden, outputs, settings.communicate),
    )


def build_learner(config: Config, context: RankContext) -> tuple[Learner, EnvSpec, Any]:
    """Creates a learner without boards, for ``powerband doctor`` and for tests.

    Returns:
        The learner, the observation and action spaces of its boards, and the settings of its training loop, such as
        the number of boards and the batch size.
    """
    spec = make_env_spec(config.observation)
    return make_learner(config, spec, context), spec, config.loop


def best_actions(modules: nn.ModuleDict, obs: Tensor) -> Tensor:
    """Computes the most likely actions of a PPO policy for one team on n boards.

    Args:
        modules: The policy network ``net`` and, for the observation ``planes``, the network ``encoder`` before it.
        obs: Observations (n, 3, ...) float32 of the three snakes.

    Returns:
        Actions (n, 3) int64.
    """
    rows = obs.flatten(0, 1)
    if "encoder" in modules:
        rows = modules["encoder"](rows)
    return modules["net"](rows)[0].argmax(-1).view(obs.shape[:2])


def load(folder: Path, context: RankContext | None = None) -> tuple[Learner, str]:
    """Loads a trained learner from a run folder or from one of its checkpoints.

    Args:
        folder: The folder.
        context: Device and precision of the learner; None is the CPU in fp32.

    Returns:
        The learner, and the name of the observation that it was trained with, a key of `OBSERVATIONS`.
    """
    path, _ = resolve_resume(str(folder))
    file = path.parent.parent / "config.json"
    config = from_json(Config, saved_text(file), str(file), OLD_NAMES)
    learner = make_learner(config, make_env_spec(config.observation), context or RankContext.single())
    restore_learner(path, learner)
    return learner, config.observation


def open_evaluator(run_dir: Path) -> Callable[[Path], dict[str, float]]:
    """Returns the evaluation of the run in `run_dir` for a process of its own: (checkpoint) -> results."""
    file = run_dir / "config.json"
    games = from_json(Config, saved_text(file), str(file), OLD_NAMES).eval_games
    return lambda checkpoint: win_rates(as_player(*load(checkpoint)), games, "cpu")


def evaluate(config: Config, folder: Path, options: Evaluation) -> list[dict]:
    """Plays the newest checkpoint in the run folder `folder` against each opponent in `options`.

    Writes the results, and an image and a video per opponent, to the run folder. The configuration is read from the
    run folder, so `config` is not used.

    Returns:
        One dict per opponent: its name as ``opponent``, and the results that `evaluation.summary` computes, such as
        ``wins`` and ``score``.
    """
    return evaluate_run(folder, options, load)
