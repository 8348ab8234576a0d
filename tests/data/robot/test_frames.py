"""FrameCache and FeatureCache: built once, complete or absent, and gathered like plain indexing."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from powerband.data.recorded.shards import ShardError
from powerband.data.robot import frames as frames_module
from powerband.data.robot.encoder_features import FeatureCache
from powerband.data.robot.frames import FrameCache

ROWS, CAMERAS = 11, ("agentview", "wrist")
RNG = np.random.default_rng(0)
IMAGES = {camera: RNG.integers(0, 256, (ROWS, 8, 8, 3), dtype=np.uint8) for camera in CAMERAS}


def blocks(step: int = 4, images: dict[str, np.ndarray] | None = None) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
    for first in range(0, ROWS, step):
        yield first, {camera: each[first : first + step] for camera, each in (images or IMAGES).items()}


def untouched() -> Iterator:
    raise AssertionError("the source was read")
    yield


def build(folder: Path, source: Iterator | None = None, size: int | None = None, mark: str = "a") -> FrameCache:
    return FrameCache.build(folder, CAMERAS, ROWS, size, blocks() if source is None else source, mark)


def test_images_are_decoded_once(tmp_path: Path) -> None:
    built = build(tmp_path / "frames")
    again = build(tmp_path / "frames", untouched())
    for cache in (built, again):
        assert (cache.rows, cache.height, cache.width, cache.cameras) == (ROWS, 8, 8, CAMERAS)
        assert all(np.array_equal(cache[camera], IMAGES[camera]) for camera in CAMERAS)
    with pytest.raises(ValueError, match="read-only"):
        built["wrist"][0] = 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["frames"]
    assert (tmp_path / "frames" / "wrist.u8").read_bytes() == IMAGES["wrist"].tobytes()


def test_another_source_or_size_is_decoded_again(tmp_path: Path) -> None:
    build(tmp_path / "frames")
    other = {camera: 255 - each for camera, each in IMAGES.items()}
    assert np.array_equal(build(tmp_path / "frames", blocks(3, other), mark="b")["wrist"], other["wrist"])
    small = build(tmp_path / "frames", blocks(3, other), size=4, mark="b")
    parts = other["wrist"].astype(float).reshape(ROWS, 4, 2, 4, 2, 3)
    assert small["wrist"].shape == (ROWS, 4, 4, 3)
    assert np.abs(small["wrist"] - parts.mean((2, 4))).max() <= 1.01  # rounded twice, along each side
    assert small.fingerprint != build(tmp_path / "other", blocks(3, other), mark="b").fingerprint
    assert small.source == "b"


def test_an_interrupted_build_keeps_the_old_cache(tmp_path: Path) -> None:
    build(tmp_path / "frames")

    def broken() -> Iterator:
        yield next(blocks())
        raise RuntimeError("camera not found")

    with pytest.raises(RuntimeError, match="camera not found"):
        build(tmp_path / "frames", broken(), mark="b")
    assert [path.name for path in tmp_path.iterdir()] == ["frames"]
    assert np.array_equal(build(tmp_path / "frames", untouched())["agentview"], IMAGES["agentview"])


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "frames").mkdir()
    (tmp_path / "frames" / "thesis.txt").write_text("years of work")
    with pytest.raises(ShardError, match="other files .but no frames.json"):
        build(tmp_path / "frames")
    assert (tmp_path / "frames" / "thesis.txt").read_text() == "years of work"
    (tmp_path / "frames" / "thesis.txt").unlink()
    assert build(tmp_path / "frames").rows == ROWS


def test_missing_rows_and_images_of_wrong_shape_are_named(tmp_path: Path) -> None:
    with pytest.raises(ShardError, match="have 11 steps, but only 4 have images"):
        build(tmp_path / "frames", iter([next(blocks())]))
    odd = {camera: each[:, :, :6] for camera, each in IMAGES.items()}
    with pytest.raises(ShardError, match="8 x 6, and only square images"):
        build(tmp_path / "frames", blocks(4, odd), size=4)
    mixed = [next(blocks()), (4, {camera: each[4:] for camera, each in odd.items()})]
    with pytest.raises(ShardError, match=r"from row 4 have shape \(8, 6, 3\), earlier ones \(8, 8, 3\)"):
        build(tmp_path / "frames", iter(mixed))
    with pytest.raises(ShardError, match="recorded without images"):
        FrameCache.build(tmp_path / "frames", (), ROWS, None, untouched(), "a")
    assert not list(tmp_path.iterdir())


def test_a_full_disk_and_a_truncated_file_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build(tmp_path / "frames")
    (tmp_path / "frames" / "wrist.u8").write_bytes(b"cut")
    with pytest.raises(ShardError, match="wrist.u8 has 3 bytes instead of 2,112"):
        build(tmp_path / "frames", untouched())
    with pytest.raises(ShardError, match="no decoded images of format 1"):
        FrameCache(tmp_path / "nowhere")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(frames_module.os, "fsync", full)
    with pytest.raises(ShardError, match="No space left on device. Free space"):
        build(tmp_path / "frames", mark="b")
    assert [path.name for path in tmp_path.iterdir()] == ["frames"]


@pytest.mark.parametrize("shape", [(), (5,), (3, 2), (0, 2)])
def test_gathering_equals_indexing(tmp_path: Path, shape: tuple[int, ...]) -> None:
    cache = build(tmp_path / "frames")
    rows = torch.tensor(np.random.default_rng(1).integers(0, ROWS, shape))
    found = cache.gather("wrist", rows)
    assert found.shape == (*shape, 8, 8, 3) and found.dtype == torch.uint8
    assert np.array_equal(found.numpy(), IMAGES["wrist"][rows.numpy()])
    out = torch.zeros(2, *found.shape, dtype=torch.uint8)
    assert cache.gather("wrist", rows, out[1]).data_ptr() == out[1].data_ptr()
    assert torch.equal(out[1], found) and not out[0].any()


def test_one_rank_decodes_and_all_open(tmp_path: Path) -> None:
    gathered: list[int] = []
    with pytest.raises(ShardError, match="no decoded images"):
        FrameCache.build(tmp_path / "frames", CAMERAS, ROWS, None, untouched(), "a", gathered.append, rank=1)
    build(tmp_path / "frames")
    opened = FrameCache.build(tmp_path / "frames", CAMERAS, ROWS, None, untouched(), "a", gathered.append, rank=1)
    assert opened.rows == ROWS and len(gathered) == 2


def encode(images: torch.Tensor) -> torch.Tensor:
    assert images.dtype == torch.uint8 and images.shape[1:] == (8, 8, 3)
    return images.float().mean((1, 2)).unsqueeze(1).repeat(1, 5, 1) / 255


def never(images: torch.Tensor) -> torch.Tensor:
    raise AssertionError("encoded again")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_features_are_encoded_once(tmp_path: Path, dtype: torch.dtype) -> None:
    frames = build(tmp_path / "frames")
    built = FeatureCache.build(tmp_path / "features", frames, "mean", encode, dtype, batch_size=4)
    again = FeatureCache.build(tmp_path / "features", frames, "mean", never, dtype)
    expected = torch.stack([encode(torch.from_numpy(IMAGES[camera])) for camera in CAMERAS], 1).to(dtype)
    rows = torch.tensor([[10, 0], [3, 3]])
    for cache in (built, again):
        assert (cache.rows, cache.cameras, cache.tokens, cache.width) == (ROWS, CAMERAS, 5, 3)
        found = cache.gather(rows)
        assert found.dtype == dtype and found.shape == (2, 2, 2, 5, 3) and torch.equal(found, expected[rows])


def test_features_of_another_encoder_or_other_images_are_encoded_again(tmp_path: Path) -> None:
    frames = build(tmp_path / "frames")
    FeatureCache.build(tmp_path / "features", frames, "mean", encode)
    half = FeatureCache.build(tmp_path / "features", frames, "half", lambda each: encode(each) / 2, torch.float32)
    assert torch.equal(half.gather(torch.tensor(0))[0], encode(torch.from_numpy(IMAGES["agentview"][:1]))[0] / 2)
    other = build(tmp_path / "frames", blocks(4, {camera: 255 - each for camera, each in IMAGES.items()}), mark="b")
    with pytest.raises(AssertionError, match="encoded again"):
        FeatureCache.build(tmp_path / "features", other, "half", never, torch.float32)
    with pytest.raises(AssertionError, match="encoded again"):
        FeatureCache.build(tmp_path / "features", build(tmp_path / "small", size=4), "half", never, torch.float32)
    with pytest.raises(ShardError, match="infinite features for rows 0 to 3"):
        FeatureCache.build(tmp_path / "features", other, "nan", lambda each: encode(each) / 0 * 0, batch_size=4)
    assert FeatureCache(tmp_path / "features").source == "a"


def test_concurrent_runs_decode_once_and_share_the_cache(tmp_path: Path) -> None:
    began, may_end = threading.Event(), threading.Event()

    def slow() -> Iterator[tuple[int, dict[str, np.ndarray]]]:
        began.set()
        assert may_end.wait(20)
        yield from blocks()

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(build, tmp_path / "frames", slow())
        assert began.wait(20)
        second = pool.submit(build, tmp_path / "frames", untouched())
        with pytest.raises(TimeoutError):
            second.result(0.3)  # it waits for the first one
        may_end.set()
        assert np.array_equal(first.result(20)["wrist"], second.result(20)["wrist"])
