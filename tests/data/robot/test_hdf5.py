"""LIBERO's HDF5: pictures upright, actions after what was seen, episodes in order, and keys that are missing named."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from powerband.core.errors import ConfigError
from powerband.data.recorded.shards import ShardError
from powerband.data.robot.hdf5 import read_libero_hdf5
from powerband.data.robot.read_episodes import read_episodes

STEPS = 6


def episode(number: int, steps: int = STEPS) -> dict[str, np.ndarray]:
    """What the simulator went through: state i, action i, state i + 1."""
    rng = np.random.default_rng(number)
    joints = np.cumsum(rng.normal(size=(steps + 1, 7)) * 0.05, 0)
    return {
        "joints": joints,
        "qpos": np.concatenate([joints, rng.normal(size=(steps + 1, 20))], 1),
        "gripper": rng.uniform(0, 0.04, (steps + 1, 1)) * [[1.0, -1.0]],
        "pos": rng.normal(size=(steps + 1, 3)),
        "turn": rng.normal(size=(steps + 1, 3)),
        "action": rng.uniform(-1, 1, (steps, 7)),
        "agentview": rng.integers(0, 256, (steps + 1, 4, 4, 3), dtype=np.uint8),
        "wrist": rng.integers(0, 256, (steps + 1, 4, 4, 3), dtype=np.uint8),
    }


def write(path: Path, numbers: tuple[int, ...], *, late: bool, attributes: dict[str, Any] | None = None) -> Path:
    """A file in the layout of LIBERO's ``create_dataset.py``; `late`: seen after each action, as it writes them."""
    h5py = pytest.importorskip("h5py", reason="h5py is not installed: pip install 'powerband[libero]'")
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs.update(attributes or {})
        for number in numbers:
            went, demo = episode(number), data.create_group(f"demo_{number}")
            seen = slice(1, None) if late else slice(0, -1)
            obs = demo.create_group("obs")
            obs["joint_states"], obs["gripper_states"] = went["joints"][seen], went["gripper"][seen]
            obs["ee_pos"], obs["ee_ori"] = went["pos"][seen], went["turn"][seen]
            obs["ee_states"] = np.concatenate([went["pos"][seen], went["turn"][seen]], 1)
            obs["agentview_rgb"], obs["eye_in_hand_rgb"] = went["agentview"][seen], went["wrist"][seen]
            demo["actions"] = went["action"]
            demo["states"] = np.concatenate([np.zeros((STEPS, 1)), went["qpos"][:-1]], 1)
            demo["robot_states"], demo["rewards"] = np.zeros((STEPS, 9)), np.zeros(STEPS, np.uint8)
            demo["dones"] = np.zeros(STEPS, np.uint8)
            demo.attrs["num_samples"] = STEPS
    return path


@pytest.mark.parametrize("late", [True, False])
def test_an_action_is_what_was_done_after_its_row_was_seen(tmp_path: Path, late: bool) -> None:
    rotation = pytest.importorskip("scipy.spatial.transform", reason="scipy is not installed").Rotation
    went = episode(0)
    found = read_libero_hdf5(write(tmp_path / "a_demo.hdf5", (0,), late=late))
    rows = slice(1, STEPS) if late else slice(0, STEPS)  # states of which what was seen and what was done are there
    assert found.rows == len(range(STEPS)[rows])
    assert np.allclose(found.joints, went["joints"][:STEPS][rows], atol=1e-6)
    assert np.allclose(found.action, went["action"][rows], atol=1e-6)
    assert np.allclose(found.eef_pos, went["pos"][:STEPS][rows], atol=1e-6)
    assert np.allclose(found.gripper, went["gripper"][:STEPS][rows][:, 0] / 0.04, atol=1e-5)
    quat = rotation.from_rotvec(went["turn"][:STEPS][rows]).as_quat()
    assert np.allclose(np.abs((found.eef_quat.numpy() * quat).sum(1)), 1.0, atol=1e-6)
    ((row, images),) = found.images()
    assert row == 0
    for camera in ("agentview", "wrist"):
        assert np.array_equal(images[camera], went[camera][:STEPS][rows][:, ::-1])


def test_pictures_of_the_other_convention_stay_as_they_are(tmp_path: Path) -> None:
    path = write(tmp_path / "a.hdf5", (0,), late=False, attributes={"macros_image_convention": "opencv"})
    assert np.array_equal(next(read_libero_hdf5(path).images())[1]["wrist"], episode(0)["wrist"][:-1])
    path = write(tmp_path / "b.hdf5", (0,), late=False, attributes={"macros_image_convention": "opengl"})
    assert np.array_equal(next(read_libero_hdf5(path).images())[1]["wrist"], episode(0)["wrist"][:-1, ::-1])


def test_episodes_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    path = write(tmp_path / "a.hdf5", (10, 2, 1), late=False)
    found = read_libero_hdf5(path)
    expected = np.concatenate([episode(number)["action"] for number in (1, 2, 10)])
    assert np.allclose(found.action, expected, atol=1e-6) and found.episode.tolist() == [0] * 6 + [1] * 6 + [2] * 6
    assert [row for row, _ in found.images()] == [0, 6, 12]
    few = read_libero_hdf5(path, limit=2)
    assert torch.equal(few.action, found.action[:12]) and [row for row, _ in few.images()] == [0, 6]


def test_a_folder_is_a_task_a_file(tmp_path: Path) -> None:
    told = json.dumps({"language_instruction": "open the top drawer", "problem_name": "x"})
    rate = json.dumps({"env_kwargs": {"control_freq": 20}})
    write(tmp_path / "a_demo.hdf5", (0, 1), late=True, attributes={"problem_info": told, "env_args": rate})
    write(tmp_path / "KITCHEN_SCENE10_put_the_bowl_on_the_plate_demo.hdf5", (3,), late=True)
    found = read_episodes(tmp_path)
    assert found.instructions == ("put the bowl on the plate", "open the top drawer") and found.hz == 20.0
    assert found.task.tolist() == [0] * 5 + [1] * 10 and found.episode.unique().tolist() == [0, 1, 2]
    slow = write(tmp_path / "a_demo.hdf5", (0,), late=True, attributes={"env_args": rate.replace("20", "10")})
    assert read_libero_hdf5(slow).hz == 10.0


def test_the_names_of_robomimic_are_read(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py", reason="h5py is not installed: pip install 'powerband[libero]'")
    went = episode(5)
    quat = np.random.default_rng(0).normal(size=(STEPS, 4))
    with h5py.File(tmp_path / "lift.hdf5", "w") as file:
        demo = file.create_group("data/demo_0")
        demo["actions"] = went["action"]
        obs = demo.create_group("obs")
        obs["agentview_image"], obs["robot0_eye_in_hand_image"] = went["agentview"][:-1], went["wrist"][:-1]
        obs["robot0_joint_pos"], obs["robot0_gripper_qpos"] = went["joints"][:-1], went["gripper"][:-1]
        obs["robot0_eef_pos"], obs["robot0_eef_quat"] = went["pos"][:-1], quat
    found = read_libero_hdf5(tmp_path / "lift.hdf5")
    assert np.allclose(found.eef_quat, quat, atol=1e-6) and np.allclose(found.action, went["action"], atol=1e-6)
    assert np.array_equal(next(found.images())[1]["agentview"], went["agentview"][:-1])  # upright already


def test_positions_may_lie_in_ee_states_alone(tmp_path: Path) -> None:
    path = write(tmp_path / "a.hdf5", (0,), late=False)
    whole = read_libero_hdf5(path)
    remove(path, "ee_pos", "ee_ori")
    assert torch.equal(read_libero_hdf5(path).eef_quat, whole.eef_quat)
    remove(path, "ee_states")
    with pytest.raises(ShardError, match="a.hdf5: /data/demo_0/obs has no ee_pos; it has agentview_rgb, eye"):
        read_libero_hdf5(path)


def remove(path: Path, *keys: str) -> None:
    import h5py

    with h5py.File(path, "a") as file:
        for key in keys:
            del file[f"data/demo_0/obs/{key}"]


@pytest.mark.parametrize("key", ["joint_states", "gripper_states"])
def test_a_key_that_is_missing_is_named(tmp_path: Path, key: str) -> None:
    path = write(tmp_path / "a.hdf5", (0,), late=False)
    remove(path, key)
    with pytest.raises(ShardError, match=f"/data/demo_0/obs has no {key}; it has .*agentview_rgb"):
        read_libero_hdf5(path)


def test_files_that_are_no_demonstrations_are_named(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py", reason="h5py is not installed: pip install 'powerband[libero]'")
    with pytest.raises(ConfigError, match=r"has no \*.hdf5"):
        read_libero_hdf5(tmp_path)
    (tmp_path / "text.hdf5").write_text("no HDF5")
    with pytest.raises(ShardError, match="text.hdf5 cannot be read"):
        read_libero_hdf5(tmp_path / "text.hdf5")
    with h5py.File(tmp_path / "other.hdf5", "w") as file:
        file["observations"] = np.zeros(3)
    with pytest.raises(ShardError, match="other.hdf5: / has no data; it has observations"):
        read_libero_hdf5(tmp_path / "other.hdf5")
    short = write(tmp_path / "short.hdf5", (0,), late=False)
    with h5py.File(short, "a") as file:
        del file["data/demo_0/actions"]
        file["data/demo_0/actions"] = np.zeros((4, 7))
    with pytest.raises(ShardError, match="/data/demo_0 has 4 of action, 6 of joints"):
        read_libero_hdf5(short)


def test_without_h5py_the_way_to_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(ConfigError, match=r"pip install 'powerband\[libero\]'"):
        read_libero_hdf5(tmp_path / "a.hdf5")
