"""Loses one of three machines at random instants, a third of them the one at which the launchers meet.

The machines are network namespaces (`namespaces.py`), and one host has the cores of all. A loss cuts the link of a
machine and kills its processes, so no connection is closed. The machine returns after the run trains again. At the end
the learning curve is compared with an undisturbed run of the same steps and ranks. Results are added to the JSON file
after each loss, so that the script may be started again.

    sudo nice -n 19 python benchmarks/reliability/elastic_losses.py --losses 30 \
        --json benchmarks/results/reliability/elastic_losses.json
"""

from __future__ import annotations

import argparse
import json
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from namespaces import Namespaces

MACHINES, LIMIT_S, STALL_S = 3, 240.0, 20
WORDS = (
    "train gym env_id=CartPole-v1 algo=ppo ppo.hidden=32 shared_trunk=true on_policy.num_envs=12 num_steps=32 "
    "minibatches=2 gpus=none threads=1 num_workers=0 tensorboard=false log_interval_s=2 save_interval_s=5"
)
MEETS = re.compile(r"they meet at ([0-9.]+):")


class Cluster:
    """A run on three machines.

    Args:
        folder: Folder for the outputs and run folders.
        private: True if every machine has a run folder of its own.
        env_steps: Budget.
        seed: Seed of the run.
    """

    def __init__(self, folder: Path, private: bool, env_steps: int, seed: int) -> None:
        self.folder, self.private = folder, private
        self.network = Namespaces(MACHINES)
        self.meeting = 0
        addresses = [self.network.address(index) for index in range(MACHINES)]
        endpoints = ",".join(f"{address}:29500" for address in addresses)
        elastic = (
            f"stall_s={STALL_S} nnodes=2:3 max_restarts=100 rdzv_endpoint={endpoints} env_steps={env_steps} seed={seed}"
        )
        self.words = [*WORDS.split(), *elastic.split()]
        self.launchers = [self.start(index) for index in range(MACHINES)]

    def run_dir(self, index: int) -> Path:
        """Run folder of a machine."""
        return self.folder / (f"private{index}" if self.private else "run")

    def start(self, index: int) -> subprocess.Popen:
        """Starts the launcher of a machine."""
        words = [*self.words, f"run_dir={self.run_dir(index)}"]
        return self.network.start(index, words, self.folder / f"machine{index}")

    def outputs(self) -> list[str]:
        """What each machine has printed."""
        files = [self.folder / f"machine{index}" / "out" for index in range(MACHINES)]
        return [file.read_text() if file.exists() else "" for file in files]

    def wait(self, text: str, before: list[str]) -> bool:
        """Waits until a machine prints `text` after what it had printed `before`. False after the time limit."""
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            if any(text in now[len(then) :] for now, then in zip(self.outputs(), before, strict=True)):
                return True
            if all(each.poll() is not None for each in self.launchers):
                return False
            time.sleep(0.1)
        return False

    def lose(self, index: int) -> tuple[float, int]:
        """Loses a machine, and returns the seconds until the others train, and the env steps that are repeated."""
        self.network.lose(index)
        before, began = self.outputs(), time.monotonic()
        reached = last_step(before)
        trained = self.wait(" steps/s ", before)
        seconds = time.monotonic() - began
        if not trained:
            raise RuntimeError(f"no training after the loss of machine {index}: {self.outputs()}")
        found = [MEETS.findall(text[len(then) :]) for text, then in zip(self.outputs(), before, strict=True)]
        for address in (address for addresses in found for address in addresses[-1:]):
            self.meeting = int(address.rpartition(".")[2]) - 1
        resumed = re.findall(
            r"at (\d+) env steps", "".join(t[len(b) :] for t, b in zip(self.outputs(), before, strict=True))
        )
        return seconds, max(0, reached - int(resumed[-1])) if resumed else reached

    def bring_back(self, index: int) -> float:
        """Starts a lost machine again, and returns the seconds until it is taken in."""
        before, began = self.outputs(), time.monotonic()
        self.network.link(index, "up")
        self.launchers[index] = self.start(index)
        if not self.wait("3 on cpu", before) or not self.wait(" steps/s ", self.outputs()):
            raise RuntimeError(f"machine {index} was not taken in: {self.outputs()}")
        return time.monotonic() - began


def last_step(outputs: list[str]) -> int:
    """Largest number of environment steps in log lines such as ``1.54k steps``."""
    units = {"": 1, "k": 1e3, "M": 1e6}
    found = [float(number) * units[unit] for number, unit in re.findall(r"([\d.]+)([kM]?) steps ", "".join(outputs))]
    return int(max(found, default=0))


def curve(run_dir: Path) -> list[tuple[int, float]]:
    """(environment steps, mean return) of each log line."""
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    name = sorted({key for line in lines for key in line if "return" in key})[0]
    return [(line["env_steps"], line[name]) for line in lines if name in line]


def undisturbed(folder: Path, env_steps: int, seed: int) -> list[tuple[int, float]]:
    """Curve of the same run on three ranks without losses."""
    network = Namespaces(1)
    try:
        budget = ("nproc=3", f"env_steps={env_steps}", f"seed={seed}")
        words = [*WORDS.split(), *budget, f"run_dir={folder / 'undisturbed'}"]
        assert network.start(0, words, folder / "alone").wait() == 0, (folder / "alone" / "out").read_text()
    finally:
        network.close()
    return curve(folder / "undisturbed")


def main() -> None:
    """Loses machines, and writes the JSON file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--losses", type=int, default=30)
    parser.add_argument("--private", action="store_true", help="a run folder per machine")
    parser.add_argument("--seed", type=int, default=0, help="seed of the instants and machines")
    parser.add_argument("--run-seed", type=int, default=1, help="seed of the training")
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the machines end with this process
    record = json.loads(options.json.read_text()) if options.json.exists() else {"losses": []}
    losses: list[dict] = record["losses"]
    draw = random.Random(options.seed + len(losses))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        cluster = Cluster(folder, options.private, 10**9, options.run_seed)
        try:
            assert cluster.wait(" steps/s ", [""] * MACHINES), cluster.outputs()
            while len(losses) < options.losses:
                time.sleep(draw.uniform(3, 15))
                others = [index for index in range(MACHINES) if index != cluster.meeting]
                endpoint = len(losses) % 3 == 0
                victim = cluster.meeting if endpoint else draw.choice(others)
                seconds, repeated = cluster.lose(victim)
                time.sleep(2)
                back = cluster.bring_back(victim)
                losses.append({"machine": victim, "endpoint": endpoint, "private": options.private})
                losses[-1] |= {"lost_s": round(seconds, 1), "repeated_steps": repeated, "back_s": round(back, 1)}
                print(losses[-1], flush=True)
                summary = {"median_lost_s": median(each["lost_s"] for each in losses), "losses": losses}
                record = {
                    "command": "benchmarks/reliability/elastic_losses.py",
                    "stall_s": STALL_S,
                    "words": f"{WORDS} seed={options.run_seed}",
                } | summary
                options.json.write_text(json.dumps(record, indent=1))
        finally:
            cluster.network.close()
        if not options.private:
            disturbed = curve(cluster.run_dir(0))
            record["curve"] = disturbed
            record["undisturbed_curve"] = undisturbed(folder, disturbed[-1][0], options.run_seed)
            options.json.write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
