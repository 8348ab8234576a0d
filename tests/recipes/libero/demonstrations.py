"""Random demonstrations for the recipe libero, for tests and benchmarks that do not need a simulator."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from powerband.data.recorded.recording import Recording

PIXELS = 32
TASKS = {"open": "open the drawer", "close": "close the drawer"}
"""Name -> instruction of the tasks."""


def record(folder: Path, tasks: dict[str, str] = TASKS, lengths: tuple[int, ...] = (9, 6)) -> Path:
    """Records one random episode of each length for each task, and returns `folder`."""
    rng = np.random.default_rng(0)
    for name, instruction in tasks.items():
        recording = Recording(folder / name, {"instruction": instruction, "hz": 20.0})
        for number, steps in enumerate(lengths):
            frames = rng.integers(256, size=(2, steps, PIXELS, PIXELS, 3), dtype=np.uint8)
            quaternions = rng.standard_normal((steps, 4)).astype(np.float32)
            fields = {
                "agentview": frames[0],
                "wrist": frames[1],
                "joints": rng.standard_normal((steps, 7)).astype(np.float32),
                "gripper": rng.uniform(0, 0.04, (steps, 2)).astype(np.float32) * np.float32([1, -1]),
                "eef_pos": rng.standard_normal((steps, 3)).astype(np.float32),
                "eef_quat": quaternions / np.linalg.norm(quaternions, axis=1, keepdims=True),
                "action": rng.uniform(-1, 1, (steps, 7)).astype(np.float32),
            }
            recording.add(number, {name: torch.from_numpy(value) for name, value in fields.items()})
        recording.pack()
    return folder
