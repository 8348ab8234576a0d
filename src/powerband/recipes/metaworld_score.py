"""Scores of metaworld: success on the 50 goals, tables of policies, a film."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from powerband.core.checkpoint import load_checkpoint, resolve_resume
from powerband.core.config import ConfigError
from powerband.core.console import count_shown
from powerband.core.run import Run
from powerband.core.run_folder import find_run
from powerband.data.types import VecEnv
from powerband.envs.encoded import EncodedVecEnv
from powerband.envs.metaworld.env import metaworld_envs
from powerband.envs.metaworld.single import MetaWorldEnv, scripted
from powerband.envs.metaworld.tasks import ACTION, MT10, OBS, TEN, tasks_of
from powerband.loops.evaluate import Policy, evaluate, mean_interval, wilson
from powerband.nets.collective import state_of
from powerband.recipes.metaworld import Config, Evaluation, networks
from powerband.recipes.metaworld_project import (
    REWARD_SCALE,
    MissingStage,
    collective_of,
    encoder_of,
    expert_of,
    load_policy,
)

SIDE_BY_SIDE = 10
"""Environments of an evaluation; each plays every tenth of the 50 goals."""


class Trials:
    """Environments for evaluations, made once: the 50 goals in turn, by the metaworld package itself.

    Args:
        config: Task and horizon.
        coded: Wraps them, where the policy wants more than the bare observation.
    """

    def __init__(self, config: Config, coded: Callable[[VecEnv], VecEnv] | None = None) -> None:
        self.config, self.coded = config, coded
        self.env: VecEnv | None = None

    def __enter__(self) -> Trials:
        return self

    def __exit__(self, *_: Any) -> None:
        if self.env is not None:
            self.env.close()

    def play(self, policy: Policy, episodes: int, shown: str = "") -> dict[str, Tensor]:
        """One row an episode; goals go on where the evaluation before left them. `shown` names it on a bar."""
        if self.env is None:
            count = min(SIDE_BY_SIDE, episodes) if self.config.task != MT10 else len(TEN)
            bare = metaworld_envs(self.config.simulated(), count, 0, cycled=True)
            self.env = bare if self.coded is None else self.coded(bare)
        with count_shown(shown, episodes, "episodes") as tell:
            return evaluate(self.env, policy, episodes, 10_000, tell=tell)

    def figures(self, policy: Policy, episodes: int) -> dict[str, float]:
        """`figures_of` so many episodes of all tasks together."""
        return figures_of(self.play(policy, episodes))

    def by_task(self, policy: Policy, episodes: int, shown: str) -> list[dict[str, Any]]:
        """A row for each task: its name, and `figures_of` so many episodes of it, with a bar."""
        tasks = tasks_of(self.config.task)
        played = self.play(policy, episodes * len(tasks), shown)
        assert self.env is not None
        place = played["env"] // (self.env.num_envs // len(tasks))
        return [
            {"task": task, **figures_of({name: values[place == index] for name, values in played.items()})}
            for index, task in enumerate(tasks)
        ]

    def final(self, run: Run, policy: Policy, episodes: int) -> dict[str, float]:
        """`figures` at the end of a stage, on the leading rank; said, and written to ``final.json`` of the run."""
        if not run.ranks.leads or not episodes:
            run.ranks.barrier()
            return {}
        figures = self.figures(policy, episodes)
        (run.dir / "final.json").write_text(json.dumps({**figures, "env_steps": run.env_steps}, indent=2))
        low, high = figures["success_low"], figures["success_high"]
        run.console.note(
            f"{self.config.task}: {figures['success']:.0%} of {figures['episodes']} episodes on the 50 goals "
            f"[{low:.0%}, {high:.0%}], mean return {figures['return']:,.0f}"
        )
        run.ranks.barrier()
        return figures


def figures_of(played: dict[str, Tensor]) -> dict[str, float]:
    """Share of episodes (a row each, as `evaluate` gives them) that succeeded with its interval, and mean return."""
    wins, trials = float(played["success"].sum()), len(played["success"])
    low, high = wilson(wins, trials)
    mean, _, _ = mean_interval(played["return"])
    return {"success": wins / trials, "success_low": low, "success_high": high, "return": mean, "episodes": trials}


def acting(learner: Any) -> Policy:
    """A learner without exploring."""
    return lambda obs, carry: learner.act(obs, carry, explore=False)[::2]


def by_collective(config: Config) -> tuple[Policy, Callable[[VecEnv], VecEnv]]:
    """The collective policy, and what its environments are wrapped in."""
    encoder, net = encoder_of(config), collective_of(config)

    def coded(env: VecEnv) -> VecEnv:
        sizes = encoder.config
        return EncodedVecEnv(env, encoder.encode, state_of, sizes.code, sizes.length, REWARD_SCALE, whole=False)

    @torch.no_grad()
    def act(obs: Any, carry: None) -> tuple[Tensor, None]:
        return net.policy(obs["z"], obs["s"])[0], None

    return act, coded


def by_rule(task: str) -> Policy:
    """Meta-World's own hand-written policies; rows are in equal shares of the tasks that `task` stands for."""
    rules = [scripted(name) for name in tasks_of(task)]

    def act(obs: Tensor, carry: None) -> tuple[Tensor, None]:
        own = [rules[row * len(rules) // len(obs)] for row in range(len(obs))]
        actions = [rule(seen) for rule, seen in zip(own, obs[:, :OBS].numpy(), strict=True)]
        return torch.stack([torch.from_numpy(action).float() for action in actions]), None

    return act


def at_random() -> Policy:
    """Actions drawn uniformly from [-1, 1], the same ones every time."""
    draw = torch.Generator().manual_seed(0)
    return lambda obs, carry: (torch.rand(len(obs), ACTION, generator=draw) * 2 - 1, None)


def table(config: Config, run: Run) -> list[dict[str, Any]]:
    """A row for each task and policy that there is; experts or a collective network that are missing are left out."""
    from dataclasses import replace

    rows = []
    for task in config.tasks:
        own = replace(config, task=task)
        for name in ("expert", "collective", "scripted"):
            coded = None
            try:
                if name == "expert":
                    policy = acting(expert_of(config, task))
                elif name == "collective":
                    policy, coded = by_collective(config)
                else:
                    policy = by_rule(task)
            except MissingStage as missing:
                run.console.note(str(missing))
                continue
            with Trials(own, coded) as trials:
                rows.append({"task": task, "policy": name, **trials.figures(policy, config.final_episodes)})
            run.console.note(
                f"{task} {name}: {rows[-1]['success']:.0%} [{rows[-1]['success_low']:.0%}, "
                f"{rows[-1]['success_high']:.0%}]"
            )
    if not rows:
        raise ConfigError("there is nothing to evaluate. Write powerband train metaworld expert task=reach first.")
    return rows


def as_text(rows: list[dict[str, Any]]) -> str:
    """Tasks down, policies across."""
    policies = list(dict.fromkeys(row["policy"] for row in rows))
    lines = [f"{'task':<22}" + "".join(f"{name:>22}" for name in policies)]
    for task in dict.fromkeys(row["task"] for row in rows):
        own = {row["policy"]: row for row in rows if row["task"] == task}
        cells = [
            f"{own[name]['success']:.0%} [{own[name]['success_low']:.0%}, {own[name]['success_high']:.0%}]"
            if name in own
            else "-"
            for name in policies
        ]
        lines.append(f"{task:<22}" + "".join(f"{cell:>22}" for cell in cells))
    return "\n".join(lines)


# -- one run ------------------------------------------------------------------------------------------------------


def evaluate_run(config: Config, folder: Path, options: Evaluation) -> list[dict]:
    """Success on the 50 goals of a run's exported policy, or of a checkpoint in it (the newest, where training has not
    ended); a film of each task, a picture of its end."""
    from powerband.core.precision import Precision

    run = find_run(str(folder))
    stage = json.loads((run / "run.json").read_text(encoding="utf-8"))["stage"]
    if stage not in ("expert", "student"):
        raise ConfigError(
            f"{folder} is a run of {stage}, whose policy is not one network alone. Write powerband train metaworld "
            f"evaluate project={config.project}."
        )
    sac, _, _ = networks(config, "cpu", Precision("fp32", "cpu"))
    if folder == run and (run / "policy").exists():
        _, tensors = load_policy(folder, f"powerband train metaworld {stage} task={config.task}")
        sac.actor.load_state_dict({name: tensor for name, tensor in tensors.items() if name not in ("centre", "scale")})
    else:
        saved, notices = resolve_resume(str(run)) if folder == run else (folder, [])
        print("\n".join([*notices, f"the policy after {int(saved.name):,} env steps"]), flush=True)
        learner = load_checkpoint(saved, "shared")[0]["learner"]
        sac.load_state_dict(learner["sac"] if stage == "student" else learner)
    players: dict[str, Callable[[], Policy]] = {
        "policy": lambda: acting(sac),
        "random": at_random,
        "scripted": lambda: by_rule(config.task),
    }
    rows = []
    with Trials(config) as trials:
        for name in dict.fromkeys(options.policies):
            who = stage if name == "policy" else name
            own = [{**row, "policy": who} for row in trials.by_task(players[name](), options.episodes, who)]
            means = (sum(row[figure] for row in own) / len(own) for figure in ("success", "return"))
            print("{}: {:.1%} on average, mean return {:,.0f}".format(who, *means), flush=True)
            rows += own
    print(as_text(rows))
    for row in rows:
        if options.video and row["policy"] == stage:
            row["video"] = str(film(config, row["task"], acting(sac), folder, options.size))
            print(f"film: {row['video']}")
    (folder / "evaluation.json").write_text(json.dumps(rows, indent=2))
    return rows


def film(config: Config, task: str, policy: Policy, folder: Path, size: int) -> Path:
    """One episode by Meta-World's own renderer, to ``videos/<task>.mp4`` and ``<task>.png``."""
    from powerband.report.film import save_picture, write_video

    words = {"render_size": size, "reward_version": config.reward_version}
    code = (TEN.index(task), len(TEN)) if config.task == MT10 else None
    env = MetaWorldEnv(task, config.horizon, "cycled", one_hot=code, **words)
    frames = []
    try:
        obs, _ = env.reset()
        for step in range(config.horizon):
            action, _ = policy(torch.from_numpy(obs).float().unsqueeze(0), None)
            obs, _, _, truncated, info = env.step(action[0].numpy())
            if step % 2 == 0:
                frames.append(env.render())
            if truncated or (info["success"] and len(frames) > 60):
                break
    finally:
        env.close()
    save_picture(folder / f"{task}.png", frames[-1])
    return write_video(frames, folder / "videos" / f"{task}.mp4", fps=20)
