"""HDF5: reads published demonstrations of LIBERO and robomimic; one file per task, ``data/demo_<i>`` per episode.

LIBERO's own files differ from the usual convention in two ways. Their images are upside down, as OpenGL renders them;
this reader flips them. And row i is the observation after action i (``create_dataset.py`` steps before it observes);
this reader pairs it with action i + 1. Files that others derived from them have the observation before the action. The
field ``states``, the simulator's state before each action, distinguishes the two: it contains the joint positions.
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

from powerband.core.errors import ConfigError
from powerband.data.recorded.shards import ShardError
from powerband.data.robot.episodes import CAMERAS, ImageBlock, RobotEpisodes, concatenate_episodes, fingerprint_files
from powerband.data.robot.unified_vector import axis_angle_to_quat, gripper_opening

LIBERO = {
    "agentview": "agentview_rgb",
    "wrist": "eye_in_hand_rgb",
    "joints": "joint_states",
    "gripper": "gripper_states",
    "eef_pos": "ee_pos",
    "eef_quat": "ee_ori",
}
"""Field -> its name in LIBERO's files; ``ee_ori`` is axis times angle, and ``ee_states`` has both."""
ROBOMIMIC = {
    "agentview": "agentview_image",
    "wrist": "robot0_eye_in_hand_image",
    "joints": "robot0_joint_pos",
    "gripper": "robot0_gripper_qpos",
    "eef_pos": "robot0_eef_pos",
    "eef_quat": "robot0_eef_quat",
}
HZ = 20.0
"""Control frequency of LIBERO, for files that do not contain it."""


def read_libero_hdf5(path: Path, limit: int | None = None) -> RobotEpisodes:
    """Reads demonstrations from HDF5 files of LIBERO or robomimic; images are read when they are requested.

    Args:
        path: File of one task, or a folder of such files, which are read in the order of their names.
        limit: Largest number of episodes per task, from the first; None reads all.

    Raises:
        ConfigError: h5py is not installed, or the folder has no file.
        ShardError: A file is damaged or lacks a required key; the message names the keys that it has.
    """
    files = sorted(path.glob("*.hdf5")) if path.is_dir() else [path]
    if not files:
        raise ConfigError(f"{path} has no file *.hdf5. Name a folder of a LIBERO benchmark, or one of its files.")
    return concatenate_episodes([_read_file(file, limit) for file in files])


def _read_file(path: Path, limit: int | None) -> RobotEpisodes:
    with _opened(path) as file:
        data = _value(file, "data", path)
        demos = sorted((name for name in data if re.fullmatch(r"demo_\d+", name)), key=lambda name: int(name[5:]))
        demos = demos[:limit]
        if not demos:
            raise ShardError(
                f"{path}: the HDF5 group data has no episode demo_0; it has {', '.join(data) or 'nothing'}. Name "
                f"another file."
            )
        obs = _value(data[demos[0]], "obs", path)
        kind = max((LIBERO, ROBOMIMIC), key=lambda names: sum(key in obs for key in names.values()))
        cameras = tuple(camera for camera in CAMERAS if kind[camera] in obs)
        episodes = [_read_demo(data[demo], kind, path) for demo in demos]
        flipped = kind is LIBERO and data.attrs.get("macros_image_convention") != "opencv"
        instruction, hz = _instruction(data.attrs, path), _control_frequency(data.attrs)
    lag = _observation_lag(episodes)
    for each in episodes:
        end = len(each["action"]) - lag
        each.update({name: value[lag:] if name == "action" else value[:end] for name, value in each.items()})
    kept = [number for number, each in enumerate(episodes) if len(each["action"])]  # the lag may leave no step
    if not kept:
        raise ShardError(f"{path} has no episode with {lag + 1} steps or more. Name another file.")
    demos, episodes = [demos[number] for number in kept], [episodes[number] for number in kept]
    lengths = torch.tensor([len(each["action"]) for each in episodes])
    names = ("joints", "gripper", "eef_pos", "eef_quat", "action")
    fields: dict[str, Any] = {
        name: torch.from_numpy(np.concatenate([each[name] for each in episodes])).float() for name in names
    }
    fields["gripper"] = gripper_opening(fields["gripper"])
    if kind is LIBERO:
        fields["eef_quat"] = axis_angle_to_quat(fields["eef_quat"].double()).float()

    def images() -> Iterator[ImageBlock]:
        row = 0
        with _opened(path) as file:
            for demo, count in zip(demos, lengths.tolist(), strict=True):
                obs = file[f"data/{demo}/obs"]
                block = {camera: _value(obs, kind[camera], path)[:count] for camera in cameras}
                yield row, {camera: each[:, ::-1] if flipped else each for camera, each in block.items()}
                row += count

    return RobotEpisodes(
        **fields,
        episode=torch.arange(len(demos)).repeat_interleave(lengths),
        task=torch.zeros(int(lengths.sum()), dtype=torch.int64),
        instructions=(instruction,),
        hz=hz,
        cameras=cameras,
        images=images,
        fingerprint=fingerprint_files([path], fields.values()),
    )


def _read_demo(demo: Any, kind: dict[str, str], path: Path) -> dict[str, np.ndarray]:
    """Reads the fields (T, ...) of an episode of T steps, and ``states`` if the file has them; `kind`: field -> key."""
    obs = _value(demo, "obs", path)
    pose = obs["ee_states"][()] if kind is LIBERO and "ee_states" in obs else None
    parts = {"ee_pos": slice(0, 3), "ee_ori": slice(3, 6)}
    fields = {"action": _value(demo, "actions", path)[()]}
    for name in ("joints", "gripper", "eef_pos", "eef_quat"):
        key = kind[name]
        if pose is not None and key in parts and key not in obs:
            fields[name] = pose[:, parts[key]]
        else:
            fields[name] = _value(obs, key, path)[()]
    if "states" in demo:
        fields["states"] = demo["states"][()]
    if len({len(value) for value in fields.values()}) > 1:
        lengths = ", ".join(f"{name} {len(value)}" for name, value in fields.items())
        raise ShardError(
            f"{path}: the fields of {demo.name} differ in their numbers of rows ({lengths}). Remove that episode from "
            f"the file."
        )
    return fields


def _observation_lag(episodes: list[dict[str, np.ndarray]]) -> int:
    """Returns 1 if row i holds the observation after action i, and 0 if it holds the one before action i.

    The simulator's states before each action decide, because they contain the joint positions.
    """
    early, late = 0.0, 0.0
    for each in episodes:
        states, joints = each.get("states"), each["joints"]
        if states is None or states.ndim != 2 or states.shape[1] < 8 or len(states) < 2:
            continue
        arm = states[:, 1:8]  # index 0 is the time
        early += float(np.abs(arm[:-1] - joints[:-1]).sum())
        late += float(np.abs(arm[1:] - joints[:-1]).sum())
    return int(late < early)


def _instruction(attributes: Any, path: Path) -> str:
    """Returns the instruction in the file, or else the one in the file's name."""
    with contextlib.suppress(KeyError, ValueError, TypeError):
        text = json.loads(attributes["problem_info"])["language_instruction"]
        return "".join(text).strip('"').strip()
    name = re.sub(r"^[A-Z_]+SCENE\d+_", "", path.stem.removesuffix("_demo"))
    return name.replace("_", " ").strip()


def _control_frequency(attributes: Any) -> float:
    with contextlib.suppress(KeyError, ValueError, TypeError):
        return float(json.loads(attributes["env_args"])["env_kwargs"]["control_freq"])
    return HZ


def _value(group: Any, key: str, path: Path) -> Any:
    if key not in group:
        raise ShardError(
            f"{path}: the HDF5 group {group.name} has no {key}; it has {', '.join(group) or 'nothing'}. Name another "
            f"file."
        )
    return group[key]


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        import h5py
    except ImportError:
        raise ConfigError(f"Reading {path} needs the package h5py. Run pip install 'powerband[libero]'.") from None
    try:
        with h5py.File(path, "r") as file:
            yield file
    except OSError as error:
        raise ShardError(f"{path} cannot be read ({error}). Download or create it again.") from error
