"""LeRobotDataset v3: the published layout, round trips, and LIBERO's published conversions."""

from __future__ import annotations

import dataclasses
import io
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from powerband.core.errors import ConfigError
from powerband.data.recorded.shards import ShardError
from powerband.data.robot import lerobot_videos, lerobot_writer
from powerband.data.robot.episodes import RobotEpisodes
from powerband.data.robot.lerobot import read_lerobot
from powerband.data.robot.lerobot_videos import FilePosition
from powerband.data.robot.lerobot_writer import write_lerobot
from powerband.data.robot.read_episodes import read_episodes
from powerband.data.robot.unified_vector import STATE_SLOTS

pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'powerband[libero]'")
pytest.importorskip("av", reason="av is not installed: pip install av")

LENGTHS, SIDE = (5, 3, 4), 32
TEXTS = ("open the drawer", "close the drawer", "open the drawer")
CAMERAS = {"agentview": "observation.images.agentview", "wrist": "observation.images.wrist"}


def images() -> dict[str, np.ndarray]:
    """Smooth images that differ in each row and become darker from left to right."""
    ramp = np.linspace(0, 1, SIDE)[None, None, :, None] * np.ones((1, SIDE, 1, 1))
    step = 8 * np.arange(sum(LENGTHS))[:, None, None, None]
    colours = np.concatenate([150 - 90 * ramp, 120 - 60 * ramp, 110 - 90 * ramp], 3)
    return {"agentview": (colours + step).astype(np.uint8), "wrist": (colours[:, ::-1] + step[::-1]).astype(np.uint8)}


def episodes() -> RobotEpisodes:
    torch.manual_seed(0)
    rows, all_images = sum(LENGTHS), images()
    bounds = np.cumsum([0, *LENGTHS]).tolist()

    def blocks():
        for first, last in zip(bounds, bounds[1:], strict=False):
            yield first, {camera: each[first:last] for camera, each in all_images.items()}

    return RobotEpisodes(
        joints=torch.randn(rows, 7),
        gripper=torch.rand(rows),
        eef_pos=torch.randn(rows, 3),
        eef_quat=torch.nn.functional.normalize(torch.randn(rows, 4), dim=1),
        action=torch.rand(rows, 7) * 2 - 1,
        episode=torch.arange(3).repeat_interleave(torch.tensor(LENGTHS)),
        task=torch.arange(3).repeat_interleave(torch.tensor(LENGTHS)),
        instructions=TEXTS,
        hz=20.0,
        cameras=tuple(CAMERAS),
        images=blocks,
        fingerprint="a",
    )


def test_the_layout_equals_the_published_one(tmp_path: Path) -> None:
    # LeRobot, docs/source/lerobot-dataset-v3.mdx and datasets/{utils,dataset_metadata,dataset_writer,video_utils}.py;
    # meta/info.json of lerobot/libero_10; lerobot-dataset-visualizer pull request 61 on tasks.parquet.
    import pyarrow.parquet as parquet

    folder = write_lerobot(tmp_path / "set", episodes())
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    assert files == [
        "data/chunk-000/file-000.parquet",
        "meta/episodes/chunk-000/file-000.parquet",
        "meta/info.json",
        "meta/stats.json",
        "meta/tasks.parquet",
        "videos/observation.images.agentview/chunk-000/file-000.mp4",
        "videos/observation.images.wrist/chunk-000/file-000.mp4",
    ]
    info = json.loads((folder / "meta/info.json").read_text())
    assert info["codebase_version"] == "v3.0" and info["fps"] == 20 and isinstance(info["fps"], int)
    assert (info["total_episodes"], info["total_frames"], info["total_tasks"]) == (3, 12, 2)
    assert info["chunks_size"] == 1000 and info["splits"] == {"train": "0:3"} and info["robot_type"] == "panda"
    assert info["data_files_size_in_mb"] == 100 and info["video_files_size_in_mb"] == 200
    assert info["data_path"] == "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
    assert info["video_path"] == "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
    columns = {"timestamp": "float32", "frame_index": "int64", "episode_index": "int64", "index": "int64"}
    columns["task_index"] = "int64"
    assert set(info["features"]) == {*CAMERAS.values(), "observation.state", "action", *columns}
    for name, dtype in columns.items():
        assert info["features"][name] == {"dtype": dtype, "shape": [1], "names": None}
    state, action = info["features"]["observation.state"], info["features"]["action"]
    assert state["dtype"] == action["dtype"] == "float32" and state["shape"] == [15] and action["shape"] == [7]
    assert len(set(state["names"])) == 15 and len(set(action["names"])) == 7
    video = info["features"][CAMERAS["wrist"]]
    assert video["dtype"] == "video" and video["shape"] == [32, 32, 3]
    assert video["names"] == ["height", "width", "channels"]
    assert video["info"]["video.fps"] == 20 and video["info"]["video.codec"] == "h264"
    assert set(video["info"]) >= {"video.height", "video.width", "video.pix_fmt", "video.is_depth_map", "has_audio"}

    data = parquet.read_table(folder / files[0])
    assert set(data.column_names) == {"observation.state", "action", *columns}
    assert {str(data.schema.field(name).type): name for name in columns}.keys() == {"float", "int64"}
    assert str(data.schema.field("observation.state").type).startswith("fixed_size_list<")
    assert data["frame_index"].to_pylist() == [*range(5), *range(3), *range(4)]
    assert data["index"].to_pylist() == list(range(12))
    assert np.allclose(data["timestamp"].to_numpy(), np.array(data["frame_index"].to_pylist()) / 20)
    assert data["task_index"].to_pylist() == [0] * 5 + [1] * 3 + [0] * 4
    assert parquet.ParquetFile(folder / files[0]).num_row_groups == 3

    table = parquet.read_table(folder / files[1]).to_pylist()
    assert [each["episode_index"] for each in table] == [0, 1, 2] and [each["length"] for each in table] == [5, 3, 4]
    assert [each["tasks"] for each in table] == [[text] for text in TEXTS]
    assert [(each["dataset_from_index"], each["dataset_to_index"]) for each in table] == [(0, 5), (5, 8), (8, 12)]
    for key in CAMERAS.values():
        spans = [(each[f"videos/{key}/from_timestamp"], each[f"videos/{key}/to_timestamp"]) for each in table]
        assert np.allclose(spans, [(0, 0.25), (0.25, 0.4), (0.4, 0.6)])
        assert all(each[f"videos/{key}/chunk_index"] == each[f"videos/{key}/file_index"] == 0 for each in table)
    needed = ("data/chunk_index", "data/file_index", "meta/episodes/chunk_index", "meta/episodes/file_index")
    assert all(each[name] == 0 for each in table for name in needed)

    tasks = parquet.read_table(folder / "meta/tasks.parquet")
    assert tasks["task"].to_pylist() == list(TEXTS[:2]) and tasks["task_index"].to_pylist() == [0, 1]
    assert json.loads(tasks.schema.metadata[b"pandas"])["index_columns"] == ["task"]


def test_statistics_equal_those_of_the_data(tmp_path: Path) -> None:
    import pyarrow.parquet as parquet

    given = episodes()
    folder = write_lerobot(tmp_path / "set", given)
    stats = json.loads((folder / "meta/stats.json").read_text())
    assert {"min", "max", "mean", "std", "count"} <= set(stats["action"]) and stats["action"]["count"] == [12]
    assert np.allclose(stats["action"]["std"], given.action.double().numpy().std(0))
    pixels = images()["agentview"].reshape(-1, 3) / 255
    found, count = stats[CAMERAS["agentview"]], stats[CAMERAS["agentview"]]["count"]
    assert np.array(found["mean"]).shape == (3, 1, 1) and count == [12]
    for name in ("mean", "std", "min", "max"):
        assert np.allclose(np.array(found[name]).reshape(3), getattr(pixels, name)(0), atol=1e-9), name
    own = parquet.read_table(folder / "meta/episodes/chunk-000/file-000.parquet").to_pylist()[1]
    assert np.allclose(own["stats/action/mean"], given.action[5:8].double().numpy().mean(0))
    part = images()["wrist"][5:8].reshape(-1, 3) / 255
    assert np.allclose(np.array(own["stats/observation.images.wrist/std"]).reshape(3), part.std(0))


@pytest.mark.parametrize("video_mb, data_mb", [(200, 100), (-1, 0)])
def test_a_written_dataset_is_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, video_mb: int, data_mb: int
) -> None:
    monkeypatch.setattr(lerobot_videos, "MAX_VIDEO_MB", video_mb)
    monkeypatch.setattr(lerobot_writer, "DATA_MB", data_mb)
    given = episodes()
    folder = write_lerobot(tmp_path / "set", given)
    count = 1 if data_mb else 3
    assert len(list(folder.glob("data/*/*"))) == count and len(list(folder.glob("videos/*/*/*"))) == 2 * count
    back = read_episodes(folder)
    for name in ("joints", "gripper", "eef_pos", "eef_quat", "action", "episode"):
        assert torch.equal(getattr(back, name), getattr(given, name)), name
    assert back.instructions == TEXTS[:2] and back.task.tolist() == [0] * 5 + [1] * 3 + [0] * 4
    assert back.hz == 20.0 and back.cameras == given.cameras and back.slots == given.slots
    expected, rows = images(), []
    for row, block in back.images():
        rows.append(row)
        for camera, each in block.items():
            assert each.shape == (LENGTHS[len(rows) - 1], SIDE, SIDE, 3) and each.dtype == np.uint8
            errors = np.abs(each[:, None].astype(int) - expected[camera][None]).mean((2, 3, 4))
            assert errors.argmin(1).tolist() == list(range(row, row + len(each))), camera
            assert errors.min() < 3.0, (camera, errors)  # mirrored images would have an error of 40
    assert rows == [0, 5, 8]
    few = read_lerobot(folder, limit=1)
    assert few.rows == 8 and few.instructions == TEXTS[:2] and [row for row, _ in few.images()] == [0, 5]
    assert read_lerobot(folder, mirrored=True).fingerprint != back.fingerprint


def test_missing_fields_are_not_written(tmp_path: Path) -> None:
    given = dataclasses.replace(episodes(), slots=STATE_SLOTS[7:], cameras=("wrist",))
    back = read_lerobot(write_lerobot(tmp_path / "set", given))
    assert back.slots == STATE_SLOTS[7:] and back.cameras == ("wrist",)
    assert not back.joints.any() and torch.equal(back.eef_quat, given.eef_quat)
    assert json.loads((tmp_path / "set/meta/info.json").read_text())["features"]["observation.state"]["shape"] == [8]


def test_files_per_chunk_are_limited() -> None:
    assert FilePosition(0, 998).next() == FilePosition(0, 999) and FilePosition(0, 999).next() == FilePosition(1, 0)


def png(image: np.ndarray) -> dict[str, object]:
    data = io.BytesIO()
    Image.fromarray(image).save(data, "png")
    return {"bytes": data.getvalue(), "path": None}


def libero(folder: Path, *, joints: bool = False, index_name: str = "task", **changed: object) -> dict[str, np.ndarray]:
    """Writes LIBERO as in HuggingFaceVLA/libero: PNG images, and episodes without tasks (lerobot issue 4519)."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    rng = np.random.default_rng(0)
    stored = {name: rng.integers(0, 256, (6, 8, 8, 3), dtype=np.uint8) for name in ("agentview", "wrist")}
    turn, fingers = rng.normal(size=(6, 3)), rng.uniform(0, 0.04, 6)
    state = np.concatenate([rng.normal(size=(6, 3)), turn, fingers[:, None], -fingers[:, None]], 1).astype(np.float32)
    action, arm = rng.uniform(-1, 1, (6, 7)).astype(np.float32), rng.normal(size=(6, 7)).astype(np.float32)
    table = {
        "observation.images.image": [png(each) for each in stored["agentview"]],
        "observation.images.image2": [png(each) for each in stored["wrist"]],
        "observation.state": state.tolist(),
        "action": action.tolist(),
        "timestamp": [0.0, 0.1, 0.2, 0.0, 0.1, 0.2],
        "frame_index": [0, 1, 2, 0, 1, 2],
        "episode_index": [0, 0, 0, 1, 1, 1],
        "index": list(range(6)),
        "task_index": [7, 7, 7, 3, 3, 3],
    }
    image = {"dtype": "image", "shape": [8, 8, 3], "names": ["height", "width", "channel"]}
    features = {
        "observation.images.image": image,
        "observation.images.image2": image,
        "observation.state": {"dtype": "float32", "shape": [8], "names": ["state"]},
        "action": {"dtype": "float32", "shape": [7], "names": ["actions"]},
    }
    if joints:
        table["observation.states.joint_state"] = arm.tolist()
        features["observation.states.joint_state"] = {"dtype": "float32", "shape": [7], "names": None}
    info = {"codebase_version": "v3.0", "fps": 10.0, "features": features | changed.pop("features", {}), **changed}
    for part in ("data/chunk-000", "meta"):
        (folder / part).mkdir(parents=True)
    (folder / "meta/info.json").write_text(json.dumps(info))
    parquet.write_table(pa.table({"task_index": [3, 7], index_name: ["three", "seven"]}), folder / "meta/tasks.parquet")
    parquet.write_table(pa.table(table), folder / "data/chunk-000/file-000.parquet")
    return {"state": state, "action": action, "joints": arm, **stored}


@pytest.mark.parametrize("joints, index_name", [(False, "task"), (True, "__index_level_0__")])
def test_conversions_of_libero_are_read(tmp_path: Path, joints: bool, index_name: str) -> None:
    rotation = pytest.importorskip("scipy.spatial.transform", reason="scipy is not installed").Rotation
    given = libero(tmp_path / "set", joints=joints, index_name=index_name)
    found = read_lerobot(tmp_path / "set")
    assert found.hz == 10.0 and found.instructions == ("three", "seven") and found.task.tolist() == [1] * 3 + [0] * 3
    assert np.array_equal(found.action, given["action"]) and np.array_equal(found.eef_pos, given["state"][:, :3])
    quat = rotation.from_rotvec(given["state"][:, 3:6]).as_quat()
    assert np.allclose(np.abs((found.eef_quat.numpy() * quat).sum(1)), 1.0, atol=1e-6)
    assert np.allclose(found.gripper, given["state"][:, 6] / 0.04, atol=1e-6)
    assert found.slots == (STATE_SLOTS if joints else STATE_SLOTS[7:])
    assert bool(found.state_mask[:7].all()) == joints and bool(found.state_mask[30:39].all())
    assert np.array_equal(found.joints, given["joints"] if joints else np.zeros((6, 7)))
    for mirrored, expected in ((None, slice(None, None, -1)), (False, slice(None))):
        for row, block in read_lerobot(tmp_path / "set", mirrored=mirrored).images():
            assert np.array_equal(block["agentview"][0], given["agentview"][row][:, expected])
            assert np.array_equal(block["wrist"][0], given["wrist"][row][:, expected])


def test_other_versions_robots_and_states_are_refused(tmp_path: Path) -> None:
    libero(tmp_path / "old", codebase_version="v2.1")
    with pytest.raises(ConfigError, match="is a LeRobotDataset v2.1.*convert_dataset_v21_to_v30"):
        read_lerobot(tmp_path / "old")
    libero(tmp_path / "arms", features={"action": {"dtype": "float32", "shape": [14], "names": None}})
    with pytest.raises(ConfigError, match=r"actions of shape \[14\], but this robot needs \[7\]"):
        read_lerobot(tmp_path / "arms")
    names = {"motors": ["x", "y", "z", "qw", "qx", "qy", "qz", "gripper"]}
    libero(tmp_path / "quat", features={"observation.state": {"dtype": "float32", "shape": [8], "names": names}})
    with pytest.raises(ConfigError, match=r"a state of 8 entries \(x, y, z, qw, qx"):
        read_lerobot(tmp_path / "quat")
    with pytest.raises(ShardError, match="info.json cannot be read"):
        read_lerobot(tmp_path / "nowhere")


def test_missing_and_damaged_data_are_named(tmp_path: Path) -> None:
    import pyarrow.parquet as parquet

    libero(tmp_path / "set")
    path = tmp_path / "set/data/chunk-000/file-000.parquet"
    table = parquet.read_table(path)
    parquet.write_table(table.drop_columns("task_index"), path)
    with pytest.raises(ShardError, match="file-000.parquet has no column task_index; it has .*frame_index"):
        read_lerobot(tmp_path / "set")
    path.write_bytes(b"cut")
    with pytest.raises(ShardError, match="file-000.parquet cannot be read"):
        read_lerobot(tmp_path / "set")
    path.unlink()
    with pytest.raises(ShardError, match=r"no data/\*/\*.parquet"):
        read_lerobot(tmp_path / "set")
    folder = write_lerobot(tmp_path / "videos", episodes())
    found = read_lerobot(folder)
    next(folder.glob("videos/*wrist/*/*.mp4")).write_bytes(b"cut")
    with pytest.raises(ShardError, match="file-000.mp4 cannot be read"):
        list(found.images())


def test_images_with_odd_sides_are_refused_and_leave_no_files(tmp_path: Path) -> None:
    odd = {camera: each[:, :31] for camera, each in images().items()}
    with pytest.raises(ConfigError, match="31 x 32, but a video needs even sides"):
        write_lerobot(tmp_path / "set", dataclasses.replace(episodes(), images=lambda: iter([(0, odd)])))
    assert not list(tmp_path.iterdir())


def test_a_missing_pyarrow_is_named_with_the_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    libero(tmp_path / "set")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for call in (lambda: read_lerobot(tmp_path / "set"), lambda: write_lerobot(tmp_path / "new", episodes())):
        with pytest.raises(ConfigError, match=r"pip install 'powerband\[libero\]'"):
            call()
