"""Chunks of robot episodes: gathered rows against a plain loop, masks at the ends of episodes, and images."""

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
PICTURES = {
    camera: np.random.default_rng(seed).integers(0, 256, (ROWS, SIDE, SIDE, 3), dtype=np.uint8)
    for seed, camera in enumerate(CAMERAS)
}


def episodes(**changed: object) -> RobotEpisodes:
    torch.manual_seed(0)
    made = RobotEpisodes(
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
        images=lambda: iter([(0, PICTURES)]),
        fingerprint="made up",
    )
    return dataclasses.replace(made, **changed)


def frames(folder: Path, of: RobotEpisodes) -> FrameCache:
    return FrameCache.build(folder / "frames", of.cameras, of.rows, None, of.images(), of.fingerprint)


def plain(of: RobotEpisodes, row: int, horizon: int, history: int, seen: dict[str, np.ndarray]) -> dict:
    """One row, as it is said in words."""
    its = [other for other in range(of.rows) if of.episode[other] == of.episode[row]]
    pictures = torch.zeros(history, 2, SIDE, SIDE, 3, dtype=torch.uint8)
    there = torch.zeros(history, 2, dtype=torch.bool)
    for frame in range(history):
        shown = row - (history - 1 - frame)
        for number, camera in enumerate(CAMERAS):
            if camera in seen:
                pictures[frame, number] = torch.from_numpy(seen[camera][max(shown, its[0])])
                there[frame, number] = shown in its
    state = state_vector(of.joints[row], of.gripper[row], of.eef_pos[row], of.eef_quat[row])
    done = [min(row + later, its[-1]) for later in range(horizon)]
    return {
        "obs": {
            "images": pictures,
            "image_mask": there,
            "state": torch.where(of.state_there, state, torch.zeros(128)),
            "state_there": of.state_there,
            "task": of.task[row],
            "hz": torch.tensor(of.hz),
        },
        "action": torch.stack([action_vector(of.action[other]) for other in done]),
        "action_there": slot_mask(ACTION_SLOTS),
        "valid": torch.tensor([row + later in its for later in range(horizon)]),
    }


def same(found: dict, rows: list[int], expected: list[dict]) -> None:
    leaves = [dict(tree_paths(each)) for each in expected]
    assert dict(tree_paths(found)).keys() == leaves[0].keys()
    for path, leaf in tree_paths(found):
        wanted = torch.stack([each[path] for each in leaves])
        assert leaf.shape == wanted.shape and leaf.dtype == wanted.dtype, path
        assert torch.equal(leaf, wanted), (path, rows)


@pytest.mark.parametrize("horizon, history", [(4, 2), (1, 1), (12, 3)])
def test_a_batch_is_what_a_loop_over_rows_makes(tmp_path: Path, horizon: int, history: int) -> None:
    of = episodes()
    chunks = RobotChunks(of, frames(tmp_path, of), None, horizon, history)
    assert chunks.rows == ROWS
    for rows in (list(range(ROWS)), [17, 0, 5, 5, 4], [6]):
        found = chunks(torch.tensor(rows))
        same(found, rows, [plain(of, row, horizon, history, PICTURES) for row in rows])
    assert found["obs"]["images"].shape == (1, history, 2, SIDE, SIDE, 3)


def test_a_camera_and_joints_that_are_not_there_are_masked(tmp_path: Path) -> None:
    wrist = {"wrist": PICTURES["wrist"]}
    of = episodes(cameras=("wrist",), images=lambda: iter([(0, wrist)]), slots=STATE_SLOTS[7:])
    found = RobotChunks(of, frames(tmp_path, of), None, 4)(torch.arange(ROWS))
    same(found, [], [plain(of, row, 4, 2, wrist) for row in range(ROWS)])
    assert not found["obs"]["image_mask"][..., 0].any() and not found["obs"]["state_there"][:, :7].any()
    assert not found["obs"]["state"][:, :7].any() and bool(of.joints.any())


def test_without_a_cache_there_are_no_pictures() -> None:
    of = episodes()
    found = RobotChunks(of, None, None, 4)(torch.arange(ROWS))
    expected = [plain(of, row, 4, 2, {}) for row in range(ROWS)]
    for each in expected:
        del each["obs"]["images"]
    same(found, [], expected)


@pytest.mark.parametrize("cameras", [CAMERAS, ("wrist",)])
def test_features_take_the_place_of_pictures(tmp_path: Path, cameras: tuple[str, ...]) -> None:
    seen = {camera: PICTURES[camera] for camera in cameras}
    of = episodes(cameras=cameras, images=lambda: iter([(0, seen)]))
    cache = frames(tmp_path, of)

    def encode(pictures: torch.Tensor) -> torch.Tensor:
        return pictures.float().flatten(1, 2)[:, :5] / 255

    features = FeatureCache.build(tmp_path / "features", cache, "pixels", encode, torch.float32)
    found = RobotChunks(of, cache, features, 4)(torch.arange(ROWS))
    expected = [plain(of, row, 4, 2, seen) for row in range(ROWS)]
    for each in expected:
        pictures = each["obs"].pop("images")
        each["obs"]["features"] = encode(pictures.flatten(0, 1)).view(2, 2, 5, 3)
    same(found, [], expected)


def test_caches_of_other_episodes_are_refused(tmp_path: Path) -> None:
    of = episodes()
    cache = frames(tmp_path, of)
    with pytest.raises(ConfigError, match="cached frames of 18 rows belong to other episodes"):
        RobotChunks(episodes(fingerprint="other"), cache, None, 4)
    shuffled = episodes(episode=torch.tensor([0] * 5 + [1] + [0] * 9 + [3] * 3))
    with pytest.raises(ValueError, match="are not consecutive"):
        RobotChunks(shuffled, None, None, 4)


def test_statistics_are_of_the_slots_that_are_there() -> None:
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
def test_an_epoch_of_feed_has_every_row_once(tmp_path: Path, threads: int) -> None:
    of = episodes()
    feed = BatchLoader(ROWS, 6, RobotChunks(of, frames(tmp_path, of), None, 4), seed=1, threads=threads)
    batches = [feed.next() for _ in range(3)]
    feed.close()
    seen = torch.cat([batch["action"][:, 0] for batch in batches])
    assert seen.shape == (ROWS, 128)
    assert sorted(map(tuple, seen.tolist())) == sorted(map(tuple, action_vector(of.action).tolist()))
    newest = torch.cat([batch["obs"]["images"][:, -1, 1] for batch in batches])
    assert sorted(each.tobytes() for each in newest.numpy()) == sorted(each.tobytes() for each in PICTURES["wrist"])
