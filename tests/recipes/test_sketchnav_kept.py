"""Drawn episode sets are kept: which file is whose, and when it is drawn anew; the rules are in core/test_kept.py."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from powerband.catalogue import configure
from powerband.envs.sketchnav.episodes import Episodes
from powerband.recipes import sketchnav_kept, sketchnav_sets
from powerband.recipes.sketchnav_sets import episodes_of


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sketchnav_sets, "LEAST", 1)
    return tmp_path / "cache" / "powerband" / "episodes"


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list:
    """(split, seed) of each set that was drawn."""
    calls, draw = [], sketchnav_sets.draw_episodes

    def counted(scenes, split, seed, *rest):
        calls.append((split, seed))
        return draw(scenes, split, seed, *rest)

    monkeypatch.setattr(sketchnav_sets, "draw_episodes", counted)
    sketchnav_sets._had.cache_clear()
    yield calls
    sketchnav_sets._had.cache_clear()


def config_of(*words: str):
    return configure("sketchnav", ["variant=smoke", *words])[2].config


def started_anew(config, split: str = "train") -> Episodes:
    """As another process finds it."""
    sketchnav_sets._had.cache_clear()
    return episodes_of(config, split)


def equal(one: Episodes, other: Episodes) -> bool:
    return all(torch.equal(value, getattr(other, name)) for name, value in vars(one).items())


def test_the_next_start_reads_what_this_one_drew(folder: Path, drawn: list) -> None:
    first = started_anew(config_of())
    again = started_anew(config_of())
    assert drawn == [("train", 0)] and equal(first, again) and len(list(folder.iterdir())) == 1
    assert {value.dtype for value in vars(again).values()} == {value.dtype for value in vars(first).values()}
    episodes_of(config_of(), "train")
    assert drawn == [("train", 0)]


@pytest.mark.parametrize(
    "word", ["scenes.plans=3", "scenes.most_m=8.5", "scenes.sketch=blank", "scenes.sketch_px=32", "scene_seed=9"]
)
def test_another_scene_or_seed_is_drawn(folder: Path, drawn: list, word: str) -> None:
    one = started_anew(config_of())
    other = started_anew(config_of(word))
    assert len(drawn) == 2 and not equal(one, other) and len(list(folder.iterdir())) == 2


def test_splits_are_kept_apart(folder: Path, drawn: list) -> None:
    for _ in range(2):
        for split in ("train", "val_seen", "val_unseen"):
            started_anew(config_of(), split)
    assert [split for split, _ in drawn] == ["train", "val_seen", "val_unseen"]


def test_another_text_of_the_modules_that_draw_is_another_set(folder: Path, drawn: list, monkeypatch) -> None:
    started_anew(config_of())
    monkeypatch.setattr(sketchnav_kept, "_sources", lambda: "of another day")
    started_anew(config_of())
    assert len(drawn) == 2 and len(list(folder.iterdir())) == 2


@pytest.mark.parametrize("harm", ["flipped", "empty", "no tensors"])
def test_a_damaged_file_is_drawn_anew(folder: Path, drawn: list, harm: str) -> None:
    first = started_anew(config_of())
    (file,) = folder.iterdir()
    flipped = bytearray(file.read_bytes())
    flipped[-100] ^= 1
    file.write_bytes({"flipped": flipped, "empty": b"", "no tensors": b"\x08\0\0\0\0\0\0\0{}      "}[harm])
    with pytest.warns(UserWarning, match="kept episodes are drawn anew" + ".*is damaged" * (harm == "flipped")):
        assert equal(first, started_anew(config_of()))
    started_anew(config_of())
    assert len(drawn) == 2, "the damaged file was replaced"


def test_a_set_under_another_name_is_not_taken(folder: Path, drawn: list) -> None:
    one, other = config_of(), config_of("scene_seed=9")
    started_anew(one)
    (file,) = folder.iterdir()
    right = started_anew(other)
    file.replace(sketchnav_kept.kept_file(other.scenes, "train", 9))
    with pytest.warns(UserWarning, match="holds another set"):
        assert equal(right, started_anew(other))
    assert len(drawn) == 3


def test_a_set_that_cannot_be_kept_is_drawn_all_the_same(folder: Path, drawn: list, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    with pytest.warns(UserWarning, match="are not kept.*XDG_CACHE_HOME.*keep_episodes=false"):
        assert len(started_anew(config_of())) == 4 and len(drawn) == 1


def test_it_is_turned_off_by_a_word_and_not_done_for_small_sets(folder: Path, drawn: list, monkeypatch) -> None:
    started_anew(config_of("keep_episodes=false"))
    monkeypatch.setattr(sketchnav_sets, "LEAST", 5)
    started_anew(config_of())
    assert len(drawn) == 2 and not folder.exists()


def test_files_of_earlier_days_are_read_without_a_hash(folder: Path, drawn: list, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    config, found = config_of(), started_anew(config_of())
    (file,) = folder.iterdir()
    _, said = Episodes.load(file)
    plain = {"version": said["version"], "split": "train", "seed": "0", "scenes": "{}"}
    save_file(dict(vars(found)), tmp_path / "old.safetensors", plain)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        old = episodes_of(replace(config, episode_file=str(tmp_path / "old.safetensors")), "train")
    assert equal(found, old)
