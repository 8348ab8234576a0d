"""Scores of trained policies over several seeds with 95 % intervals, compared with the baselines of each evaluation.

Baselines are the other policies of an evaluation, such as scripted opponents, planners or random actions. Each case
writes one JSON file to `benchmarks/results/learning`. Finished runs are not trained again, and interrupted runs are
resumed. ``--jobs 2`` trains two runs at the same time; the arguments of a case set the threads of each run.

    python benchmarks/learning/scores.py pendulum --seeds 0 1 2 --runs runs/learning
    python benchmarks/learning/scores.py interval-1 interval-5 interval-10 interval-20 --jobs 2
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from powerband.core.machine.device import host_facts
from powerband.recipes.metaworld.env.tasks import MT10_TASKS
from powerband.report.sections.curves import read_metrics
from powerband.results.published import row_label

RESULTS = Path(__file__).parents[1] / "results" / "learning" / "scores"
T_95 = {1: 12.71, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571}
"""Quantile of Student's t for a 95 % interval, by degrees of freedom."""
DEMO_RUN = "runs/learning/snakes-demo-{seed}"
"""Run of the case snakes-demo with the same seed, an opponent; its learning rate is annealed to 0."""
FULL_RUN = "runs/learning/snakes-full-{seed}"
"""Run of the case snakes-full with the same seed, the opponent of its best response."""
DEMO_LENGTH = "{demo_length}"
"""Placeholder for the run's own checkpoint after the training time of the case snakes-demo."""
ENDED = "training-ended"
"""File that this script adds to the folder of a run that has reached its budget."""
DEMO_S = 75.0
"""Training time of the case snakes-demo in seconds."""


@dataclass(frozen=True)
class Case:
    """One training setting and its evaluation.

    Attributes:
        train: Arguments after ``powerband train``; ``{seed}`` stands for the seed.
        evaluate: Arguments after ``powerband eval RUN``; ``{seed}`` stands for the seed.
        metrics: Keys of the evaluation rows for which intervals over seeds are computed.
        checkpoint_steps: Environment steps of earlier checkpoints that are also evaluated.
    """

    train: tuple[str, ...]
    evaluate: tuple[str, ...]
    metrics: tuple[str, ...]
    checkpoint_steps: tuple[int, ...] = ()


GAMES = ("episodes=200", "video=false")
PLANES = ("snakes", "variant=full", "observation=planes", "gpus=none")
DDPG = ("snakes", "algo=ddpg", "opponent=random", "num_envs=16", "threads=1", "gpus=none", "save_interval=40000")


def interval(k: int, updates: int) -> Case:
    """DDPG on snakes for 75 s, with `updates` updates of batch 128 every k steps of 16 environments.

    The checkpoint after 400 episodes is also evaluated.
    """
    arguments = (
        *DDPG,
        f"update_interval={16 * k}",
        f"updates_per_interval={updates}",
        "time_limit_s=75",
        "env_steps=100000000",
        "global_batch_size=128",
        "actor_lr=3e-4",
        "critic_lr=3e-4",
        "log_interval_s=2",
        "keep_checkpoints=1000",
    )
    return Case(arguments, (*GAMES, "opponents=random"), ("decided_won",), checkpoint_steps=(80_000,))


NAVIGATION_EVALUATION = ("splits=val_unseen", "video=false")
DRAWN_GOAL = ("net.drawn_goal=true",)
REWARD = ("ppo.expert_coef=0", "net.stop_logit=-4")
"""The policy learns from the reward alone, and rarely stops at first."""
EXPERT_FIRST = ("ppo.expert_until=0.5", "net.stop_logit=-4")
"""The weight of the expert falls to 0 within half of the budget; then the policy learns from the reward alone."""
NAVIGATION = ("sketchnav", "variant=small", "gpus=none", "scene_seed=0")
LARGE_PLANS = ("scenes.max_size_m=24", "scenes.max_path_m=30", "net.align_page=true")
"""Plans of 8 to 24 m, the defaults of the recipe, instead of those of 8 to 10 m."""


def navigation(algo: str, sketch: str, *options: str, env_steps: int = 1_500_000) -> Case:
    """Navigation policy with one kind of sketch, evaluated on unseen plans; ``blank`` shows an empty sketch."""
    arguments = (*NAVIGATION, f"algo={algo}", f"scenes.sketch={sketch}", *options)
    if algo == "ppo":
        arguments += ("threads=1", f"env_steps={env_steps}", "save_interval=250000")
    else:
        # Record the demonstrations first: powerband train sketchnav demos variant=small
        arguments += ("demos_dir=runs/learning/sketchnav-demos",)
    policies = ("policies=policy,likeliest",) if options else ()
    return Case(arguments, (*NAVIGATION_EVALUATION, *policies), ("success", "spl", "soft_spl"))


TEAM_VARIANTS = {"coma": "fast", "iac": "fast", "mappo": "mappo"}
"""Algorithm of uav -> variant with which it trains for 15 minutes."""


def team(algo: str, *options: str) -> Case:
    """Team of UAVs, evaluated on 100 held-out missions."""
    arguments = ("uav", f"variant={TEAM_VARIANTS[algo]}", f"algo={algo}", "gpus=none", "threads=1", *options)
    metrics = ("f1_mean", "roi_entropy_mean", "f1_end", "roi_entropy_end")
    return Case(arguments, ("missions=100", "video=false"), metrics)


LARGE_ROLLOUTS = {
    "mappo": ("num_envs=512", "minibatch_rows=7680", "time_limit_s=190"),
    "coma": (
        "num_envs=256",
        "minibatch_rows=2048",
        "epsilon_episodes=15000",
        "actor_lr=4e-4",
        "critic_lr=2e-3",
        "time_limit_s=90",
    ),
}
"""Algorithm of uav -> arguments for a GPU, on which 512 missions take about as long as one; iac has those of coma."""


def team_on_gpu(algo: str, *options: str) -> Case:
    """Team of eight UAVs that trains on one GPU for 90 or 190 s, and is evaluated on the CPU."""
    large = LARGE_ROLLOUTS["mappo" if algo == "mappo" else "coma"]
    arguments = ("uav", f"variant={TEAM_VARIANTS[algo]}", f"algo={algo}", "n_agents=8", *large, *options)
    evaluation = ("episodes=100", "policies=greedy", "video=false", "workers=1")
    return Case(arguments, evaluation, ("f1_mean", "roi_entropy_mean", "f1_end", "roi_entropy_end", "return"))


def expert(task: str, *options: str, variant: str = "cpu") -> Case:
    """Expert of one task of Meta-World, by default with the published number of steps, evaluated on the 50 goals."""
    arguments = (
        "metaworld",
        "expert",
        f"variant={variant}",
        f"task={task}",
        "num_workers=1",
        "project=runs/learning/metaworld",
        *options,
    )
    policies = "policies=policy,random,scripted"
    return Case(arguments, ("episodes=100", policies, "video=false"), ("success", "return"))


WIDER = ("sac.hidden=128,128", "updates_per_interval=4", "expert_steps=100000")
"""Arguments of an expert with `variant=cpu-narrow`: layers of 128 units, and one update for two steps."""
DRAWER_OPTIONS = {
    "plain": (),
    "norm": ("sac.layer_norm=true",),
    "demos": ("demo_share=0.25",),
    "demos-norm": ("demo_share=0.25", "sac.layer_norm=true"),
}
"""Name -> options of an expert of drawer-open: with demonstrations, with layer norms in the critics, and both."""
HANDOVER = {
    "pick-place": (
        "sac.gamma=0.98",
        "sac.actor_lr=5e-4",
        "demo_handover=300",
        "off_policy.global_batch_size=256",
        "expert_steps=500000",
        "replay_size=500000",
    ),
    "peg-insert-side": (
        "sac.gamma=0.99",
        "demo_noise=0.1",
        "demo_handover=250",
        "expert_steps=250000",
        "replay_size=250000",
    ),
}
"""Task -> options of an expert that takes over from the scripted policy within half of its training episodes."""


def handover(task: str) -> Case:
    """Expert of a task that needs more than complete demonstrations."""
    return expert(task, "demo_share=0.5", *HANDOVER[task], variant="cpu-demos")


ARM = ("libero", "variant=tiny", "gpus=none", "threads=1", "demos_dir=runs/learning/libero-{demos}")
"""Arguments of the cases of libero. Record their demonstrations first:

    powerband train libero demos demos_dir=runs/learning/libero-drawer
    powerband train libero demos demos_dir=runs/learning/libero-goal benchmark=libero_goal tasks=1,8
    powerband train libero demos demos_dir=runs/learning/libero-spatial benchmark=libero_spatial tasks= \\
        demo_episodes=64 demo_noise=0.1 max_steps=500
    powerband train libero demos demos_dir=runs/learning/libero-object benchmark=libero_object tasks= \\
        demo_episodes=40 demo_noise=0.1 max_steps=400

The results of libero-spatial without keyframes come from 24 to 40 episodes of each task.
"""
GOALS = ("benchmark=libero_goal", "tasks=1,8", "updates=5000")
SPATIAL = ("benchmark=libero_spatial", "tasks=", "max_steps=400", "frames=1", "rdt.compile=true")
"""All ten tasks of libero_spatial in one policy, which observes the newest frame of each camera."""
KEYFRAME = (*SPATIAL, "updates=10000", "rdt.keyframe_coef=0.5")
OBJECT = ("benchmark=libero_object", *KEYFRAME[1:])

PUBLISHED = ("episodes=50", "video=false")
"""Arguments of an evaluation from all of LIBERO's initial states."""


def arm(demos: str, *arguments: str, evaluate: tuple[str, ...] = ("episodes=20", "policies=policy,random")) -> Case:
    """Policy of action chunks for an arm, evaluated on LIBERO's initial states; no demonstration starts there."""
    demo_arguments = tuple(argument.format(demos=demos) for argument in ARM)
    return Case((*demo_arguments, *arguments), ("threads=1", *evaluate), ("success", "steps"))


CASES = {
    "pendulum": Case(("gym", "variant=pendulum", "gpus=none"), ("episodes=100",), ("return",)),
    "pendulum-bf16": Case(("gym", "variant=pendulum", "gpus=none", "precision=bf16"), ("episodes=100",), ("return",)),
    "cartpole": Case(("gym", "variant=cartpole", "gpus=none"), ("episodes=100",), ("return",)),
    "snakes-demo": Case(("snakes", "variant=demo", "gpus=none", "nproc=2"), GAMES, ("decided_won",)),
    "snakes-full": Case(
        ("snakes", "variant=full", "gpus=none", "nproc=2", "save_interval=500000", "keep_checkpoints=1000"),
        (*GAMES, f"opponents=random,greedy,greedy_torus,{DEMO_LENGTH},{DEMO_RUN}"),
        ("decided_won",),
    ),
    "snakes-best-response": Case(
        ("snakes", "variant=full", "gpus=none", "nproc=2", f"opponent={FULL_RUN}", "time_limit_s=600"),
        (*GAMES, f"opponents=random,greedy,{FULL_RUN}"),
        ("decided_won",),
    ),
    "snakes-planes": Case((*PLANES, "plane_channels=8", "threads=1", "time_limit_s=1440"), GAMES, ("decided_won",)),
    "snakes-planes-32": Case((*PLANES, "nproc=2"), GAMES, ("decided_won",)),
    "bicnet-guide": Case(
        ("snakes", "variant=guide", "algo=bicnet", "ddpg.hidden=64", "gpus=none", "threads=1"), GAMES, ("decided_won",)
    ),
    "ddpg-guide": Case(("snakes", "variant=guide", "gpus=none", "threads=1"), GAMES, ("decided_won",)),
    **{f"uav-{algo}": team(algo) for algo in TEAM_VARIANTS},
    **{f"uav-{algo}-8": team(algo, "n_agents=8") for algo in TEAM_VARIANTS},
    **{f"uav-{algo}-noisy": team(algo, "world.sensor_noise=0.1,0.35,0.42") for algo in TEAM_VARIANTS},
    "uav-mappo-hard": team("mappo", "world.truth=field", "world.failure_rate=1"),
    "uav-mappo-f1": team("mappo", "world.reward=f1", "env_steps=200000", "time_limit_s=0"),
    "uav-mappo-8-f1": team("mappo", "n_agents=8", "world.reward=f1", "env_steps=120000", "time_limit_s=0"),
    **{f"uav-{algo}-8-gpu": team_on_gpu(algo) for algo in TEAM_VARIANTS},
    "uav-mappo-8-f1-gpu": team_on_gpu("mappo", "world.reward=f1"),
    **{f"metaworld-{task}": expert(task) for task in MT10_TASKS},
    **{f"metaworld-{task}": handover(task) for task in HANDOVER},
    "metaworld-mt10-demos": replace(
        expert("mt10", variant="mt10-demos"), evaluate=("episodes=50", "policies=policy", "video=false")
    ),
    **{
        f"metaworld-drawer-open-{name}": expert("drawer-open", *WIDER, *options, variant="cpu-narrow")
        for name, options in DRAWER_OPTIONS.items()
    },
    **{f"sketchnav-ppo-{sketch}": navigation("ppo", sketch) for sketch in ("true", "smooth", "abstract", "blank")},
    "sketchnav-reward-smooth": navigation("ppo", "smooth", *DRAWN_GOAL, *REWARD),
    "sketchnav-reward-abstract": navigation("ppo", "abstract", *DRAWN_GOAL, *REWARD, "net.align_page=true"),
    "sketchnav-expert-first-smooth": navigation("ppo", "smooth", *DRAWN_GOAL, *EXPERT_FIRST),
    "sketchnav-expert-first-large": navigation(
        "ppo", "smooth", *DRAWN_GOAL, *EXPERT_FIRST, *LARGE_PLANS, env_steps=3_000_000
    ),
    "sketchnav-expert-first-varied": navigation("ppo", "varied", *DRAWN_GOAL, *EXPERT_FIRST, "net.align_page=true"),
    "sketchnav-expert-first-abstract": navigation("ppo", "abstract", *DRAWN_GOAL, *EXPERT_FIRST, "net.align_page=true"),
    **{f"sketchnav-goal-{sketch}": navigation("ppo", sketch, *DRAWN_GOAL) for sketch in ("smooth", "abstract")},
    "sketchnav-aligned-abstract": navigation("ppo", "abstract", *DRAWN_GOAL, "net.align_page=true"),
    **{
        f"sketchnav-{algo}-{sketch}": navigation(algo, sketch)
        for algo in ("diffusion", "clone")
        for sketch in ("smooth", "abstract", "blank")
    },
    "libero-drawer": arm("drawer"),
    "libero-drawer-blind": arm("drawer", "use_images=false"),
    "libero-goal": arm("goal", *GOALS),
    "libero-goal-blind": arm("goal", *GOALS, "use_images=false"),
    "libero-spatial": arm("spatial", *SPATIAL, "updates=12000", evaluate=PUBLISHED),
    "libero-spatial-blind": arm("spatial", *SPATIAL, "updates=12000", "use_images=false", evaluate=PUBLISHED),
    "libero-spatial-keyframe": arm("spatial", *KEYFRAME, evaluate=PUBLISHED),
    "libero-spatial-keyframe-blind": arm("spatial", *KEYFRAME, "use_images=false", evaluate=PUBLISHED),
    "libero-spatial-regression": arm("spatial", *KEYFRAME, "rdt.objective=regression", evaluate=PUBLISHED),
    "libero-object": arm("object", *OBJECT, evaluate=PUBLISHED),
    "libero-object-blind": arm("object", *OBJECT, "use_images=false", evaluate=PUBLISHED),
    **{f"interval-{k}": interval(k, k) for k in (1, 5, 10, 20)},
    **{f"interval-{k}-one-update": interval(k, 1) for k in (5, 20)},
}


def powerband(*arguments: str) -> str:
    """Runs one command and returns its standard output."""
    process = subprocess.run([sys.executable, "-m", "powerband", *arguments], capture_output=True, text=True)
    if process.returncode:
        command = f"powerband {' '.join(arguments)}"
        raise SystemExit(f"{command} ended with status {process.returncode}:\n{process.stderr}")
    return process.stdout


def train(name: str, case: Case, seed: int, runs: Path) -> Path:
    """Returns the folder of the finished run of a case and a seed; trains or resumes it if necessary."""
    folder = runs / f"{name}-{seed}"
    if not (folder / ENDED).exists():  # a run that a signal has ended has a policy too
        start = time.perf_counter()
        if (folder / "checkpoints" / "last").exists():
            powerband("train", case.train[0], f"resume={folder}")
        else:
            if folder.exists():
                raise SystemExit(f"{folder} was interrupted before its first checkpoint. Remove it to train again.")
            arguments = [argument.format(seed=seed) for argument in case.train]
            powerband("train", *arguments, f"seed={seed}", f"run_dir={folder}")
        (folder / ENDED).touch()
        print(f"{name} seed {seed}: {time.perf_counter() - start:.0f} s", flush=True)
    return folder


def evaluate(case: Case, folder: Path, seed: int) -> dict[str, Any]:
    """Evaluates the last checkpoint of a run and those at the `checkpoint_steps` of the case.

    Returns:
        Time, steps and updates of the training, and the rows of the evaluations as ``at_end`` and ``at_STEPS``.
    """
    last = read_metrics(folder)[-1]
    values = {"seed": seed, "demo_length": ""}
    if any(DEMO_LENGTH in argument for argument in case.evaluate):
        values["demo_length"] = str(checkpoint_at_demo_length(folder))
    arguments = [argument.format(**values) for argument in case.evaluate]
    row = {"seed": seed, "train_s": last["time_s"], "env_steps": last["env_steps"], "grad_steps": last["grad_steps"]}
    row["at_end"] = json.loads(powerband("eval", str(folder), *arguments, "--json"))
    for steps in case.checkpoint_steps:
        step = next((step for step in checkpoint_steps(folder) if step >= steps), None)
        if step is not None:
            row[f"at_{steps}"] = evaluate_checkpoint(folder, step, arguments)
    return row


def checkpoint_steps(folder: Path) -> list[int]:
    """Returns the environment steps of the checkpoints of a run, in ascending order."""
    return sorted(int(path.name) for path in (folder / "checkpoints").iterdir() if path.name.isdigit())


def checkpoint_at_demo_length(folder: Path) -> Path:
    """Returns the first checkpoint of a run after at least the training time of the demo."""
    steps = next(line["env_steps"] for line in read_metrics(folder) if line["time_s"] >= DEMO_S)
    return folder / "checkpoints" / str(next(step for step in checkpoint_steps(folder) if step >= steps))


def evaluate_checkpoint(folder: Path, step: int, arguments: list[str]) -> list[dict[str, Any]]:
    """Evaluates the checkpoint of a snakes run at `step` environment steps against scripted opponents."""
    from powerband.recipes.snakes.evaluation import SCRIPTED_OPPONENTS, as_player, play, summary
    from powerband.recipes.snakes.learners import load

    options = dict(argument.split("=") for argument in arguments)
    player = as_player(*load(folder / "checkpoints" / str(step)))
    games = int(options["episodes"])
    return [
        {"opponent": name, "env_steps": step, **summary(play(player, SCRIPTED_OPPONENTS[name](), games, 10_000))}
        for name in options["opponents"].split(",")
    ]


def over_seeds(values: list[float]) -> dict[str, float]:
    """Returns the mean over seeds with its 95 % interval by Student's t, the smallest and the largest value."""
    mean, count = sum(values) / len(values), len(values)
    statistics = {"mean": mean, "min": min(values), "max": max(values), "seeds": count}
    if count - 1 in T_95:
        deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (count - 1))
        half_width = T_95[count - 1] * deviation / math.sqrt(count)
        statistics |= {"low": mean - half_width, "high": mean + half_width}
    return statistics


def short_label(row: dict[str, Any]) -> str:
    """Returns `row_label` without the folder and the seed of a run and without the version of an environment."""
    label = row_label(row)
    if "/checkpoints/" in label:
        return "own checkpoint of 75 s"
    if "policy" not in row or "env_id" in row:
        label = label.split("/")[-1].rsplit("-", 1)[0]
    return label


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("cases", nargs="+", choices=sorted(CASES), metavar="case", help=", ".join(CASES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="seeds of the runs")
    parser.add_argument("--runs", type=Path, default=Path("runs/learning"), help="folder of the runs")
    parser.add_argument("--jobs", type=int, default=1, help="number of runs that train at the same time")
    arguments = parser.parse_args()
    jobs = [(name, seed) for name in arguments.cases for seed in arguments.seeds]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        folders = list(pool.map(lambda job: train(job[0], CASES[job[0]], job[1], arguments.runs), jobs))
    runs: dict[str, list[dict[str, Any]]] = {}
    for (name, seed), folder in zip(jobs, folders, strict=True):
        runs.setdefault(name, []).append(evaluate(CASES[name], folder, seed))
    for name, rows in runs.items():
        case = CASES[name]
        result: dict[str, Any] = {"host": host_facts(), "jobs": arguments.jobs}
        result["train"] = "powerband train " + " ".join(case.train)
        result["eval"] = "powerband eval RUN " + " ".join(case.evaluate)
        for moment in [key for key in rows[0] if key.startswith("at_")]:
            for index, first in enumerate(rows[0][moment]):
                label = short_label(first)
                for metric in case.metrics:
                    statistics = over_seeds([row[moment][index][metric] for row in rows if moment in row])
                    result.setdefault(moment, {}).setdefault(label, {})[metric] = statistics
                    print(name, moment, label, metric, statistics, flush=True)
        RESULTS.mkdir(parents=True, exist_ok=True)
        (RESULTS / f"{name}.json").write_text(json.dumps({**result, "runs": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
