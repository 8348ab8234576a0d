"""Samples per second of libero's batch loader, compared with a DataLoader that reads HDF5 item by item.

    python benchmarks/training/robot_feed.py [--rounds 7] [--batches 60] [
        --json benchmarks/results/training/robot_feed.json]

All loaders read the same synthetic episodes from one file in LIBERO's published format: images of 128 pixels of two
cameras, without compression. A batch has 32 samples with two frames of each camera, the state and a chunk of 64
actions. powerband also builds the unified vector and its masks; the DataLoader returns the recorded values. If lerobot
is installed, it is measured too, with a LeRobotDataset of the same episodes that powerband writes.
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
STATE_FIELDS = {"joint_states": 7, "gripper_states": 2, "ee_states": 6}


def write_episodes(path: Path) -> None:
    """Writes episodes of smooth moving images in LIBERO's format."""
    import h5py

    rng = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["problem_info"] = json.dumps({"language_instruction": "synthetic"})
        for number in range(EPISODES):
            steps = STEPS + int(rng.integers(-20, 21))
            demo = data.create_group(f"demo_{number}")
            obs = demo.create_group("obs")
            for name in ("agentview_rgb", "eye_in_hand_rgb"):
                coarse = torch.from_numpy(rng.random((2, 3, 8, 8), dtype=np.float32))
                first, last = torch.nn.functional.interpolate(coarse, size=(SIDE, SIDE), mode="bicubic").clamp(0, 1)
                share = torch.linspace(0, 1, steps).view(-1, 1, 1, 1)
                frames = (first * (1 - share) + last * share) * 255
                obs[name] = frames.permute(0, 2, 3, 1).to(torch.uint8).numpy()
            for name, size in STATE_FIELDS.items():
                obs[name] = np.cumsum(rng.normal(size=(steps, size)) * 0.01, 0)
            demo["actions"] = rng.uniform(-1, 1, (steps, 7))


class HDF5Dataset(Dataset):
    """Typical dataset, which opens the file once per process and reads the slices of each item from it."""

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
            frames = group[f"obs/{name}"][first : step + 1]
            item[name] = torch.from_numpy(np.concatenate([frames[:1]] * (HISTORY - len(frames)) + [frames]))
        item["state"] = torch.from_numpy(np.concatenate([group[f"obs/{name}"][step] for name in STATE_FIELDS])).float()
        actions = group["actions"][step:last]
        padded = np.concatenate([actions, np.repeat(actions[-1:], HORIZON - len(actions), 0)])
        return item | {"action": torch.from_numpy(padded).float(), "valid": torch.arange(HORIZON) < len(actions)}


def endless_batches(dataset: Dataset, workers: int) -> Iterator[Any]:
    """Returns an iterator over batches without an end, so that rates include no start of an epoch."""
    sampler = RandomSampler(dataset, replacement=True, num_samples=10**7)
    return iter(DataLoader(dataset, BATCH, sampler=sampler, num_workers=workers))


def lerobot_dataset(folder: Path, episodes: Any) -> Dataset | None:
    """Returns the same episodes as a LeRobotDataset; None if lerobot or its video decoder is missing."""
    try:
        from lerobot.datasets.lerobot_dataset import LeRobotDataset
    except ImportError:
        print("lerobot is not installed. Install it with pip install lerobot to measure it.")
        return None
    from powerband.data.robot.lerobot_writer import write_lerobot

    write_lerobot(folder, episodes)
    past = [step / episodes.hz for step in range(1 - HISTORY, 1)]
    deltas = {f"observation.images.{camera}": past for camera in episodes.cameras}
    deltas["action"] = [step / episodes.hz for step in range(HORIZON)]
    dataset = LeRobotDataset("synthetic/episodes", root=folder, delta_timestamps=deltas)
    try:
        dataset[0]
    except (ImportError, AttributeError, RuntimeError) as error:
        print(f"lerobot is not measured, because it cannot decode videos here: {type(error).__name__}: {error}")
        return None
    return dataset


def measure(loaders: dict[str, Callable[[], Any]], rounds: int, batches: int) -> dict[str, list[float]]:
    """Returns the samples per second of each loader in each round; the rounds are interleaved."""
    rates: dict[str, list[float]] = {name: [] for name in loaders}
    for index in range(rounds + 1):
        for name, next_batch in loaders.items():
            next_batch()
            start = time.perf_counter()
            for _ in range(batches):
                next_batch()
            if index:  # round 0 warms up
                rates[name].append(BATCH * batches / (time.perf_counter() - start))
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=7, help="interleaved rounds")
    parser.add_argument("--batches", type=int, default=60, help="batches per round")
    parser.add_argument("--json", type=Path, help="file for the results")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "synthetic_demo.hdf5"
        write_episodes(path)
        episodes = read_libero_hdf5(path)
        start = time.perf_counter()
        cache = Path(folder) / "frames"
        frames = FrameCache.build(cache, episodes.cameras, episodes.rows, None, episodes.images(), episodes.fingerprint)
        build_s = time.perf_counter() - start
        chunks = RobotChunks(episodes, frames, None, HORIZON, HISTORY)
        batch_loaders = {threads: BatchLoader(chunks.rows, BATCH, chunks, threads=threads) for threads in (0, 1, 2)}
        loaders: dict[str, Callable[[], Any]] = {
            f"powerband, {threads} threads": loader.next for threads, loader in batch_loaders.items()
        }
        peers = {f"HDF5 DataLoader, {workers} workers": (HDF5Dataset(path), workers) for workers in (0, 2)}
        if (dataset := lerobot_dataset(Path(folder) / "lerobot", episodes)) is not None:
            peers |= {f"LeRobotDataset, {workers} workers": (dataset, workers) for workers in (0, 2)}
        iterators = {name: endless_batches(*peer) for name, peer in peers.items()}
        loaders |= {name: iterator.__next__ for name, iterator in iterators.items()}
        rates = measure(loaders, options.rounds, options.batches)
        for loader in batch_loaders.values():
            loader.close()
        iterators.clear()
        loaders.clear()
    medians = {name: statistics.median(values) for name, values in rates.items()}
    best_peer = max(rate for name, rate in medians.items() if name in peers)
    gain = max(rate for name, rate in medians.items() if name not in peers) / best_peer
    print(f"{episodes.rows} rows; building the frame cache took {build_s:.1f} s")
    for name, rate in medians.items():
        print(f"{name:28s} {rate:9,.0f} samples/s ({min(rates[name]):,.0f} to {max(rates[name]):,.0f})")
    print(f"best of powerband divided by the best of the other loaders: {gain:.2f}x")
    if options.json:
        result = {
            "host": host_facts(),
            "rows": episodes.rows,
            "batch": BATCH,
            "history": HISTORY,
            "horizon": HORIZON,
            "side": SIDE,
            "rounds": options.rounds,
            "batches": options.batches,
            "build_s": build_s,
            "samples_per_s": medians,
            "all": rates,
            "gain": gain,
        }
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
