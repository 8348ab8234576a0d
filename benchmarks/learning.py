"""Learning to a stated score: trains each case on several seeds through the command line, evaluates, writes JSON.

A case goes on where it was interrupted: a finished run is not trained again, an unfinished one is resumed. Runs of one
case may be taken two at a time (``--jobs 2``), each with its own threads; a case says what it asks for.

    python benchmarks/learning.py pendulum --seeds 0 1 2 --runs runs/learning
    python benchmarks/learning.py interval-1 interval-5 interval-10 interval-20 --jobs 2
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from powerband.core.device import host_facts
from powerband.report.curves import read_metrics

RESULTS = Path(__file__).parent / "results" / "learning"
T_95 = {1: 12.71, 2: 4.303, 3: 3.182, 4: 2.776}
"""Quantile of Student's t for a 95 % interval, by degrees of freedom."""
DEMO_RUN = "runs/learning/snakes-demo-{seed}"
"""The run that a case may name as an opponent: the demo of the same seed, annealed to its end."""
DEMO_LENGTH = "{demo_length}"
"""Stands for the run's own checkpoint of the length of the demo."""
DEMO_S = 75.0


@dataclass(frozen=True)
class Case:
    """What is trained and how it is judged.

    Attributes:
        train: Words after ``powerband train``.
        evaluate: Words after ``powerband eval RUN``; ``{seed}`` stands for the seed.
        figures: Keys of the rows of the evaluation whose intervals over seeds are stated.
        at: Checkpoints that are evaluated beside the last, by env steps.
    """

    train: tuple[str, ...]
    evaluate: tuple[str, ...]
    figures: tuple[str, ...]
    at: tuple[int, ...] = ()


GAMES = ("episodes=200", "video=false")
DDPG = ("snakes", "algo=ddpg", "opponent=random", "num_envs=16", "threads=1", "gpus=none", "save_interval=40000")


def interval(k: int, updates: int) -> Case:
    """`updates` updates of batch 128 every k steps of 16 environments, 75 s; also judged after 400 episodes."""
    words = (f"update_interval={16 * k}", f"updates_per_interval={updates}", "time_limit_s=75", "env_steps=100000000")
    words = (
        *DDPG,
        *words,
        "global_batch_size=128",
        "actor_lr=3e-4",
        "critic_lr=3e-4",
        "log_interval_s=2",
        "keep_checkpoints=1000",
    )
    return Case(words, (*GAMES, "opponents=random"), ("decided_won",), at=(80_000,))


WALKED = ("splits=val_unseen", "video=false")
WALKER = ("sketchnav", "variant=small", "gpus=none", "scene_seed=0")


def walker(algo: str, sketch: str) -> Case:
    """A navigator with one kind of sketch, on plans that it has not seen; blank is the same without a sketch."""
    words = (*WALKER, f"algo={algo}", f"scenes.sketch={sketch}")
    if algo == "ppo":
        words += ("threads=1", "env_steps=1500000", "save_interval=250000")
    else:
        words += ("demos_dir=runs/learning/sketchnav-demos",)  # `powerband train sketchnav demos variant=small` first
    return Case(words, WALKED, ("success", "spl", "soft_spl"))


ARM = ("libero", "variant=tiny", "gpus=none", "threads=1", "demos_dir=runs/learning/libero-{demos}")
"""`powerband train libero demos demos_dir=runs/learning/libero-drawer`, and -goal with benchmark=libero_goal tasks=1,8,
are recorded first."""
GOALS = ("benchmark=libero_goal", "tasks=1,8", "updates=5000")


def arm(demos: str, *words: str) -> Case:
    """A policy of chunks for an arm, on LIBERO's own initial states, which no demonstration began with."""
    own = tuple(word.format(demos=demos) for word in ARM)
    return Case((*own, *words), ("episodes=20", "threads=1", "policies=policy,random"), ("success", "steps"))


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
    "ddpg-guide": Case(("snakes", "variant=guide", "gpus=none", "threads=1"), GAMES, ("decided_won",)),
    **{
        f"uav-{algo}": Case(
            ("uav", "variant=fast", f"algo={algo}", "gpus=none", "threads=1"),
            ("missions=100", "video=false"),
            ("f1_mean", "roi_entropy_mean", "f1_end", "roi_entropy_end"),
        )
        for algo in ("coma", "iac")
    },
    **{f"sketchnav-ppo-{sketch}": walker("ppo", sketch) for sketch in ("true", "smooth", "abstract", "blank")},
    **{
        f"sketchnav-{algo}-{sketch}": walker(algo, sketch)
        for algo in ("diffusion", "clone")
        for sketch in ("smooth", "abstract", "blank")
    },
    "libero-drawer": arm("drawer"),
    "libero-drawer-blind": arm("drawer", "use_pictures=false"),
    "libero-goal": arm("goal", *GOALS),
    "libero-goal-blind": arm("goal", *GOALS, "use_pictures=false"),
    **{f"interval-{k}": interval(k, k) for k in (1, 5, 10, 20)},
    **{f"interval-{k}-one-update": interval(k, 1) for k in (5, 20)},
}


def powerband(*words: str) -> str:
    """Runs one command and returns what it printed on stdout."""
    done = subprocess.run([sys.executable, "-m", "powerband", *words], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"powerband {' '.join(words)} ended with {done.returncode}:\n{done.stderr}")
    return done.stdout


def trained(name: str, case: Case, seed: int, runs: Path) -> Path:
    """The finished run of a case and a seed, trained or resumed where need be."""
    folder = runs / f"{name}-{seed}"
    if not (folder / "policy").exists():
        start = time.perf_counter()
        if (folder / "checkpoints" / "last").exists():
            powerband("train", case.train[0], f"resume={folder}")
        else:
            if folder.exists():
                raise SystemExit(f"{folder} was interrupted before its first checkpoint: remove it.")
            powerband("train", *case.train, f"seed={seed}", f"run_dir={folder}")
        print(f"{name} seed {seed}: {time.perf_counter() - start:.0f} s", flush=True)
    return folder


def judged(case: Case, folder: Path, seed: int) -> dict:
    """Evaluation of the last checkpoint and of those the case names, with what the training took."""
    last = read_metrics(folder)[-1]
    known = {"seed": seed, "demo_length": demo_length(folder) if any(DEMO_LENGTH in w for w in case.evaluate) else ""}
    words = [word.format(**known) for word in case.evaluate]
    row = {"seed": seed, "train_s": last["time_s"], "env_steps": last["env_steps"], "grad_steps": last["grad_steps"]}
    row["at_end"] = json.loads(powerband("eval", str(folder), *words, "--json"))
    for step in case.at:
        saved = sorted(int(path.name) for path in (folder / "checkpoints").iterdir() if path.name.isdigit())
        chosen = next((number for number in saved if number >= step), None)
        if chosen is not None:
            row[f"at_{step}"] = rows_of(case, folder, chosen, words)
    return row


def demo_length(folder: Path) -> Path:
    """The first checkpoint of a run that is not younger than the demo is long."""
    steps = next(line["env_steps"] for line in read_metrics(folder) if line["time_s"] >= DEMO_S)
    saved = sorted(int(path.name) for path in (folder / "checkpoints").iterdir() if path.name.isdigit())
    return folder / "checkpoints" / str(next(number for number in saved if number >= steps))


def rows_of(case: Case, folder: Path, step: int, words: list[str]) -> list[dict]:
    """Games of an earlier checkpoint (snakes only)."""
    from powerband.recipes import snakes
    from powerband.recipes.snakes_match import RIVALS, play, player, summary

    chosen = dict(word.split("=") for word in words)
    own = player(*snakes.load(folder / "checkpoints" / str(step)))
    return [
        {"opponent": name, "env_steps": step, **summary(play(own, RIVALS[name](), int(chosen["episodes"]), 10_000))}
        for name in chosen["opponents"].split(",")
    ]


def over_seeds(values: list[float]) -> dict[str, float]:
    """Mean over seeds with its 95 % interval by Student's t, and the extremes."""
    mean, n = sum(values) / len(values), len(values)
    figures = {"mean": mean, "min": min(values), "max": max(values), "seeds": n}
    if n - 1 in T_95:
        deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (n - 1))
        half = T_95[n - 1] * deviation / math.sqrt(n)
        figures |= {"low": mean - half, "high": mean + half}
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("cases", nargs="+", choices=sorted(CASES), metavar="case", help=", ".join(CASES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--runs", type=Path, default=Path("runs/learning"), help="folder of the runs")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    arguments = parser.parse_args()
    work = [(name, seed) for name in arguments.cases for seed in arguments.seeds]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        folders = list(pool.map(lambda job: trained(job[0], CASES[job[0]], job[1], arguments.runs), work))
    rows: dict[str, list[dict]] = {}
    for (name, seed), folder in zip(work, folders, strict=True):
        rows.setdefault(name, []).append(judged(CASES[name], folder, seed))
    for name, seeds in rows.items():
        case = CASES[name]
        result = {"host": host_facts(), "jobs": arguments.jobs, "train": "powerband train " + " ".join(case.train)}
        result["eval"] = "powerband eval RUN " + " ".join(case.evaluate)
        for moment in [key for key in seeds[0] if key.startswith("at_")]:
            for index, first in enumerate(seeds[0][moment]):
                label = next((first[key] for key in ("opponent", "policy", "env_id") if key in first), "")
                label += f" on {first['task']}" if "task" in first and "policy" in first else ""
                if "/checkpoints/" in label:
                    label = "own checkpoint of 75 s"
                elif "policy" not in first:  # a run by its seed, an environment by its version
                    label = label.split("/")[-1].rsplit("-", 1)[0]
                for figure in case.figures:
                    spread = over_seeds([seed[moment][index][figure] for seed in seeds if moment in seed])
                    result.setdefault(moment, {}).setdefault(label, {})[figure] = spread
                    print(name, moment, label, figure, spread, flush=True)
        RESULTS.mkdir(parents=True, exist_ok=True)
        (RESULTS / f"{name}.json").write_text(json.dumps({**result, "runs": seeds}, indent=2) + "\n")


if __name__ == "__main__":
    main()
