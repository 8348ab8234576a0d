"""Transfer to a task that no expert has trained: steps and seconds of students to 80 %, compared with SAC from scratch.

For each held-out task, the encoder and the collective network learn from the experts of the other tasks alone. Then the
held-out task is trained until 80 % of 20 episodes succeed, in several ways with the same settings of SAC:

- ``scratch``: stage expert, the baseline;
- ``bonus``: stage student, whose reward has a bonus for actions of the collective network;
- ``finetune``: stage student_finetune, which starts from the weights of the collective network;
- ``guided``: stage student, with half of the episodes begun by the collective network, and no bonus;
- ``scratch-norm`` and ``guided-norm``: scratch and guided with layer norms in the critics.

Every run uses one thread. Experts, networks and runs that exist are not repeated, so the script can be interrupted, and
two of them with other tasks may share a folder. The second command uses the experts of `metaworld_collective.py`, whose
project folder is ~/ten.

    python benchmarks/learning/metaworld_transfer.py experts --work ~/transfer
    python benchmarks/learning/metaworld_transfer.py students --work ~/transfer-nine --experts ~/ten --tasks mt10 \
        --held-out window-close --json benchmarks/results/learning/metaworld_transfer_nine
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from powerband.core.machine.device import host_facts
from powerband.recipes.metaworld.env.tasks import MT10_TASKS

STEPS = {
    "reach": 40_000,
    "drawer-close": 40_000,
    "button-press-topdown": 100_000,
    "window-open": 150_000,
    "window-close": 150_000,
    "door-open": 300_000,
}
"""Task -> environment steps of its expert, and the budget of its students."""
SETTINGS = "gpus=none threads=1 num_workers=1 variant=cpu-narrow sac.hidden=128,128 tensorboard=false".split()
REPRESENT = "represent_updates=1000"
DISTILL = "distill.hidden=128,128 distill.critic_updates=10000"
FEW = "distill.actor_updates=20000"
MANY = "distill.actor_updates=40000 distill.lr=1e-3 offline.global_batch_size=512"
"""Settings of the stages represent and distill; with more than six tasks, distill has more to learn."""
SAMPLES = 50
"""Samples of 800 transitions that an expert records, at equal distances, so that every task has as many."""
KINDS = {
    "scratch": ["expert"],
    "finetune": ["student_finetune"],
    "bonus": ["student", "student.bonus=10", "student.hold_steps=20000", "student.fade_steps=20000"],
    "guided": ["student", "student.bonus=0", "student.guide_share=0.5"],
    "scratch-norm": ["expert", "sac.layer_norm=true"],
    "guided-norm": ["student", "student.bonus=0", "student.guide_share=0.5", "sac.layer_norm=true"],
}
TARGET, EPISODES, EVERY = 0.8, 20, 2_500


def train(stage: str, *words: str, stdout: Any = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
    """Starts one stage of metaworld as a command."""
    return subprocess.Popen([sys.executable, "-m", "powerband", "train", "metaworld", stage, *words], stdout=stdout)


def finish(stage: str, *words: str) -> None:
    """Runs one stage to its end.

    Raises:
        CalledProcessError: The command failed; its message is on standard error.
    """
    child = train(stage, *words)
    if child.wait():
        raise subprocess.CalledProcessError(child.returncode, [stage, *words])


def run_dir(work: Path, name: str) -> str:
    """Returns the argument for a new run folder."""
    return f"run_dir={work / 'runs' / f'{name}-{int(time.time())}'}"


def train_experts(work: Path, experts: Path, tasks: list[str]) -> None:
    """Trains the experts of tasks that have none in the project folder `experts`, and evaluates 100 episodes."""
    for task in tasks:
        if not (experts / "experts" / task / "evaluation.json").exists():
            own = [f"task={task}", f"expert_steps={STEPS[task]}", f"collect.interval={STEPS[task] // SAMPLES}"]
            folders = f"project={experts}", run_dir(work, f"expert-{task}")
            finish("expert", *SETTINGS, *own, "eval_interval=10000", "run.seed=100", *folders)
        print(task, (experts / "experts" / task / "evaluation.json").read_text(), flush=True)


def network_settings(tasks: list[str]) -> dict[str, list[str]]:
    """Returns the arguments of the stages represent and distill, without folders."""
    amount = MANY if len(tasks) > len(STEPS) else FEW
    return {"represent": [*SETTINGS, REPRESENT], "distill": [*SETTINGS, *DISTILL.split(), *amount.split()]}


def train_networks(work: Path, experts: Path, held_out: str, tasks: list[str]) -> Path:
    """Trains the encoder and the collective network of all tasks but one.

    Args:
        work: Folder of projects and runs.
        experts: Project folder of the experts.
        held_out: Task whose expert the networks do not learn from.
        tasks: All tasks.

    Returns:
        Project folder of the networks.
    """
    project = work / f"without-{held_out}"
    (project / "experts").mkdir(parents=True, exist_ok=True)
    others = [task for task in tasks if task != held_out]
    for task in others:
        link = project / "experts" / task
        if not link.exists():
            link.symlink_to((experts / "experts" / task).resolve())
    for stage, output in (("represent", "encoder"), ("distill", "collective")):
        if not (project / output / "policy" / "model.safetensors").exists():
            folders = f"project={project}", run_dir(work, f"{stage}-{held_out}")
            finish(stage, *network_settings(tasks)[stage], f"tasks={','.join(others)}", *folders)
    return project


def student_curve(
    work: Path, project: Path, kind: str, task: str, seed: int, options: list[str], every: int = EVERY
) -> list[dict[str, float]]:
    """Trains one student until an evaluation reaches the target, or to the end of its budget.

    `options` are the settings of SAC as arguments of the command; evaluations are `every` steps apart.

    Returns:
        Environment steps, seconds of training without evaluations, and success rate of each evaluation.
    """
    (work / "students").mkdir(parents=True, exist_ok=True)
    own = Path(tempfile.mkdtemp(prefix=f"{task}-{kind}-{seed}-", dir=work / "students"))
    for part in ("encoder", "collective"):
        (own / part).symlink_to((project / part).resolve())
    words = [
        f"task={task}", f"run.seed={seed}", f"expert_steps={STEPS[task]}", f"student_steps={STEPS[task]}",
        f"eval_interval={every}", f"log_interval={every}", f"eval_episodes={EPISODES}", "final_episodes=0",
        "collect.interval=0", f"project={own}", f"run_dir={own / 'run'}",
    ]  # fmt: skip
    stage, *settings = KINDS[kind]
    child, path, curve = train(stage, *options, *words, *settings), own / "run" / "metrics.jsonl", []
    try:
        while True:
            ended = child.poll() is not None
            rows = (
                [json.loads(line) for line in path.read_text().splitlines() if line[-1] == "}"] if path.exists() else []
            )
            curve = [
                {"env_steps": row["env_steps"], "seconds": row["time/training_s"], "success": row["eval/success"]}
                for row in rows
                if "eval/success" in row
            ]
            if ended or any(point["success"] >= TARGET for point in curve):
                return curve
            time.sleep(0.3)
    finally:
        child.kill()
        child.wait()


def train_students(
    work: Path,
    project: Path,
    held_out: str,
    tasks: list[str],
    kinds: list[str],
    seeds: list[int],
    noise: str,
    file: Path,
) -> None:
    """Trains the students of one held-out task and writes their curves to `file` after each run.

    Args:
        work: Folder of the students.
        project: Project folder of encoder and collective network.
        held_out: Task of the students.
        tasks: All tasks, for the record.
        kinds: Ways to train a student, of `KINDS`.
        seeds: Seeds of the students.
        noise: Noise of the students' actions, white or pink.
        file: Result; runs that it contains are not repeated.
    """
    result: dict[str, Any] = {"host": host_facts(), "held_out": held_out, "tasks": tasks}
    result["settings"] = network_settings(tasks)
    result |= {"target": TARGET, "budget": STEPS[held_out], "rows": []}
    if file.exists():
        result = json.loads(file.read_text())
    done = {(row["kind"], row["seed"], row["noise"]) for row in result["rows"]}
    for kind in kinds:
        for seed in seeds:
            if (kind, seed, noise) not in done:
                curve = student_curve(work, project, kind, held_out, seed, [*SETTINGS, f"sac.action_noise={noise}"])
                result["rows"].append({"kind": kind, "seed": seed, "noise": noise, "curve": curve})
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(json.dumps(result, indent=1) + "\n")
                print(held_out, kind, seed, curve[-1:], flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("part", choices=["experts", "students"])
    parser.add_argument("--work", type=Path, required=True, help="folder of projects and runs, outside of the checkout")
    parser.add_argument("--experts", type=Path, help="project folder of the experts; the default is WORK/all")
    parser.add_argument("--tasks", nargs="+", choices=[*MT10_TASKS, "mt10"], default=list(STEPS))
    parser.add_argument("--held-out", nargs="+", choices=STEPS, default=[])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="ways to train a student")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--noise", choices=["white", "pink"], default="pink", help="noise of the students' actions")
    parser.add_argument("--json", type=Path, help="folder of the results, one file per held-out task")
    options = parser.parse_args()
    work = options.work.expanduser().absolute()
    experts = options.experts.expanduser().absolute() if options.experts else work / "all"
    tasks = list(MT10_TASKS) if options.tasks == ["mt10"] else options.tasks
    if options.part == "experts":
        train_experts(work, experts, tasks)
    for task in options.held_out:
        project = train_networks(work, experts, task, tasks)
        file = (options.json or work) / f"{task}.json"
        train_students(work, project, task, tasks, options.kinds, options.seeds, options.noise, file)


if __name__ == "__main__":
    main()
