"""One network for the ten tasks of MT10: success of the experts, and of the collective network that learned from them.

Ten experts learn with demonstrations of Meta-World's scripted policies and layer norms in the critics. The trajectory
encoder and the collective network learn from the transitions that the experts recorded. Then each policy is evaluated
in 100 episodes on the 50 goals of each task. Every stage uses one thread. Experts and networks that exist are not
trained again, so the script can be interrupted, and two of them with other tasks may train experts in one folder.

    python benchmarks/learning/metaworld_collective.py experts --tasks reach push --work ~/ten
    python benchmarks/learning/metaworld_collective.py network --work ~/ten \
        --json benchmarks/results/learning/metaworld_collective.json
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from metaworld_transfer import SAMPLES, SETTINGS, finish, run_dir
from powerband.core.machine.device import host_facts
from powerband.recipes.metaworld.env.tasks import MT10_TASKS

SHARED = ["updates_per_interval=4", "sac.layer_norm=true"]
"""Arguments of all experts in addition to those of `metaworld_transfer`: one update for two steps, and layer norms."""
HOLDING_OPTIONS = ["sac.gamma=0.99", "demo_share=0.5", "demo_noise=0.1", "demo_handover=250"]
"""Settings of tasks whose reward is close to 0 until an object is held: the discount shows it from the first step."""
STEPS = {
    "reach": 60_000,
    "drawer-close": 40_000,
    "push": 200_000,
    "door-open": 150_000,
    "pick-place": 300_000,
    "peg-insert-side": 250_000,
}
"""Task -> environment steps of its expert; 100,000 for the other tasks."""


NETWORK = {
    "represent": ["represent_updates=1000"],
    "distill": [
        "distill.hidden=256,256",
        "distill.lr=1e-3",
        "distill.actor_updates=60000",
        "distill.critic_updates=10000",
        "offline.global_batch_size=512",
    ],
    "evaluate": [],
}
"""Stage -> its arguments."""


def expert_words(task: str) -> list[str]:
    """Returns the arguments of the expert of a task, without folders."""
    steps = STEPS.get(task, 100_000)
    own = HOLDING_OPTIONS if task in ("pick-place", "peg-insert-side") else ["demo_share=0.25"]
    sizes = [f"expert_steps={steps}", f"replay_size={steps}", f"collect.interval={steps // SAMPLES}"]
    return [f"task={task}", *sizes, *SHARED, *own]


def train_experts(work: Path, tasks: list[str]) -> None:
    """Trains the experts of tasks that have none yet, and writes the seconds of each next to its evaluation."""
    for task in tasks:
        folder = work / "experts" / task
        if not (folder / "evaluation.json").exists():
            start = time.perf_counter()
            folders = f"project={work}", run_dir(work, f"expert-{task}")
            finish("expert", *SETTINGS, *expert_words(task), "run.seed=100", "eval_interval=50000", *folders)
            (folder / "seconds.json").write_text(json.dumps(time.perf_counter() - start))
        print(task, (folder / "evaluation.json").read_text(), flush=True)


def train_network(work: Path, file: Path) -> None:
    """Trains encoder and collective network of all tasks, evaluates all policies, and writes the result to `file`."""
    for stage, words in NETWORK.items():
        took = work / f"{stage}-seconds.json"
        if not took.exists():
            start = time.perf_counter()
            finish(stage, *SETTINGS, *words, f"project={work}", run_dir(work, stage))
            took.write_text(json.dumps(time.perf_counter() - start))
    seconds = {stage: round(json.loads((work / f"{stage}-seconds.json").read_text())) for stage in NETWORK}
    experts = {}
    for task in MT10_TASKS:
        took = json.loads((work / "experts" / task / "seconds.json").read_text())
        experts[task] = {"arguments": expert_words(task), "seconds": round(took)}
    rows = json.loads((work / "evaluation.json").read_text())
    means = {
        policy: sum(row["success"] for row in rows if row["policy"] == policy) / len(MT10_TASKS)
        for policy in ("expert", "collective", "scripted")
    }
    result = {"host": host_facts(), "settings": SETTINGS, "network": NETWORK, "seconds": seconds, "experts": experts}
    file.write_text(json.dumps({**result, "mean_success": means, "rows": rows}, indent=1) + "\n")
    print(means, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("part", choices=["experts", "network"])
    parser.add_argument("--work", type=Path, required=True, help="project folder, outside of the checkout")
    parser.add_argument("--tasks", nargs="+", choices=MT10_TASKS, default=MT10_TASKS)
    parser.add_argument("--json", type=Path, help="file of the result of the network")
    options = parser.parse_args()
    work = options.work.expanduser().absolute()
    work.mkdir(parents=True, exist_ok=True)
    if options.part == "experts":
        train_experts(work, list(options.tasks))
    else:
        train_network(work, options.json or work / "result.json")


if __name__ == "__main__":
    main()
