"""Samples a second that the input of `libero` delivers, against a DataLoader that reads HDF5 item by item.

    python benchmarks/robot_feed.py [--rounds 7] [--batches 60] [--json benchmarks/results/robot_feed.json]

All sides read the same made-up episodes from one file in LIBERO's published layout (pictures of 128 pixels, two
cameras, not compressed, as LIBERO's are) and deliver batches of 32: two frames of each camera, the state, a chunk of 64
actions. powerband's side includes the unified vector and its masks; the DataLoader's delivers plain numbers. Where
lerobot is installed, the same episodes are read through it from a LeRobotDataset that powerband wrote.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler

from powerband.core.machine.device import host_facts
from powerband.data.recorded.batch_loader import BatchLoader
from powerband.data.robot.chunks import RobotChunks
from powerband.data.robot.frames import FrameCache
from powerband.data.robot.hdf5 import read_libero_hdf5

EPISODES, STEPS, SIDE, BATCH, HISTORY, HORIZON = 20, 120, 128, 32, 2, 64
NUMBERS = {"joint_states": 7, "gripper_states": 2, "ee_states": 6}


def make(path: Path) -> None:
    """Episodes of smooth pictures that move, in LIBERO's layout."""
    import h5py

    rng = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["problem_info"] = json.dumps({"language_instruction": "made up"})
        for number in range(EPISODES):
            steps = STEPS + int(rng.integers(-20, 21))
            demo = data.create_group(f"demo_{number}")
            obs = demo.create_group("obs")
            for name in ("agentview_rgb", "eye_in_hand_rgb"):
                coarse = torch.from_numpy(rng.random((2, 3, 8, 8), dtype=np.float32))
                first, last = torch.nn.functional.interpolate(coarse, size=(SIDE, SIDE), mode="bicubic").clamp(0, 1)
                share = torch.linspace(0, 1, steps).view(-1, 1, 1, 1)
                film = (first * (1 - share) + last * share) * 255
                obs[name] = film.permute(0, 2, 3, 1).to(torch.uint8).numpy()
            for name, wide in NUMBERS.items():
                obs[name] = np.cumsum(rng.normal(size=(steps, wide)) * 0.01, 0)
            demo["actions"] = rng.uniform(-1, 1, (steps, 7))


class Items(Dataset):
    """The usual one: an item opens the file once a process, and reads its slices from it."""

    def __init__(self, path: Path) -> None:
        import h5py

        self.path, self.file = path, None
        with h5py.File(path, "r") as file:
            demos = sorted(file["data"], key=lambda name: int(name[5:]))
            lengths = {demo: len(file[f"data/{demo}/actions"]) for demo in demos}
        self.rows = [(demo, step, length) for demo, length in lengths.items() for step in range(length)]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        import h5py

        if self.file is None:
            self.file = h5py.File(self.path, "r")
        demo, step, length = self.rows[number]
        group = self.file[f"data/{demo}"]
        first, last = max(0, step + 1 - HISTORY), min(length, step + HORIZON)
        item = {}
        for name in ("agentview_rgb", "eye_in_hand_rgb"):
            seen = group[f"obs/{name}"][first : step + 1]
            item[name] = torch.from_numpy(np.concatenate([seen[:1]] * (HISTORY - len(seen)) + [seen]))
        item["state"] = torch.from_numpy(np.concatenate([group[f"obs/{name}"][step] for name in NUMBERS])).float()
        done = group["actions"][step:last]
        padded = np.concatenate([done, np.repeat(done[-1:], HORIZON - len(done), 0)])
        return item | {"action": torch.from_numpy(padded).float(), "valid": torch.arange(HORIZON) < len(done)}


def loaded(items: Dataset, workers: int) -> Iterator[Any]:
    """Batches without end, so that no epoch's start is waited for."""
    sampler = RandomSampler(items, replacement=True, num_samples=10**7)
    return iter(DataLoader(items, BATCH, sampler=sampler, num_workers=workers))


def lerobot_items(folder: Path, episodes: Any) -> Dataset | None:
    """The same episodes through LeRobot; None where it is not installed, or has nothing to decode films with."""
    try:
        from lerobot.datasets.lerobot_dataset import LeRobotDataset
    except ImportError:
        print("lerobot is not installed: it is left out")
        return None
    from powerband.data.robot.lerobot_writer import write_lerobot

    write_lerobot(folder, episodes)
    past = [step / episodes.hz for step in range(1 - HISTORY, 1)]
    deltas = {f"observation.images.{camera}": past for camera in episodes.cameras}
    deltas["action"] = [step / episodes.hz for step in range(HORIZON)]
    items = LeRobotDataset("made/up", root=folder, delta_timestamps=deltas)
    try:
        items[0]
    except (ImportError, AttributeError, RuntimeError) as error:
        print(f"lerobot decodes no films here ({error}): it is left out")
        return None
    return items


def measured(sides: dict[str, Callable[[], Any]], rounds: int, batches: int) -> dict[str, list[float]]:
    """Samples a second of each side in each round; the sides take turns, and one round is not counted."""
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(rounds + 1):
        for name, draw in sides.items():
            draw()
            start = time.perf_counter()
            for _ in range(batches):
                draw()
            if turn:
                rates[name].append(BATCH * batches / (time.perf_counter() - start))
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--json", type=Path, help="write the figures here")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        path = Path(made) / "made_up_demo.hdf5"
        make(path)
        episodes = read_libero_hdf5(path)
        start = time.perf_counter()
        cache = Path(made) / "frames"
        frames = FrameCache.build(cache, episodes.cameras, episodes.rows, None, episodes.images(), episodes.fingerprint)
        build_s = time.perf_counter() - start
        chunks = RobotChunks(episodes, frames, None, HORIZON, HISTORY)
        feeds = {threads: BatchLoader(chunks.rows, BATCH, chunks, threads=threads) for threads in (0, 1, 2)}
        sides: dict[str, Callable[[], Any]] = {
            f"powerband, {threads} threads": feed.next for threads, feed in feeds.items()
        }
        peers = {f"HDF5 DataLoader, {workers} workers": (Items(path), workers) for workers in (0, 2)}
        if (items := lerobot_items(Path(made) / "lerobot", episodes)) is not None:
            peers |= {f"LeRobotDataset, {workers} workers": (items, workers) for workers in (0, 2)}
        iterators = {name: loaded(*peer) for name, peer in peers.items()}
        sides |= {name: iterator.__next__ for name, iterator in iterators.items()}
        rates = measured(sides, given.rounds, given.batches)
        for feed in feeds.values():
            feed.close()
        iterators.clear()
        sides.clear()
    medians = {name: statistics.median(values) for name, values in rates.items()}
    best = {kind: max(rate for name, rate in medians.items() if (name in peers) == kind) for kind in (True, False)}
    gain = best[False] / best[True]
    print(f"{episodes.rows} rows; the cache took {build_s:.1f} s, once")
    for name, rate in medians.items():
        print(f"{name:28s} {rate:9,.0f} samples/s ({min(rates[name]):,.0f} to {max(rates[name]):,.0f})")
    print(f"the better of ours over the best of theirs: {gain:.2f}x")
    if given.json:
        found = {
            "host": host_facts(),
            "rows": episodes.rows,
            "batch": BATCH,
            "history": HISTORY,
            "horizon": HORIZON,
            "side": SIDE,
            "rounds": given.rounds,
            "batches": given.batches,
            "build_s": build_s,
            "samples_per_s": medians,
            "all": rates,
            "gain": gain,
        }
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
