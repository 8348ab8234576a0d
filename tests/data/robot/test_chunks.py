"""RobotChunks: batches compared with a plain loop, masks at the ends of episodes, and images."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from powerband.core.errors import ConfigError
from powerband.data.recorded.batch_loader import BatchLoader
from powerband.data.robot.chunks import RobotChunks
from powerband.data.robot.encoder_features import FeatureCache
from powerband.data.robot.episodes import RobotEpisodes
from powerband.data.robot.frames import FrameCache
from powerband.data.robot.keyframes import LEAVE_DISTANCE_M, next_keyframes
from powerband.data.robot.unified_vector import (
    ACTION_SLOTS,
    SLOT_NAMES,
    STATE_SLOTS,
    action_vector,
    slot_mask,
    state_vector,
)
from powerband.data.types import tree_paths

LENGTHS, SIDE = (5, 1, 9, 3), 4
ROWS, CAMERAS = sum(LENGTHS), ("agentview", "wrist")
IMAGES = {
    camera: np.random.default_rng(seed).integers(0, 256, (ROWS, SIDE, SIDE, 3), dtype=np.uint8)
    for seed, camera in enumerate(CAMERAS)
}


def episodes(**changed: object) -> RobotEpisodes:
    torch.manual_seed(0)
    defaults = RobotEpisodes(
        joints=torch.randn(ROWS, 7),
        gripper=torch.rand(ROWS),
        eef_pos=torch.randn(ROWS, 3),
        eef_quat=torch.nn.functional.normalize(torch.randn(ROWS, 4), dim=1),
        action=torch.rand(ROWS, 7) * 2 - 1,
        episode=torch.arange(4).repeat_interleave(torch.tensor(LENGTHS)),
        task=torch.tensor([0, 0, 1, 1]).repeat_interleave(torch.tensor(LENGTHS)),
        instructions=("open", "close"),
        hz=20.0,
        cameras=CAMERAS,
        images=lambda: iter([(0, IMAGES)]),
        fingerprint="a",
    )
    return dataclasses.replace(defaults, **changed)


def frames(folder: Path, of: RobotEpisodes) -> FrameCache:
    return FrameCache.build(folder / "frames", of.cameras, of.rows, None, of.images(), of.fingerprint)


def plain(of: RobotEpisodes, row: int, horizon: int, history: int, images: dict[str, np.ndarray]) -> dict:
    """Plain implementation for one row."""
    rows = [other for other in range(of.rows) if of.episode[other] == of.episode[row]]
    frames = torch.zeros(history, 2, SIDE, SIDE, 3, dtype=torch.uint8)
    image_mask = torch.zeros(history, 2, dtype=torch.bool)
    for frame in range(history):
        source = row - (history - 1 - frame)
        for number, camera in enumerate(CAMERAS):
            if camera in images:
                frames[frame, number] = torch.from_numpy(images[camera][max(source, rows[0])])
                image_mask[frame, number] = source in rows
    state = state_vector(of.joints[row], of.gripper[row], of.eef_pos[row], of.eef_quat[row])
    action_rows = [min(row + later, rows[-1]) for later in range(horizon)]
    keyframe = of.eef_pos[loop_keyframe(of.action[rows, -1] > 0, of.eef_pos[rows], row - rows[0]) + rows[0]]
    return {
        "keyframe": keyframe,
        "obs": {
            "images": frames,
            "image_mask": image_mask,
            "state": torch.where(of.state_mask, state, torch.zeros(128)),
            "state_mask": of.state_mask,
            "task": of.task[row],
            "hz": torch.tensor(of.hz),
        },
        "action": torch.stack([action_vector(of.action[other]) for other in action_rows]),
        "action_mask": slot_mask(ACTION_SLOTS),
        "valid": torch.tensor([row + later in rows for later in range(horizon)]),
    }


def loop_keyframe(closes: torch.Tensor, position: torch.Tensor, step: int) -> int:
    """Plain implementation for one step of an episode."""
    held = None  # the newest keyframe, while the hand has not left it
    for other in range(step + 1):
        if other == len(closes) - 1 or (other > 0 and closes[other] != closes[other - 1]):
            held = other
        elif held is not None and (position[other] - position[held]).norm() > LEAVE_DISTANCE_M:
            held = None
    if held is not None:
        return held
    later = [other for other in range(step + 1, len(closes)) if closes[other] != closes[other - 1]]
    return min([*later, len(closes) - 1])


def test_a_step_keeps_its_keyframe_until_the_hand_has_left_it() -> None:
    closes = torch.tensor([0, 0, 1, 1, 1, 1, 0, 0, 0, 1, 1], dtype=torch.bool)
    height = torch.tensor([9.0, 5, 1, 1, 2, 8, 8, 9, 20, 5, 5]) / 100
    position = torch.stack([height * 0, height * 0, height], 1)
    last = torch.tensor([8] * 9 + [10] * 2)
    found = next_keyframes(closes, position, last)
    assert found.tolist() == [2, 2, 2, 2, 2, 6, 6, 6, 8, 10, 10]


@pytest.mark.parametrize("seed", range(20))
def test_keyframes_equal_those_of_a_loop(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 30, (12,), generator=generator).tolist()
    rows = sum(lengths)
    closes = torch.rand(rows, generator=generator) < 0.5
    closes = torch.where(torch.rand(rows, generator=generator) < 0.7, torch.zeros(rows, dtype=torch.bool), closes)
    position = (0.01 * torch.randn(rows, 3, generator=generator)).cumsum(0)
    ends = torch.tensor(lengths).cumsum(0)
    last = torch.repeat_interleave(ends - 1, torch.tensor(lengths))
    found = next_keyframes(closes, position, last)
    for end, length in zip(ends.tolist(), lengths, strict=True):
        part = slice(end - length, end)
        expected = [loop_keyframe(closes[part], position[part], step) + end - length for step in range(length)]
        assert found[part].tolist() == expected


def assert_batch(found: dict, rows: list[int], expected: list[dict]) -> None:
    leaves = [dict(tree_paths(each)) for each in expected]
    assert dict(tree_paths(found)).keys() == leaves[0].keys()
    for path, leaf in tree_paths(found):
        stacked = torch.stack([each[path] for each in leaves])
        assert leaf.shape == stacked.shape and leaf.dtype == stacked.dtype, path
        assert torch.equal(leaf, stacked), (path, rows)


@pytest.mark.parametrize("horizon, history", [(4, 2), (1, 1), (12, 3)])
def test_a_batch_equals_that_of_a_loop_over_rows(tmp_path: Path, horizon: int, history: int) -> None:
    of = episodes()
    chunks = RobotChunks(of, frames(tmp_path, of), None, horizon, history)
    assert chunks.rows == ROWS
    for rows in (list(range(ROWS)), [17, 0, 5, 5, 4], [6]):
        found = chunks(torch.tensor(rows))
        assert_batch(found, rows, [plain(of, row, horizon, history, IMAGES) for row in rows])
    assert found["obs"]["images"].shape == (1, history, 2, SIDE, SIDE, 3)


def test_missing_cameras_and_joints_are_masked(tmp_path: Path) -> None:
    wrist = {"wrist": IMAGES["wrist"]}
    of = episodes(cameras=("wrist",), images=lambda: iter([(0, wrist)]), slots=STATE_SLOTS[7:])
    found = RobotChunks(of, frames(tmp_path, of), None, 4)(torch.arange(ROWS))
    assert_batch(found, [], [plain(of, row, 4, 2, wrist) for row in range(ROWS)])
    assert not found["obs"]["image_mask"][..., 0].any() and not found["obs"]["state_mask"][:, :7].any()
    assert not found["obs"]["state"][:, :7].any() and bool(of.joints.any())


def test_batches_without_a_cache_have_no_images() -> None:
    of = episodes()
    found = RobotChunks(of, None, None, 4)(torch.arange(ROWS))
    expected = [plain(of, row, 4, 2, {}) for row in range(ROWS)]
    for each in expected:
        del each["obs"]["images"]
    assert_batch(found, [], expected)


@pytest.mark.parametrize("cameras", [CAMERAS, ("wrist",)])
def test_features_replace_images(tmp_path: Path, cameras: tuple[str, ...]) -> None:
    images = {camera: IMAGES[camera] for camera in cameras}
    of = episodes(cameras=cameras, images=lambda: iter([(0, images)]))
    cache = frames(tmp_path, of)

    def encode(images: torch.Tensor) -> torch.Tensor:
        return images.float().flatten(1, 2)[:, :5] / 255

    features = FeatureCache.build(tmp_path / "features", cache, "pixels", encode, torch.float32)
    found = RobotChunks(of, cache, features, 4)(torch.arange(ROWS))
    expected = [plain(of, row, 4, 2, images) for row in range(ROWS)]
    for each in expected:
        each["obs"]["features"] = encode(each["obs"].pop("images").flatten(0, 1)).view(2, 2, 5, 3)
    assert_batch(found, [], expected)


def test_caches_of_other_episodes_are_refused(tmp_path: Path) -> None:
    of = episodes()
    cache = frames(tmp_path, of)
    with pytest.raises(ConfigError, match="cached frames are of 18 rows of other episodes"):
        RobotChunks(episodes(fingerprint="other"), cache, None, 4)
    shuffled = episodes(episode=torch.tensor([0] * 5 + [1] + [0] * 9 + [3] * 3))
    with pytest.raises(ValueError, match="are not consecutive"):
        RobotChunks(shuffled, None, None, 4)


def test_statistics_cover_the_filled_slots() -> None:
    of = episodes(slots=STATE_SLOTS[7:])
    chunks = RobotChunks(of, None, None, 4)
    found = chunks.statistics("libero_90")
    assert found["state"].names == tuple(SLOT_NAMES[slot] for slot in STATE_SLOTS[7:]) and found["state"].count == ROWS
    assert found["action"].names[0] == "gripper" and found["action"].task_set == "libero_90"
    state = state_vector(of.joints, of.gripper, of.eef_pos, of.eef_quat)[:, list(STATE_SLOTS[7:])]
    assert np.allclose(found["state"].mean, state.double().mean(0), atol=1e-6)
    actions = action_vector(of.action)[:, list(ACTION_SLOTS)]
    assert np.allclose(found["action"].std, actions.double().std(0, correction=0), atol=1e-6)


@pytest.mark.parametrize("threads", [0, 2])
def test_an_epoch_of_the_batch_loader_has_every_row_once(tmp_path: Path, threads: int) -> None:
    of = episodes()
    loader = BatchLoader(ROWS, 6, RobotChunks(of, frames(tmp_path, of), None, 4), seed=1, threads=threads)
    batches = [loader.next() for _ in range(3)]
    loader.close()
    actions = torch.cat([batch["action"][:, 0] for batch in batches])
    assert actions.shape == (ROWS, 128)
    assert sorted(map(tuple, actions.tolist())) == sorted(map(tuple, action_vector(of.action).tolist()))
    newest = torch.cat([batch["obs"]["images"][:, -1, 1] for batch in batches])
    assert sorted(each.tobytes() for each in newest.numpy()) == sorted(each.tobytes() for each in IMAGES["wrist"])
