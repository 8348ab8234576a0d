"""Sketches and episode sets: seeds, colours, splits and files."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from powerband.recipes.sketchnav.plans.distance import navigable
from powerband.recipes.sketchnav.plans.episodes.episodes import EpisodeConfig, Episodes
from powerband.recipes.sketchnav.plans.episodes.generation import generate_episodes, generate_numbered_plan
from powerband.recipes.sketchnav.plans.plan import generate_plan
from powerband.recipes.sketchnav.plans.sketch import (
    DOT_PX,
    GOAL_RGB,
    LEVELS,
    PATH_RGB,
    START_RGB,
    downsample_page,
    draw_sketch,
    read_sketch,
)
from powerband.recipes.sketchnav.settings import SPLITS
from recipes.sketchnav.plans.imported.drawn_plans import header_only_png

WAY_M = np.array([(1.0, 1.0), (3.0, 1.5), (5.0, 5.0)])


def page(level: str, seed: int = 0, hand: int = 0) -> np.ndarray:
    plan = generate_plan(np.random.default_rng(seed), 8, 10)
    return draw_sketch(plan, tuple(WAY_M[0]), tuple(WAY_M[-1]), WAY_M, level, np.random.default_rng(hand))


def share(picture: np.ndarray, colour: tuple[int, int, int], within: int = 12) -> float:
    return float((np.abs(picture.astype(int) - np.array(colour)).max(-1) <= within).mean())


@pytest.mark.parametrize("level", ["smooth", "abstract", "true"])
@pytest.mark.parametrize("seed", range(6))
def test_both_dots_are_on_the_page_and_the_walls_are_black(level: str, seed: int) -> None:
    drawn, dot = page(level, seed, seed), np.pi * DOT_PX**2 / 512**2
    assert drawn.shape == (512, 512, 3) and drawn.dtype == np.uint8
    for colour in (START_RGB, GOAL_RGB):
        assert 0.4 * dot < share(drawn, colour) < 1.3 * dot
    assert 0.005 < float((drawn.max(-1) < 60).mean()) < 0.25
    rim = np.concatenate([drawn[0], drawn[-1], drawn[:, 0], drawn[:, -1]])
    assert (rim == 255).all(), "nothing is cut off by the edge"
    assert (share(drawn, PATH_RGB) > 0) == (level != "abstract"), "an abstract sketch shows no way"


def test_varied_pages_have_other_pens_and_papers(tmp_path: Path) -> None:
    pages = [page("varied", seed, seed) for seed in range(8)]
    for drawn in pages:
        Image.fromarray(drawn).save(tmp_path / "0.png")
        assert np.array_equal(read_sketch(tmp_path / "0.png"), drawn), "both dots are found, as on a user's page"
        rim = np.concatenate([drawn[0], drawn[-1], drawn[:, 0], drawn[:, -1]])
        assert len(np.unique(rim, axis=0)) == 1, "nothing is cut off by the edge"
    papers = {int(drawn[0, 0, 0]) for drawn in pages}
    covered = [float((drawn.max(-1) < 110).mean()) for drawn in pages]
    assert len(papers) >= 4 and min(papers) >= 234 and max(covered) > 2 * min(covered) > 0


def test_sketches_differ_between_generators_and_repeat_with_the_same_one() -> None:
    assert np.array_equal(page("smooth"), page("smooth"))
    assert not np.array_equal(page("smooth"), page("smooth", hand=1))
    assert (page("blank") == 255).all()
    assert len({draw.tobytes() for draw in map(page, LEVELS)}) == 5


def test_an_abstract_sketch_is_farther_from_the_plan_than_a_smooth_one() -> None:
    def off(level: str, seed: int) -> float:
        """Distance of the start's dot, in pixels, from where a plan drawn straight has it."""
        at = [
            np.argwhere(np.abs(drawn.astype(int) - START_RGB).max(-1) <= 12).mean(0)
            for drawn in (page(level, seed, seed), page("true", seed))
        ]
        return float(np.hypot(*(at[0] - at[1])))

    smooth, abstract = (np.mean([off(level, seed) for seed in range(8)]) for level in ("smooth", "abstract"))
    assert 1 < smooth < 30 < abstract


def test_a_page_becomes_what_the_sensor_sees() -> None:
    drawn = page("smooth")
    small = downsample_page(drawn, 64)
    assert small.shape == (3, 64, 64)
    assert np.abs(small.transpose(1, 2, 0).astype(float) - drawn.reshape(64, 8, 64, 8, 3).mean((1, 3))).max() <= 1


def test_own_pictures_are_read_and_bad_ones_refused(tmp_path: Path) -> None:
    good = tmp_path / "mine.png"
    Image.fromarray(page("smooth")).save(good)
    assert np.array_equal(read_sketch(good), page("smooth"))
    Image.fromarray(page("smooth")).resize((256, 256)).save(tmp_path / "small.png")
    assert read_sketch(tmp_path / "small.png").shape == (512, 512, 3)
    clear = np.dstack([page("smooth"), np.where((page("smooth") == 255).all(-1), 0, 255).astype(np.uint8)])
    clear[clear[..., 3] == 0] = 0  # as programs store transparent paper
    Image.fromarray(clear).save(tmp_path / "clear.png")
    assert np.array_equal(read_sketch(tmp_path / "clear.png"), page("smooth")), "transparent paper is white"
    without = page("smooth").copy()
    without[np.abs(without.astype(int) - GOAL_RGB).max(-1) < 60] = 255
    Image.fromarray(without).save(tmp_path / "nogoal.png")
    with pytest.raises(ValueError, match=r"no purple goal dot of RGB \(150, 40, 190\): its nearest colour is"):
        read_sketch(tmp_path / "nogoal.png")
    Image.fromarray(page("smooth")[:300]).save(tmp_path / "oblong.png")
    with pytest.raises(ValueError, match="512 x 300 pixels. It must be square"):
        read_sketch(tmp_path / "oblong.png")
    (tmp_path / "text.png").write_text("no picture")
    for name in ("text.png", "nowhere.png"):
        with pytest.raises(ValueError, match=name):
            read_sketch(tmp_path / name)


SCENES = EpisodeConfig(max_size_m=9, plans=3, goals=2, starts=2, sketch_px=36, min_path_m=2.5, max_path_m=9.0)


def test_episodes_are_as_the_scenes_say() -> None:
    found = generate_episodes(SCENES, "train", 0)
    assert len(found) == SCENES.count == 12 and found.sketch.shape == (12, 3, 36, 36)
    assert 2.5 <= float(found.length.min()) and float(found.length.max()) <= 9.0
    for episode in range(12):
        plan, (x, y, _) = int(found.plan[episode]), found.start[episode].tolist()
        assert navigable(found.plan_cells(plan))[y // 6400, x // 6400]
        way = found.path_corners(episode)
        assert np.hypot(*np.diff(way, axis=0).T).sum() == pytest.approx(float(found.length[episode]), rel=0.005)


def test_only_the_sketches_depend_on_their_level() -> None:
    drawn = [
        vars(generate_episodes(replace(SCENES, sketch=level), "train", 0)) for level in ("smooth", "blank", "mixed")
    ]
    for name, value in drawn[0].items():
        assert all(torch.equal(other[name], value) for other in drawn[1:]) == (name != "sketch"), name
    assert torch.equal(drawn[2]["sketch"][::2], drawn[0]["sketch"][::2])


def test_splits_share_plans_where_they_should() -> None:
    sets = {split: generate_episodes(SCENES, split, 0) for split in SPLITS}
    assert torch.equal(sets["train"].cells, sets["val_seen"].cells)
    assert not torch.equal(sets["train"].start, sets["val_seen"].start)
    assert sets["train"].cells.shape != sets["val_unseen"].cells.shape
    again = generate_episodes(SCENES, "train", 0)
    assert all(torch.equal(getattr(again, name), value) for name, value in vars(sets["train"]).items())
    assert np.array_equal(generate_numbered_plan(SCENES, "train", 0, 1).cells, sets["train"].plan_cells(1))


def test_a_file_holds_the_same_episodes_and_others_are_refused(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    found, path = generate_episodes(SCENES, "train", 0), tmp_path / "set.safetensors"
    found.save(path, SCENES, "train", 0)
    loaded, metadata = Episodes.load(path)
    assert all(torch.equal(getattr(loaded, name), value) for name, value in vars(found).items())
    assert metadata["split"] == "train" and metadata["scenes"]["max_size_m"] == 9
    save_file({"a": torch.zeros(1)}, tmp_path / "old.safetensors", {"version": "0"})
    with pytest.raises(ValueError, match="has format version 0, but powerband reads version 1. Generate"):
        Episodes.load(tmp_path / "old.safetensors")
    (tmp_path / "broken.safetensors").write_bytes(b"nothing")
    for name in ("broken.safetensors", "nowhere.safetensors"):
        with pytest.raises(ValueError, match=name):
            Episodes.load(tmp_path / name)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (dict(min_size_m=3.0), "8 to 24|do not form a range"),
        (dict(plans=0), "plans=0"),
        (dict(min_path_m=5.0, max_path_m=4.0), "min_path_m=5"),
        (dict(min_path_ratio=0.5), "min_path_ratio=0.5"),
        (dict(sketch_px=35), "sketch_px=35"),
    ],
)
def test_bad_scenes_are_refused(words: dict, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        EpisodeConfig(**words)


def test_plans_without_a_path_of_the_configured_length_are_refused() -> None:
    with pytest.raises(ValueError, match="Plan 0 of train has no path of 29 to 30 m"):
        generate_episodes(EpisodeConfig(max_size_m=8, plans=1, min_path_m=29.0), "train", 0)


def test_mixed_sketches_alternate_between_two_levels() -> None:
    assert [EpisodeConfig().level(number) for number in range(3)] == ["smooth", "abstract", "smooth"]
    assert EpisodeConfig(sketch="blank").level(1) == "blank"


def test_a_drawing_of_20000_pixels_is_refused_before_it_is_decoded(tmp_path: Path) -> None:
    (tmp_path / "0.png").write_bytes(header_only_png(20_000))
    with pytest.raises(ValueError, match="exceeds limit"):
        read_sketch(tmp_path / "0.png")
    with pytest.raises(ValueError, match="12,000 x 12,000 pixels; the limit is 8,192"):
        read_sketch("page", header_only_png(12_000))
