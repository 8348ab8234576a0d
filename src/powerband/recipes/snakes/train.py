"""Training of snakes: builds boards, opponents and learners, runs the training loop, and evaluates a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from powerband.algos.ddpg import DDPG
from powerband.core.config.sizes import per_rank, scaled_lr
from powerband.core.run.hooks import RunHooks
from powerband.core.run.run import Run
from powerband.loops.off_policy import off_policy
from powerband.loops.on_policy import on_policy
from powerband.loops.support.self_play import OpponentPool
from powerband.recipes.snakes.config import SCRIPTED, Config
from powerband.recipes.snakes.env.env import Opponent, SnakesEnv
from powerband.recipes.snakes.env.opponents import PolicyOpponent
from powerband.recipes.snakes.evaluation import SCRIPTED_OPPONENTS, as_player, evaluate_run, win_rates
from powerband.recipes.snakes.evaluation_options import Evaluation
from powerband.recipes.snakes.learners import best_actions, checkpoint_and_config, load, make_learner
from powerband.recipes.snakes.stored_opponent import StoredOpponent


def train(config: Config, run: Run) -> None:
    """Trains a team of snakes with the algorithm `config.algo` against the opponent `config.opponent`.

    The trained policy is exported at the end.

    Args:
        config: Configuration without automatic choices, the result of `finalize`.
        run: The run: its folder, device, ranks and console.
    """
    ranks, self_play = run.ranks, config.opponent == "self"
    opponent: Opponent
    if self_play:
        opponent = past_selves = PolicyOpponent(None, config.observation)
    elif config.opponent in SCRIPTED:
        opponent = SCRIPTED_OPPONENTS[config.opponent]()
    else:
        opponent = StoredOpponent(config.opponent, run.context)
        run.register("opponent", opponent, shared=True)
        if not config.run.resume:
            opponent.read()
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
        past_selves.act_fn = pool.act
        run.register("pool", pool, shared=True)
        on_policy(run, env, learner, config.on_policy, after_update=pool.after_update, hooks=hooks)
    run.export_policy(learner.policy_state())


def open_evaluator(run_dir: Path) -> Callable[[Path], dict[str, float]]:
    """Returns the evaluation of the run in `run_dir` for a process of its own: (checkpoint) -> results."""
    games = checkpoint_and_config(run_dir)[1].eval_games
    return lambda checkpoint: win_rates(as_player(*load(checkpoint)), games, "cpu")


def evaluate(config: Config, folder: Path, options: Evaluation) -> list[dict]:
    """Plays the newest checkpoint in the run folder `folder` against each opponent in `options`.

    Writes the results, and an image and a video per opponent, to the run folder. With the option ``export`` it writes a
    submission folder instead, and with ``play`` a person plays against the run. Only the number of threads is read from
    `config`; the rest of the configuration is read from the run folder.

    Returns:
        One dict per opponent: its name as ``opponent``, and the results that `evaluation.summary` computes, such as
        ``wins`` and ``score``. With ``export`` the folder and its files; with ``play`` one dict per game.
    """
    if options.export:
        from powerband.recipes.snakes.jidi.export import write_submission

        target = Path(options.export.partition(":")[2]).expanduser()
        files = write_submission(folder, target)
        print(f"{target}: {', '.join(files)}")
        return [{"platform": "jidi", "folder": str(target), "files": files}]
    if options.play:
        from powerband.recipes.snakes.by_hand.play import play_by_hand

        return play_by_hand(as_player(*load(folder)), folder, options)
    return evaluate_run(folder, replace(options, workers=options.workers or config.run.threads), load)
