"""Work that a kill -9 loses with the default cadence of checkpoints, for every recipe.

All recipes train at once with their default ``save_interval_s`` and an empty cache of plans and meshes, as on a new
machine. Each run is killed at a random instant after its first checkpoint may exist, so that it loses the time since
its newest complete checkpoint. A run without a checkpoint starts again, and loses what it repeats: its preparation,
which is shorter with what the first start has cached, and the time of training. If it was killed while it generated
episodes, it is where it was when one more file of episodes is in the cache. Asked: at most three minutes, or 100 times
the time of a save.

    python benchmarks/reliability/default_losses.py --rounds 2 --json benchmarks/results/reliability/default_losses.json
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from false_alarms import RUNS  # noqa: E402
from powerband.core.machine.device import host_facts  # noqa: E402
from powerband.core.machine.utilisation import process_tree  # noqa: E402
from soak_runs import saved_at  # noqa: E402

COMMON = "gpus=none threads=1 tensorboard=false"
BOUND_S = 180.0


def start(name: str, folder: Path) -> subprocess.Popen[bytes]:
    """Starts a run in a folder of its own. The runs of a round share a cache."""
    folder.mkdir(parents=True)
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder.parent / "cache")}
    words = [*RUNS[name].format(folder=folder).split(), *COMMON.split(), f"run_dir={folder / 'run'}"]
    with (folder / "output").open("wb") as output:
        command = [sys.executable, "-m", "powerband", "train", *words]
        return subprocess.Popen(command, stdout=output, stderr=output, cwd=folder, env=environment)


def trained_s(run: Path) -> float:
    """Seconds since the processes of the run were listed, which its loop does before the first step; 0 before it."""
    path = run / "processes.json"
    return time.time() - path.stat().st_mtime if path.exists() else 0.0


def first_line_s(run: Path) -> float | None:
    """Seconds of training until the first line of the metrics; None before it."""
    metrics = run / "metrics.jsonl"
    lines = metrics.read_text().splitlines() if metrics.exists() else []
    return float(json.loads(lines[0])["time/training_s"]) if lines else None


def cached_episodes(cache: Path) -> tuple[int, int]:
    """Numbers of complete sets of episodes and of parts of the next set that sketchnav has cached."""
    sets, parts = (cache / "powerband" / name for name in ("episodes", "episode-parts"))
    return len(list(sets.glob("*.safetensors"))), len(list(parts.glob("*.safetensors")))


def repeated_s(name: str, prepared_at: float | None, again: Path) -> float:
    """Starts a killed run without a checkpoint once more, and returns the seconds until it is where it was.

    Args:
        name: Recipe.
        prepared_at: Time at which its preparation ended; None if it had not.
        again: Folder of the second start.
    """
    trained = time.time() - prepared_at if prepared_at else 0.0
    began, before = time.time(), cached_episodes(again.parent / "cache")
    child = start(name, again)
    try:
        while (first := first_line_s(again / "run")) is None:
            if not trained and cached_episodes(again.parent / "cache") > before:
                return time.time() - began
            if child.poll() is not None:
                raise SystemExit(f"{name} ended: {(again / 'output').read_text()[-2000:]}")
            time.sleep(0.2)
        return trained + time.time() - began - first
    finally:
        for pid in process_tree(child.pid):
            os.kill(pid, 9)
        child.wait()


def main() -> None:
    """Kills the runs, and writes the JSON file."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    draw, rows = random.Random(options.seed), []
    for number in range(options.rounds):
        with tempfile.TemporaryDirectory() as temporary:
            root = Path(temporary)
            children = {name: start(name, root / name) for name in RUNS}
            prepared: dict[str, float] = {}
            instants = {name: draw.uniform(75.0, 420.0) for name in RUNS}
            while children:
                time.sleep(0.2)
                for name, child in list(children.items()):
                    run = root / name / "run"
                    if child.poll() is not None:
                        raise SystemExit(f"{name} ended: {(root / name / 'output').read_text()[-2000:]}")
                    if name not in prepared and (first := first_line_s(run)) is not None:
                        prepared[name] = time.time() - first
                    if trained_s(run) >= instants[name]:
                        for pid in process_tree(child.pid):
                            os.kill(pid, 9)
                        killed = time.time()
                        child.wait()
                        saved = saved_at(run)
                        again = root / f"{name}-again"
                        lost_s = killed - saved if saved else repeated_s(name, prepared.get(name), again)
                        rows.append({"round": number, "run": name, "killed_after_s": round(instants[name], 1)})
                        rows[-1] |= {"checkpoint": saved is not None, "lost_s": round(lost_s, 1)}
                        print(json.dumps(rows[-1]), flush=True)
                        del children[name]
        if options.json:
            facts = {"host": host_facts(), "load": os.getloadavg()[0], "largest_s": max(row["lost_s"] for row in rows)}
            options.json.write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n")
    sys.exit(any(row["lost_s"] > BOUND_S for row in rows))


if __name__ == "__main__":
    main()
