"""The cache of generated episode sets: file names and invalidation. The cache itself is tested in core/machine."""

from __future__ import annotations

import time
import warnings
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch

from powerband.cli.catalogue import configure
from powerband.recipes.sketchnav.plans.episodes import cache, parts, sets
from powerband.recipes.sketchnav.plans.episodes.episodes import Episodes
from powerband.recipes.sketchnav.plans.episodes.generation import generate_episodes
from powerband.recipes.sketchnav.plans.episodes.part_processes import part_processes, process_count
from powerband.recipes.sketchnav.plans.episodes.sets import load_episodes


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sets, "MIN_CACHED_EPISODES", 1)
    return tmp_path / "cache" / "powerband" / "episodes"


@pytest.fixture
def generated_sets(monkeypatch: pytest.MonkeyPatch) -> list:
    """(split, seed) of each set, or part of a set, that is generated."""
    calls = []

    def counted(scenes, split, seed, *rest, **more):
        calls.append((split, seed))
        return generate_episodes(scenes, split, seed, *rest, **more)

    for module in (sets, parts):
        monkeypatch.setattr(module, "generate_episodes", counted)
    sets.read_or_generate.cache_clear()
    yield calls
    sets.read_or_generate.cache_clear()


def config_of(*arguments: str):
    return configure("sketchnav", ["variant=smoke", *arguments])[2].config


def load_in_new_process(config, split: str = "train") -> Episodes:
    """The episodes as a new process loads them."""
    sets.read_or_generate.cache_clear()
    return load_episodes(config, split)


def equal(one: Episodes, other: Episodes) -> bool:
    return all(torch.equal(value, getattr(other, name)) for name, value in vars(one).items())


def test_the_next_start_reads_the_generated_episodes(folder: Path, generated_sets: list) -> None:
    first = load_in_new_process(config_of())
    again = load_in_new_process(config_of())
    assert generated_sets == [("train", 0)] and equal(first, again) and len(list(folder.iterdir())) == 1
    assert {value.dtype for value in vars(again).values()} == {value.dtype for value in vars(first).values()}
    load_episodes(config_of(), "train")
    assert generated_sets == [("train", 0)]


@pytest.mark.parametrize(
    "word", ["scenes.plans=3", "scenes.max_size_m=8.5", "scenes.sketch=blank", "scenes.sketch_px=40", "scene_seed=9"]
)
def test_another_scene_or_seed_is_generated(folder: Path, generated_sets: list, word: str) -> None:
    one = load_in_new_process(config_of())
    other = load_in_new_process(config_of(word))
    assert len(generated_sets) == 2 and not equal(one, other) and len(list(folder.iterdir())) == 2


def test_a_killed_generation_continues_after_its_last_part(
    folder: Path, generated_sets: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, part_folder = config_of("scenes.plans=5", "scenes.goals=2"), folder.with_name("episode-parts")
    monkeypatch.setattr(parts, "PART_PLANS", 2)

    def killed(*arguments, numbers: range, **more):
        if numbers.start == 2:
            raise KeyboardInterrupt
        return counted(*arguments, numbers=numbers, **more)

    counted = parts.generate_episodes
    with monkeypatch.context() as context, pytest.raises(KeyboardInterrupt):
        context.setattr(parts, "generate_episodes", killed)
        load_in_new_process(config)
    assert len(generated_sets) == len(list(part_folder.iterdir())) == 1 and not folder.exists()
    again = load_in_new_process(config)
    assert len(generated_sets) == 3, "two of three parts were missing"
    assert equal(again, generate_episodes(config.scenes, "train", config.episode_seed))
    assert not list(part_folder.iterdir()) and equal(again, load_in_new_process(config)) and len(generated_sets) == 3


def test_another_process_generates_parts_from_another_place(folder: Path, generated_sets: list) -> None:
    config, part_folder = config_of("scenes.plans=32", "scenes.goals=1"), folder.with_name("episode-parts")
    files = [part.file for part in parts.parts_of(config.scenes, "train", config.episode_seed)]
    children = psutil.Process().children
    before = set(children())
    with part_processes(1, config.scenes, "train", config.episode_seed):
        (process,) = set(children()) - before
        deadline = time.monotonic() + 120
        while not files[2].exists() and time.monotonic() < deadline:
            time.sleep(0.05)
    assert files[2].exists() and not files[1].exists(), "it begins in the middle of four parts"
    assert not process.is_running()
    written = len(list(part_folder.glob("*.safetensors")))
    episodes = load_in_new_process(config)
    assert len(generated_sets) == 4 - written
    assert equal(episodes, generate_episodes(config.scenes, "train", config.episode_seed))


def test_the_set_that_another_rank_has_completed_is_read(
    folder: Path, generated_sets: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of("scenes.plans=24", "scenes.goals=1")
    of_one_rank = load_in_new_process(config)
    (file,), content = folder.iterdir(), next(folder.iterdir()).read_bytes()
    file.unlink()
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    started = []

    def completed(*arguments, numbers: range, **more):
        started.append(numbers.start)
        file.write_bytes(content)  # by the other rank
        return generate_episodes(*arguments, numbers=numbers, **more)

    monkeypatch.setattr(parts, "generate_episodes", completed)
    assert equal(of_one_rank, load_in_new_process(config))
    assert started == [8], "the second of two ranks begins in the middle of three parts"


@pytest.mark.parametrize(
    ("threads", "missing", "ranks", "count"),
    [(1, 25, 1, 0), (4, 25, 1, 3), (4, 9, 1, 2), (64, 400, 1, 15), (4, 25, 2, 0)],
)
def test_number_of_processes(
    monkeypatch: pytest.MonkeyPatch, threads: int, missing: int, ranks: int, count: int
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert process_count(missing) == count


def test_splits_are_kept_apart(folder: Path, generated_sets: list) -> None:
    for _ in range(2):
        for split in ("train", "val_seen", "val_unseen"):
            load_in_new_process(config_of(), split)
    assert [split for split, _ in generated_sets] == ["train", "val_seen", "val_unseen"]


def test_changed_modules_invalidate_the_cache(folder: Path, generated_sets: list, monkeypatch) -> None:
    load_in_new_process(config_of())
    monkeypatch.setattr(parts, "source_digest", lambda: "another digest")
    load_in_new_process(config_of())
    assert len(generated_sets) == 2 and len(list(folder.iterdir())) == 2


@pytest.mark.parametrize("harm", ["flipped", "empty", "no tensors"])
def test_a_damaged_file_is_generated_again(folder: Path, generated_sets: list, harm: str) -> None:
    first = load_in_new_process(config_of())
    (file,) = folder.iterdir()
    flipped = bytearray(file.read_bytes())
    flipped[-100] ^= 1
    file.write_bytes({"flipped": flipped, "empty": b"", "no tensors": b"\x08\0\0\0\0\0\0\0{}      "}[harm])
    with pytest.warns(UserWarning, match="cached episodes are generated again" + ".*is damaged" * (harm == "flipped")):
        assert equal(first, load_in_new_process(config_of()))
    load_in_new_process(config_of())
    assert len(generated_sets) == 2, "the damaged file was replaced"


def test_a_set_under_another_name_is_not_used(folder: Path, generated_sets: list) -> None:
    one, other = config_of(), config_of("scene_seed=9")
    load_in_new_process(one)
    (file,) = folder.iterdir()
    right = load_in_new_process(other)
    file.replace(cache.cache_path(other.scenes, "train", 9))
    with pytest.warns(UserWarning, match="holds an episode set of other scenes"):
        assert equal(right, load_in_new_process(other))
    assert len(generated_sets) == 3


def test_a_folder_that_cannot_be_written_only_warns(folder: Path, generated_sets: list, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    with pytest.warns(UserWarning, match="are not cached.*XDG_CACHE_HOME.*cache_episodes=false"):
        assert len(load_in_new_process(config_of())) == 4 and len(generated_sets) == 1


def test_the_cache_can_be_turned_off_and_skips_small_sets(folder: Path, generated_sets: list, monkeypatch) -> None:
    load_in_new_process(config_of("cache_episodes=false"))
    monkeypatch.setattr(sets, "MIN_CACHED_EPISODES", 5)
    load_in_new_process(config_of())
    assert len(generated_sets) == 2 and not folder.exists()


def test_early_files_without_a_digest_are_read(folder: Path, generated_sets: list, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    config, generated = config_of(), load_in_new_process(config_of())
    (file,) = folder.iterdir()
    _, metadata = Episodes.load(file)
    early = {"version": metadata["version"], "split": "train", "seed": "0", "scenes": "{}"}
    save_file(dict(vars(generated)), tmp_path / "old.safetensors", early)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        old = load_episodes(replace(config, episode_file=str(tmp_path / "old.safetensors")), "train")
    assert equal(generated, old)
