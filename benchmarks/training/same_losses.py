"""Seeded training losses of this version of powerband, compared bit for bit with those of another commit.

    python benchmarks/training/same_losses.py COMMIT [CASE ...] [--json FILE]

A refactor must keep seeded losses bit-identical. The script checks out COMMIT into a temporary worktree. Each case
trains in both versions with the same arguments, one thread, fp32 and an empty numba cache, and logs each iteration. The
script prints one row per case and exits with status 1 if any loss differs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMMON = "gpus=none threads=1 precision=fp32 tensorboard=false log_interval=1 seed=3".split()
# SAC runs in PyTorch, because the compiled functions differ from it by rounding.
CASES: dict[str, list[str]] = {
    "gym/sac": ["gym env_id=Pendulum-v1 algo=sac env_steps=600 num_workers=0 sac.fused=false off_policy.warmup=100"],
    "gym/ppo": [
        "gym env_id=CartPole-v1 algo=ppo env_steps=4096 num_workers=0 on_policy.num_steps=64 minibatches=4 "
        "anneal_lr=true shared_trunk=true"  # the former defaults
    ],
    "snakes/ddpg": ["snakes algo=ddpg env_steps=600 off_policy.num_envs=4 off_policy.warmup=64 update_interval=8"],
    "snakes/ppo": ["snakes algo=ppo variant=smoke env_steps=8192"],
    "uav/coma": ["uav algo=coma variant=smoke iterations=6"],
    "metaworld/sac": [
        "metaworld expert variant=smoke backend=workers num_workers=0 expert_steps=500 final_episodes=0 "
        "sac.fused=false update_interval=1"
    ],
    "sketchnav/ppo": ["sketchnav variant=smoke env_steps=128"],
    "sketchnav/diffusion": [
        "sketchnav demos variant=smoke demos_dir={demos}",
        "sketchnav variant=smoke algo=diffusion demos_dir={demos} env_steps=64",
    ],
    "libero/rdt": [
        "libero demos variant=smoke demo_episodes=1 max_steps=300 pixels=32 demos_dir={demos}",
        "libero variant=smoke updates=6 demos_dir={demos}",
    ],
}
"""Case -> commands; the losses of the last one are compared. ``{demos}`` is a folder of the case.

Both versions must accept the options, so some of them have old names.
"""


def losses(source: Path, commands: list[str], folder: Path) -> list[dict[str, float]]:
    """Trains with the version at `source` and returns the losses of each logged line."""
    folder.mkdir(parents=True)
    environment = {**os.environ, "PYTHONPATH": str(source / "src"), "NUMBA_CACHE_DIR": str(folder / "numba")}
    environment |= {"XDG_CACHE_HOME": str(folder / "cache")}
    run = folder
    for number, command in enumerate(commands):
        run = folder / f"run{number}"
        arguments = [*command.format(demos=folder / "demos").split(), *COMMON, f"run_dir={run}"]
        completed = subprocess.run(
            [sys.executable, "-m", "powerband", "train", *arguments],
            env=environment,
            cwd=folder,
            capture_output=True,
            text=True,
        )
        if completed.returncode:
            output = f"{completed.stdout[-2000:]}\n{completed.stderr[-4000:]}"
            raise SystemExit(f"{source}: powerband train {command} ended with status {completed.returncode}:\n{output}")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name.startswith("losses/")} for line in lines]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", help="version to compare with")
    parser.add_argument("cases", nargs="*", default=list(CASES), metavar="case", help=", ".join(CASES))
    parser.add_argument("--json", type=Path, help="file for the results")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="powerband-same-losses-") as name:
        folder = Path(name)
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--detach", str(folder / "old"), options.commit], check=True, capture_output=True)
        try:
            for case in options.cases:
                file = case.replace("/", "-")
                old = losses(folder / "old", CASES[case], folder / f"{file}-old")
                new = losses(ROOT, CASES[case], folder / f"{file}-new")
                compared = sum(len(line) for line in old)
                same = old == new and compared > 0
                rows.append({"case": case, "losses": compared, "bit_identical": same})
                print(f"{case:<22} {compared:>7} losses  {'bit-identical' if same else 'DIFFERENT'}", flush=True)
        finally:
            subprocess.run([*git, "remove", "--force", str(folder / "old")], check=True, capture_output=True)
    if options.json:
        cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "")
        table = {"commit": options.commit, "cpu": cpu or platform.processor(), "rows": rows}
        options.json.write_text(json.dumps(table, indent=2) + "\n")
    return 0 if all(row["bit_identical"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
