"""RobotEpisodes: packed and unpacked recordings have the same rows, and errors name invalid data."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from powerband.core.errors import ConfigError
from powerband.data.recorded.recording import Recording
from powerband.data.recorded.shards import ShardError
from powerband.data.robot.episodes import RobotEpisodes, concatenate_episodes
from powerband.data.robot.read_episodes import read_episodes
from powerband.data.robot.recordings import read_recordings
from powerband.data.robot.unified_vector import STATE_SLOTS, state_vector

LENGTHS = {0: 3, 4: 5, 7: 2}
TASKS = {"b_close": "close the drawer", "a_open": "open the drawer"}


def steps(number: int, length: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(number)
    opening = torch.rand(length, 1) * 0.04
    return {
        "agentview": torch.full((length, 4, 4, 3), number, dtype=torch.uint8),
        "wrist": torch.arange(length, dtype=torch.uint8).view(-1, 1, 1, 1).repeat(1, 4, 4, 3),
        "joints": torch.randn(length, 7),
        "gripper": torch.cat([opening, -opening], 1),
        "eef_pos": torch.randn(length, 3),
        "eef_quat": torch.nn.functional.normalize(torch.randn(length, 4), dim=1),
        "action": torch.rand(length, 7) * 2 - 1,
    }


def record(folder: Path, instruction: str = "open the drawer", hz: float = 20, **changed: torch.Tensor) -> Recording:
    recording = Recording(folder, {"version": 1, "instruction": instruction, "hz": hz, "image_size": 4})
    for number, length in LENGTHS.items():
        recording.add(number, steps(number, length) | {name: value[:length] for name, value in changed.items()})
    return recording


def same(one: RobotEpisodes, other: RobotEpisodes) -> bool:
    fields = ("joints", "gripper", "eef_pos", "eef_quat", "action", "episode", "task")
    return all(torch.equal(getattr(one, name), getattr(other, name)) for name in fields)


def test_packed_and_unpacked_recordings_are_equal(tmp_path: Path) -> None:
    recording = record(tmp_path / "open")
    loose = read_recordings(tmp_path / "open")
    expected = [steps(number, length) for number, length in LENGTHS.items()]
    assert loose.rows == 10 and loose.count == 3 and loose.hz == 20.0
    assert loose.episode.tolist() == [0] * 3 + [1] * 5 + [2] * 2 and loose.task.tolist() == [0] * 10
    assert loose.instructions == ("open the drawer",) and loose.cameras == ("agentview", "wrist")
    for name in ("joints", "eef_pos", "eef_quat", "action"):
        assert torch.equal(getattr(loose, name), torch.cat([each[name] for each in expected]))
    fingers = torch.cat([each["gripper"] for each in expected])
    assert torch.allclose(loose.gripper, (fingers[:, 0] - fingers[:, 1]) / 0.08)
    loose_images = list(loose.images())
    recording.pack()
    packed = read_recordings(tmp_path / "open")
    assert same(packed, loose) and packed.fingerprint != loose.fingerprint
    for blocks in (loose_images, list(packed.images())):
        assert [row for row, _ in blocks] == [0, 3, 8] and [len(each["wrist"]) for _, each in blocks] == [3, 5, 2]
        for (_, each), fields in zip(blocks, expected, strict=True):
            assert all(np.array_equal(each[camera], fields[camera].numpy()) for camera in ("agentview", "wrist"))


def test_tasks_are_in_the_order_of_their_names_and_episodes_are_limited(tmp_path: Path) -> None:
    for folder, instruction in TASKS.items():
        record(tmp_path / folder, instruction)
    (tmp_path / "notes").mkdir()
    found = read_episodes(tmp_path)
    assert found.instructions == ("open the drawer", "close the drawer") and found.count == 6 and found.rows == 20
    assert found.task.tolist() == [0] * 10 + [1] * 10
    assert found.episode.unique_consecutive().tolist() == list(range(6))
    few = read_episodes(tmp_path, limit=2)
    assert few.rows == 16 and few.count == 4 and few.fingerprint != found.fingerprint
    assert [row for row, _ in few.images()] == [0, 3, 8, 11]
    assert torch.equal(few.action[8:], found.action[10:18])


def test_a_state_has_the_values_of_the_unified_vector(tmp_path: Path) -> None:
    record(tmp_path)
    episodes = read_recordings(tmp_path)
    vector = state_vector(episodes.joints, episodes.gripper, episodes.eef_pos, episodes.eef_quat)
    assert torch.equal(episodes.state(), vector[:, list(STATE_SLOTS)])
    assert episodes.state_mask.nonzero()[:, 0].tolist() == list(STATE_SLOTS)
    without = dataclasses.replace(episodes, slots=STATE_SLOTS[7:])
    assert torch.equal(without.state(), vector[:, [10, *range(30, 39)]])
    assert without.state_mask.nonzero()[:, 0].tolist() == [10, *range(30, 39)]


def test_a_recording_may_have_one_camera(tmp_path: Path) -> None:
    fields = {name: value for name, value in steps(0, 3).items() if name != "wrist"}
    single = Recording(tmp_path / "single", {"instruction": "x", "hz": 20})
    single.add(0, fields)
    episodes = read_recordings(tmp_path / "single")
    assert episodes.cameras == ("agentview",) and set(next(episodes.images())[1]) == {"agentview"}


def test_missing_and_damaged_data_are_named(tmp_path: Path) -> None:
    with pytest.raises(ShardError, match="has no episodes: neither recordings"):
        read_episodes(tmp_path)
    with pytest.raises(ShardError, match="has no episodes"):
        read_episodes(tmp_path / "nowhere")
    facts = {"instruction": "x", "hz": 20}
    Recording(tmp_path / "empty", facts)
    with pytest.raises(ShardError, match="no finished episode"):
        read_recordings(tmp_path / "empty")
    lacking = Recording(tmp_path / "lacking", facts)
    lacking.add(0, {name: value for name, value in steps(0, 3).items() if name != "eef_quat"})
    with pytest.raises(ShardError, match="00000000.safetensors has no field eef_quat; it has .*joints"):
        read_recordings(tmp_path / "lacking")
    Recording(tmp_path / "facts", {"instruction": "x"}).add(0, steps(0, 3))
    with pytest.raises(ShardError, match="has no hz; it has instruction"):
        read_recordings(tmp_path / "facts")
    record(tmp_path / "cut")
    path = tmp_path / "cut" / "episodes" / "00000004.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ShardError, match="00000004.safetensors cannot be read"):
        read_recordings(tmp_path / "cut")


def test_fields_of_other_robots_are_refused(tmp_path: Path) -> None:
    record(tmp_path / "arms", action=torch.zeros(9, 14))
    with pytest.raises(ConfigError, match=r"action of 'open the drawer' has shape \(10, 14\), not \(10, 7\)"):
        read_recordings(tmp_path / "arms")
    record(tmp_path / "fingers", gripper=torch.zeros(9, 6))
    with pytest.raises(ConfigError, match="6 positions"):
        read_recordings(tmp_path / "fingers")
    bad = torch.zeros(9, 3)
    bad[4, 1] = float("inf")
    record(tmp_path / "nan", eef_pos=bad)
    with pytest.raises(ConfigError, match="infinite eef_pos in row 7, episode 1"):
        read_recordings(tmp_path / "nan")


def test_different_sources_are_not_concatenated(tmp_path: Path) -> None:
    record(tmp_path / "a")
    record(tmp_path / "b", "close the drawer", hz=10)
    with pytest.raises(
        ConfigError, match="of 'close the drawer' and 'open the drawer' differ in control frequency: 10.0 and 20.0"
    ):
        read_recordings(tmp_path)
    one = read_recordings(tmp_path / "a")
    with pytest.raises(ConfigError, match="differ in cameras"):
        concatenate_episodes([one, dataclasses.replace(one, cameras=("wrist",))])
