"""Time of a checkpoint's save in this version of powerband compared with that in another commit.

    python benchmarks/reliability/save_times.py COMMIT [--pairs 40] [--json FILE]

One process per version saves the same state again and again, in turn, on the same disk: many small tensors, as of
networks and optimisers, or a replay buffer of 64 MiB. The result is the median over pairs of the ratio new / old of the
seconds of a save, which include hashing and syncing, with a 95 % bootstrap interval.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from powerband.core.machine.device import host_facts

ROOT = Path(__file__).resolve().parents[2]
SAVES = """
import sys, time, torch
from pathlib import Path
try:
    from powerband.core.run.checkpoints.checkpoint_writer import CheckpointWriter
except ImportError:
    from powerband.core.run.checkpoint import CheckpointWriter
torch.set_num_threads(1)
folder, state = Path(sys.argv[1]), sys.argv[2]
(folder / "checkpoints").mkdir(parents=True)
if state == "networks":
    tree = {f"layer{i}": {"weight": torch.randn(64, 64), "mean": torch.randn(64, 64), "step": i} for i in range(100)}
else:
    tree = {"obs": torch.randn(1 << 24), "next": 5}
for step, _ in enumerate(sys.stdin):
    began = time.perf_counter()
    writer = CheckpointWriter(folder, step)
    files = writer.write("rank0", tree)
    if hasattr(writer, "commit"):
        writer.commit(files, {"world_size": 1})
    else:
        writer.write_manifest(files, {"world_size": 1})
        writer.publish()
    print(time.perf_counter() - began, flush=True)
"""
WARMUP = 3
STATES = ("networks", "replay")


class Saver:
    """A process of one version that saves on demand.

    Args:
        source: Its PYTHONPATH.
        folder: Run folder, which it makes.
        state: Item of `STATES`.
    """

    def __init__(self, source: Path, folder: Path, state: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", SAVES, str(folder), state],
            env={"PYTHONPATH": str(source)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def save(self) -> float:
        """Saves once and returns the seconds."""
        assert self.process.stdin is not None and self.process.stdout is not None
        print("save", file=self.process.stdin, flush=True)
        return float(self.process.stdout.readline())

    def end(self) -> None:
        """Ends the process."""
        self.process.communicate()


def ratios(sources: dict[str, Path], state: str, pairs: int, folder: Path) -> tuple[list[float], list[float]]:
    """Returns the ratio new / old of each pair, and the seconds of the new version."""
    savers = {name: Saver(source, folder / f"{state}-{name}", state) for name, source in sources.items()}
    found, new = [], []
    for pair in range(WARMUP + pairs):
        names = list(savers) if pair % 2 else list(savers)[::-1]
        seconds = {name: savers[name].save() for name in names}
        if pair >= WARMUP:
            found.append(seconds["new"] / seconds["old"])
            new.append(seconds["new"])
    for saver in savers.values():
        saver.end()
    return found, new


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit")
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    result: dict[str, object] = {"host": host_facts(), "commit": options.commit, "pairs": options.pairs}
    rng = random.Random(0)
    with tempfile.TemporaryDirectory() as name:
        tree, folder = Path(name) / "old", Path(name)
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", tree, options.commit], cwd=ROOT, check=True)
        try:
            for state in STATES:
                values, seconds = ratios({"new": ROOT / "src", "old": tree / "src"}, state, options.pairs, folder)
                drawn = sorted(statistics.median(rng.choices(values, k=len(values))) for _ in range(2000))
                result[state] = {
                    "ratio": statistics.median(values),
                    "interval": [drawn[50], drawn[1949]],
                    "seconds": statistics.median(seconds),
                }
                print(state, json.dumps(result[state]), flush=True)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", tree], cwd=ROOT, check=True)
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
