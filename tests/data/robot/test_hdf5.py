"""HDF5: images are upright, actions follow their observations, episodes are in order, and errors name missing keys."""

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
    """States and actions of a simulated episode: state i, action i, state i + 1."""
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
    """Writes a file in the layout of LIBERO's ``create_dataset.py``; `late` stores observations after each action."""
    h5py = pytest.importorskip("h5py", reason="h5py is not installed: pip install 'powerband[libero]'")
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs.update(attributes or {})
        for number in numbers:
            simulated, demo = episode(number), data.create_group(f"demo_{number}")
            observed = slice(1, None) if late else slice(0, -1)
            obs = demo.create_group("obs")
            obs["joint_states"], obs["gripper_states"] = simulated["joints"][observed], simulated["gripper"][observed]
            obs["ee_pos"], obs["ee_ori"] = simulated["pos"][observed], simulated["turn"][observed]
            obs["ee_states"] = np.concatenate([simulated["pos"][observed], simulated["turn"][observed]], 1)
            obs["agentview_rgb"] = simulated["agentview"][observed]
            obs["eye_in_hand_rgb"] = simulated["wrist"][observed]
            demo["actions"] = simulated["action"]
            demo["states"] = np.concatenate([np.zeros((STEPS, 1)), simulated["qpos"][:-1]], 1)
            demo["robot_states"], demo["rewards"] = np.zeros((STEPS, 9)), np.zeros(STEPS, np.uint8)
            demo["dones"] = np.zeros(STEPS, np.uint8)
            demo.attrs["num_samples"] = STEPS
    return path


@pytest.mark.parametrize("late", [True, False])
def test_an_action_was_executed_after_the_observation_of_its_row(tmp_path: Path, late: bool) -> None:
    rotation = pytest.importorskip("scipy.spatial.transform", reason="scipy is not installed").Rotation
    simulated = episode(0)
    found = read_libero_hdf5(write(tmp_path / "a_demo.hdf5", (0,), late=late))
    rows = slice(1, STEPS) if late else slice(0, STEPS)  # states with both an observation and an action in the file
    assert found.rows == len(range(STEPS)[rows])
    assert np.allclose(found.joints, simulated["joints"][:STEPS][rows], atol=1e-6)
    assert np.allclose(found.action, simulated["action"][rows], atol=1e-6)
    assert np.allclose(found.eef_pos, simulated["pos"][:STEPS][rows], atol=1e-6)
    assert np.allclose(found.gripper, simulated["gripper"][:STEPS][rows][:, 0] / 0.04, atol=1e-5)
    quat = rotation.from_rotvec(simulated["turn"][:STEPS][rows]).as_quat()
    assert np.allclose(np.abs((found.eef_quat.numpy() * quat).sum(1)), 1.0, atol=1e-6)
    ((row, images),) = found.images()
    assert row == 0
    for camera in ("agentview", "wrist"):
        assert np.array_equal(images[camera], simulated[camera][:STEPS][rows][:, ::-1])


def test_images_of_the_opencv_convention_are_not_flipped(tmp_path: Path) -> None:
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


def test_an_episode_that_the_lag_leaves_without_a_step_is_left_out(tmp_path: Path) -> None:
    import h5py

    path = write(tmp_path / "a_demo.hdf5", (0, 1, 2), late=True)
    with h5py.File(path, "a") as file:
        demo = file["data/demo_1"]
        for group in (demo, demo["obs"]):
            for name in [name for name in group if name != "obs"]:
                first = group[name][:1]
                del group[name]
                group[name] = first
    episodes = read_libero_hdf5(path)
    assert episodes.episode.unique().tolist() == [0, 1] and len(episodes.action) == 2 * (STEPS - 1)
    assert [row for row, _ in episodes.images()] == [0, STEPS - 1]


def test_a_folder_has_one_task_per_file(tmp_path: Path) -> None:
    problem_info = json.dumps({"language_instruction": "open the top drawer", "problem_name": "x"})
    rate = json.dumps({"env_kwargs": {"control_freq": 20}})
    write(tmp_path / "a_demo.hdf5", (0, 1), late=True, attributes={"problem_info": problem_info, "env_args": rate})
    write(tmp_path / "KITCHEN_SCENE10_put_the_bowl_on_the_plate_demo.hdf5", (3,), late=True)
    found = read_episodes(tmp_path)
    assert found.instructions == ("put the bowl on the plate", "open the top drawer") and found.hz == 20.0
    assert found.task.tolist() == [0] * 5 + [1] * 10 and found.episode.unique().tolist() == [0, 1, 2]
    slow = write(tmp_path / "a_demo.hdf5", (0,), late=True, attributes={"env_args": rate.replace("20", "10")})
    assert read_libero_hdf5(slow).hz == 10.0


def test_the_names_of_robomimic_are_read(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py", reason="h5py is not installed: pip install 'powerband[libero]'")
    simulated = episode(5)
    quat = np.random.default_rng(0).normal(size=(STEPS, 4))
    with h5py.File(tmp_path / "lift.hdf5", "w") as file:
        demo = file.create_group("data/demo_0")
        demo["actions"] = simulated["action"]
        obs = demo.create_group("obs")
        obs["agentview_image"], obs["robot0_eye_in_hand_image"] = simulated["agentview"][:-1], simulated["wrist"][:-1]
        obs["robot0_joint_pos"], obs["robot0_gripper_qpos"] = simulated["joints"][:-1], simulated["gripper"][:-1]
        obs["robot0_eef_pos"], obs["robot0_eef_quat"] = simulated["pos"][:-1], quat
    found = read_libero_hdf5(tmp_path / "lift.hdf5")
    assert np.allclose(found.eef_quat, quat, atol=1e-6) and np.allclose(found.action, simulated["action"], atol=1e-6)
    assert np.array_equal(next(found.images())[1]["agentview"], simulated["agentview"][:-1])  # not flipped


def test_positions_may_be_in_ee_states_only(tmp_path: Path) -> None:
    path = write(tmp_path / "a.hdf5", (0,), late=False)
    complete = read_libero_hdf5(path)
    remove(path, "ee_pos", "ee_ori")
    assert torch.equal(read_libero_hdf5(path).eef_quat, complete.eef_quat)
    remove(path, "ee_states")
    with pytest.raises(
        ShardError, match="a.hdf5: the HDF5 group /data/demo_0/obs has no ee_pos; it has agentview_rgb, eye"
    ):
        read_libero_hdf5(path)


def remove(path: Path, *keys: str) -> None:
    import h5py

    with h5py.File(path, "a") as file:
        for key in keys:
            del file[f"data/demo_0/obs/{key}"]


@pytest.mark.parametrize("key", ["joint_states", "gripper_states"])
def test_a_missing_key_is_named(tmp_path: Path, key: str) -> None:
    path = write(tmp_path / "a.hdf5", (0,), late=False)
    remove(path, key)
    with pytest.raises(ShardError, match=f"/data/demo_0/obs has no {key}; it has .*agentview_rgb"):
        read_libero_hdf5(path)


def test_files_without_demonstrations_are_named(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py", reason="h5py is not installed: pip install 'powerband[libero]'")
    with pytest.raises(ConfigError, match=r"has no file \*.hdf5"):
        read_libero_hdf5(tmp_path)
    (tmp_path / "text.hdf5").write_text("no HDF5")
    with pytest.raises(ShardError, match="text.hdf5 cannot be read"):
        read_libero_hdf5(tmp_path / "text.hdf5")
    with h5py.File(tmp_path / "other.hdf5", "w") as file:
        file["observations"] = np.zeros(3)
    with pytest.raises(ShardError, match="other.hdf5: the HDF5 group / has no data; it has observations"):
        read_libero_hdf5(tmp_path / "other.hdf5")
    short = write(tmp_path / "short.hdf5", (0,), late=False)
    with h5py.File(short, "a") as file:
        del file["data/demo_0/actions"]
        file["data/demo_0/actions"] = np.zeros((4, 7))
    with pytest.raises(ShardError, match="fields of /data/demo_0 differ .*action 4, joints 6"):
        read_libero_hdf5(short)


def test_a_missing_h5py_is_named_with_the_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(ConfigError, match=r"pip install 'powerband\[libero\]'"):
        read_libero_hdf5(tmp_path / "a.hdf5")
