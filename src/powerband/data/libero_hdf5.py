"""LIBERO's and robomimic's HDF5 as published: a file a task, ``data/demo_<i>`` an episode.

Two things in LIBERO's own files are not what they seem. Their pictures are upside down, as OpenGL renders them: they
are turned here. And row i was seen after action i, not before it (``create_dataset.py`` steps first and looks then): it
is paired with action i + 1 here. Files that others made anew from them hold what was seen before; which of both a file
is shows in ``states``, the simulator's state before each action, whose first positions are those of the arm's joints.
Source: Liu et al. 2023 (LIBERO, arXiv 2306.03310), Mandlekar et al. 2021 (robomimic, arXiv 2108.03298).
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from powerband.core.flags import ConfigError
from powerband.data.robot_episodes import CAMERAS, Block, RobotEpisodes, fingerprint_of, joined
from powerband.data.shards import ShardError
from powerband.data.unified import gripper_opening, quat_of

LIBERO = {
    "agentview": "agentview_rgb",
    "wrist": "eye_in_hand_rgb",
    "joints": "joint_states",
    "gripper": "gripper_states",
    "eef_pos": "ee_pos",
    "eef_quat": "ee_ori",
}
"""Ours -> LIBERO's; ``ee_ori`` is axis times angle, ``ee_states`` both in one."""
ROBOMIMIC = {
    "agentview": "agentview_image",
    "wrist": "robot0_eye_in_hand_image",
    "joints": "robot0_joint_pos",
    "gripper": "robot0_gripper_qpos",
    "eef_pos": "robot0_eef_pos",
    "eef_quat": "robot0_eef_quat",
}
HZ = 20.0
"""Of LIBERO, where a file does not say."""


def read_libero_hdf5(path: Path, limit: int | None = None) -> RobotEpisodes:
    """Reads demonstrations; pictures stay on disk until they are asked for.

    Args:
        path: A file of one task, or a folder of them, which are taken in the order of their names.
        limit: Episodes of each task at most, the first ones; None is all.

    Raises:
        ConfigError: h5py is not installed, or there is no file.
        ShardError: A file is damaged or lacks a key; it, the key and the keys that there are are named.
    """
    files = sorted(path.glob("*.hdf5")) if path.is_dir() else [path]
    if not files:
        raise ConfigError(f"{path} holds no *.hdf5: name the folder of a task set of LIBERO, or a file.")
    return joined([_read_file(file, limit) for file in files])


def _read_file(path: Path, limit: int | None) -> RobotEpisodes:
    with _opened(path) as file:
        data = _value(file, "data", path)
        demos = sorted((name for name in data if re.fullmatch(r"demo_\d+", name)), key=lambda name: int(name[5:]))
        demos = demos[:limit]
        if not demos:
            raise ShardError(f"{path}: data has no demo_0; it has {', '.join(data) or 'nothing'}.")
        obs = _value(data[demos[0]], "obs", path)
        kind = max((LIBERO, ROBOMIMIC), key=lambda names: sum(key in obs for key in names.values()))
        cameras = tuple(camera for camera in CAMERAS if kind[camera] in obs)
        read = [_numbers(data[demo], kind, path) for demo in demos]
        turned = kind is LIBERO and data.attrs.get("macros_image_convention") != "opencv"
        instruction, hz = _instruction(data.attrs, path), _rate(data.attrs)
    late = _seen_late(read)
    for each in read:
        end = len(each["action"]) - late
        each.update({name: value[late:] if name == "action" else value[:end] for name, value in each.items()})
    steps = torch.tensor([len(each["action"]) for each in read])
    wanted = ("joints", "gripper", "eef_pos", "eef_quat", "action")
    numbers = {name: torch.from_numpy(np.concatenate([each[name] for each in read])).float() for name in wanted}
    numbers["gripper"] = gripper_opening(numbers["gripper"])
    if kind is LIBERO:
        numbers["eef_quat"] = quat_of(numbers["eef_quat"].double()).float()

    def pictures() -> Iterator[Block]:
        row = 0
        with _opened(path) as file:
            for demo, count in zip(demos, steps.tolist(), strict=True):
                obs = file[f"data/{demo}/obs"]
                seen = {camera: _value(obs, kind[camera], path)[:count] for camera in cameras}
                yield row, {camera: each[:, ::-1] if turned else each for camera, each in seen.items()}
                row += count

    return RobotEpisodes(
        **numbers,
        episode=torch.arange(len(demos)).repeat_interleave(steps),
        task=torch.zeros(int(steps.sum()), dtype=torch.int64),
        instructions=(instruction,),
        hz=hz,
        cameras=cameras,
        pictures=pictures,
        fingerprint=fingerprint_of([path], numbers.values()),
    )


def _numbers(demo: Any, kind: dict[str, str], path: Path) -> dict[str, np.ndarray]:
    """Fields (T, ...) of an episode under our names; ``states`` where it has them."""
    obs = _value(demo, "obs", path)
    whole = obs["ee_states"][()] if kind is LIBERO and "ee_states" in obs else None
    parts = {"ee_pos": slice(0, 3), "ee_ori": slice(3, 6)}
    found = {"action": _value(demo, "actions", path)[()]}
    for name in ("joints", "gripper", "eef_pos", "eef_quat"):
        key = kind[name]
        in_whole = whole is not None and key in parts and key not in obs
        found[name] = whole[:, parts[key]] if in_whole else _value(obs, key, path)[()]
    if "states" in demo:
        found["states"] = demo["states"][()]
    if len({len(value) for value in found.values()}) > 1:
        told = ", ".join(f"{len(value)} of {name}" for name, value in found.items())
        raise ShardError(f"{path}: {demo.name} has {told}, as many are needed of each: remove that episode.")
    return found


def _seen_late(read: list[dict[str, np.ndarray]]) -> int:
    """1 where the arm's joints of row i are those of the simulator's state before action i + 1, else 0."""
    early, late = 0.0, 0.0
    for each in read:
        states, joints = each.get("states"), each["joints"]
        if states is None or states.ndim != 2 or states.shape[1] < 8 or len(states) < 2:
            continue
        arm = states[:, 1:8]  # after the time
        early += float(np.abs(arm[:-1] - joints[:-1]).sum())
        late += float(np.abs(arm[1:] - joints[:-1]).sum())
    return int(late < early)


def _instruction(attributes: Any, path: Path) -> str:
    """What the task is called: as the file says, else after the file's name."""
    with contextlib.suppress(KeyError, ValueError, TypeError):
        said = json.loads(attributes["problem_info"])["language_instruction"]
        return "".join(said).strip('"').strip()
    name = re.sub(r"^[A-Z_]+SCENE\d+_", "", path.stem.removesuffix("_demo"))
    return name.replace("_", " ").strip()


def _rate(attributes: Any) -> float:
    with contextlib.suppress(KeyError, ValueError, TypeError):
        return float(json.loads(attributes["env_args"])["env_kwargs"]["control_freq"])
    return HZ


def _value(group: Any, key: str, path: Path) -> Any:
    if key not in group:
        raise ShardError(f"{path}: {group.name} has no {key}; it has {', '.join(group) or 'nothing'}.")
    return group[key]


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        import h5py
    except ImportError:
        raise ConfigError(f"{path} is HDF5. Install what reads it: pip install 'powerband[libero]'") from None
    try:
        with h5py.File(path, "r") as file:
            yield file
    except OSError as error:
        raise ShardError(f"{path} cannot be read ({error}): download or make it again.") from error
