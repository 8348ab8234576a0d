"""Crops of a sketch around an agent: dots are found, and the page is shifted and rotated by the agent's pose."""

import math

import numpy as np
import pytest
import torch

from powerband.recipes.sketchnav.nets.sketch_view import SketchCrop, find_dots, in_metres, on_page, to_unit_range
from powerband.recipes.sketchnav.plans.episodes.episodes import EpisodeConfig
from powerband.recipes.sketchnav.plans.episodes.generation import generate_episodes
from powerband.recipes.sketchnav.plans.sketch import DOT_PX, GOAL_RGB, START_RGB, downsample_page
from powerband.recipes.sketchnav.settings import PAGE_PX

SIDE, PAGE_M, AROUND_M = 64, 16.0, 8.0


def ink_of(pages: torch.Tensor) -> torch.Tensor:
    return 1 - to_unit_range(pages)


def page_with(start_px: tuple[float, float], mark_px: tuple[float, float]) -> torch.Tensor:
    """(3, SIDE, SIDE) uint8: a start dot, and a black mark of 3 by 3 pixels."""
    page = torch.full((3, SIDE, SIDE), 255, dtype=torch.uint8)
    for (x, y), colour in ((start_px, START_RGB), (mark_px, (0, 0, 0))):
        x, y = round(x), round(y)
        page[:, y - 1 : y + 2, x - 1 : x + 2] = torch.tensor(colour, dtype=torch.uint8).view(3, 1, 1)
    return page


def test_dots_are_found_where_they_were_drawn_and_a_page_without_one_has_its_middle() -> None:
    from PIL import Image, ImageDraw

    places, pages, side = [(100, 400), (256, 30), (470, 400)], [], 1
    for x, y in places:
        image = Image.new("RGB", (PAGE_PX, PAGE_PX), (255, 255, 255))
        draw = ImageDraw.Draw(image)
        draw.line((0, y, PAGE_PX, y + 20), fill=(20, 20, 20), width=6)
        draw.ellipse((x - 2 * DOT_PX, y + 3 * DOT_PX, x, y + 5 * DOT_PX), fill=GOAL_RGB)
        draw.ellipse((x - DOT_PX, y - DOT_PX, x + DOT_PX, y + DOT_PX), fill=START_RGB)
        pages.append(torch.from_numpy(downsample_page(np.asarray(image), SIDE)))
    blank = torch.full((3, SIDE, SIDE), 255, dtype=torch.uint8)
    pages, near = torch.stack([*pages, blank]), PAGE_PX / SIDE / 2
    found, goals = find_dots(pages, START_RGB), find_dots(pages, GOAL_RGB)
    assert torch.allclose(found[:3] * PAGE_PX, torch.tensor(places, dtype=torch.float32), atol=near)
    assert torch.allclose(
        goals[:3] * PAGE_PX, torch.tensor([(x - DOT_PX, y + side * 4 * DOT_PX) for x, y in places]).float(), atol=near
    )
    assert found[3].tolist() == goals[3].tolist() == [0.5, 0.5]


def test_a_path_that_meets_the_start_is_no_part_of_the_goal() -> None:
    """Red and blue mix to purple, where the colours of a varied page are near enough."""
    scenes = EpisodeConfig(max_size_m=10.0, plans=30, goals=1, starts=1, sketch="varied", sketch_px=PAGE_PX)
    drawn = generate_episodes(scenes, "train", 0).sketch.permute(0, 2, 3, 1).numpy()
    pages = torch.from_numpy(np.stack([downsample_page(page, SIDE) for page in drawn]))
    for colour in (START_RGB, GOAL_RGB):
        places = []
        for page in drawn:
            paper = page[0, 0].astype(float) / 255  # scales the colours of the page
            row, column = np.nonzero(np.abs(page - paper * colour).max(-1) <= 3)
            places.append(((column.min() + column.max() + 1) / 2, (row.min() + row.max() + 1) / 2))
        off_px = (find_dots(pages, colour) * SIDE - torch.tensor(places) * SIDE / PAGE_PX).norm(dim=1)
        assert float(off_px.median()) < 0.1 and float(off_px.max()) < 0.5


@pytest.mark.parametrize("turn", [0.0, 0.5 * math.pi, -2.0, 3.0])
@pytest.mark.parametrize("gps", [(0.0, 0.0), (1.5, -2.0)])
def test_a_mark_appears_ahead_and_aside_as_it_lies(turn: float, gps: tuple[float, float]) -> None:
    metre = SIDE / PAGE_M
    start, ahead_m, right_m = (30, 34), 2.0, 1.0
    x = start[0] + 0.5 + metre * (gps[0] + ahead_m * math.cos(turn) - right_m * math.sin(turn))
    y = start[1] + 0.5 + metre * (gps[1] + ahead_m * math.sin(turn) + right_m * math.cos(turn))
    page = page_with(start, (x - 0.5, y - 0.5))
    net = SketchCrop(4, PAGE_M, AROUND_M, SIDE)
    pages, codes = torch.stack([page.flip(2), page, page.flip(1)]), torch.zeros(1, 4)
    with torch.no_grad():
        crop = net(
            ink_of(pages),
            torch.tensor([1]),
            find_dots(pages[1:2], START_RGB),
            codes,
            torch.tensor([gps]),
            torch.tensor([[turn]]),
        )
    assert crop.shape == (1, 3, SIDE, SIDE) and 0 <= float(crop.min()) and float(crop.max()) <= 1
    black = crop[0].amin(0)  # the dot is not black: its blue is strong
    black = torch.where(crop[0, 2] > 0.6, black, torch.zeros(()))
    index = torch.arange(SIDE) + 0.5
    column, row = float((black.sum(0) * index).sum() / black.sum()), float((black.sum(1) * index).sum() / black.sum())
    zoom = SIDE / AROUND_M
    assert column == pytest.approx(SIDE / 2 + right_m * zoom, abs=0.75 * zoom / metre)
    assert row == pytest.approx(SIDE / 2 - ahead_m * zoom, abs=0.75 * zoom / metre)


def test_outside_the_page_is_white_whatever_other_pages_show() -> None:
    net = SketchCrop(4, PAGE_M, AROUND_M, SIDE)
    black, second = torch.ones(3, 3, SIDE, SIDE), torch.tensor([1])
    start_and_code = (torch.full((1, 2), 0.5), torch.zeros(1, 4))
    for gps in ([30.0, 0.0], [0.0, 12.1], [0.0, -12.1]):
        assert not net(black, second, *start_and_code, torch.tensor([gps]), torch.zeros(1, 1)).any(), gps
    edge = net(black, second, *start_and_code, torch.tensor([[0.0, 8.0]]), torch.zeros(1, 1))
    assert float(edge.detach().mean()) == 0.5
    near = net(black, second, *start_and_code, torch.zeros(1, 2), torch.zeros(1, 1))
    assert torch.allclose(near, torch.ones_like(near))


def test_autocast_moves_nothing() -> None:
    """In bfloat16 a place on many pages would be rows off."""
    generator = torch.Generator().manual_seed(0)
    ink, where = torch.rand(50, 3, 64, 64, generator=generator), torch.randint(50, (80,), generator=generator)
    starts, codes = torch.rand(80, 2, generator=generator), torch.zeros(80, 4)
    gps, compass = torch.randn(80, 2, generator=generator), torch.randn(80, 1, generator=generator)
    surroundings = SketchCrop(4, 10.0, 8.0, 36)
    exact = surroundings(ink, where, starts, codes, gps, compass)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(surroundings(ink, where, starts, codes, gps, compass), exact)


def test_the_size_of_the_page_is_learned_from_its_code() -> None:
    """The gradient towards the crops of a page that is 1.3 times as large makes the page 1.3 times as large."""
    torch.manual_seed(0)
    net, large = SketchCrop(1, PAGE_M, AROUND_M, SIDE), SketchCrop(1, 1.3 * PAGE_M, AROUND_M, SIDE, "nothing")
    ink = torch.nn.functional.interpolate(torch.rand(8, 3, 8, 8), SIDE, mode="bilinear")
    inputs = (torch.arange(8), torch.full((8, 2), 0.5), torch.ones(8, 1), torch.zeros(8, 2), torch.zeros(8, 1))
    wanted = large(ink, *inputs)
    adam = torch.optim.Adam(net.parameters(), 0.02)
    for _ in range(60):
        loss = (net(ink, *inputs) - wanted).square().mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
    assert float(net.larger(torch.ones(1, 1)).detach().exp()) == pytest.approx(1.3, abs=0.02)
    assert not list(large.parameters())


def aligned(numbers: list[float]) -> SketchCrop:
    """A crop whose frame is that of `numbers` for any page."""
    net = SketchCrop(4, PAGE_M, AROUND_M, SIDE, "frame")
    with torch.no_grad():
        net.larger.bias.copy_(torch.tensor(numbers))
    return net


@pytest.mark.parametrize(
    "numbers", [[0.0] * 4, [0.3, 0.4, -0.5, 0.6], [-0.5, 50.0, 50.0, -50.0], [0.5, -50.0, 50.0, 50.0]]
)
def test_a_frame_is_invertible_and_converts_both_ways(numbers: list[float]) -> None:
    frame = aligned(numbers).frame(torch.zeros(3, 4)).detach()
    offset = torch.tensor([[0.1, -0.2], [0.3, 0.1], [-0.4, 0.0]])
    assert torch.linalg.det(frame).min() > 0
    assert torch.allclose(on_page(frame, in_metres(frame, offset)), offset, atol=1e-5)


def test_a_mark_on_a_distorted_page_appears_where_it_lies_in_the_building() -> None:
    """The same place is in the middle of the crop, once on an undistorted and once on a turned and stretched page."""
    start, place_m, zoom = (32, 32), torch.tensor([[2.0, -1.0]]), SIDE / AROUND_M
    for numbers in ([0.0] * 4, [0.1, 0.3, -0.6, 0.5]):
        net = aligned(numbers)
        at = on_page(net.frame(torch.zeros(1, 4)).detach(), place_m)[0] * SIDE
        page = page_with(start, (start[0] + float(at[0]), start[1] + float(at[1])))
        ink, dots = ink_of(page[None]), find_dots(page[None], START_RGB)
        with torch.no_grad():
            crop = net(ink, torch.tensor([0]), dots, torch.zeros(1, 4), place_m, torch.zeros(1, 1))[0]
        black = torch.where(crop[2] > 0.6, crop.amin(0), torch.zeros(()))
        index = torch.arange(SIDE) + 0.5
        column, row = ((black.sum(axis) * index).sum() / black.sum() for axis in (0, 1))
        assert float(column) == pytest.approx(SIDE / 2, abs=0.75 * zoom) == pytest.approx(float(row), abs=1.5 * zoom)


def test_true_positions_teach_the_frame() -> None:
    net, turned = SketchCrop(1, PAGE_M, AROUND_M, SIDE, "frame"), aligned([0.2, 0.1, -0.4, 0.4])
    offset = torch.randn(64, 2, generator=torch.Generator().manual_seed(0))
    true = in_metres(turned.frame(torch.zeros(64, 4)).detach(), offset)
    adam = torch.optim.Adam(net.parameters(), 0.02)
    for _ in range(200):
        loss = (in_metres(net.frame(torch.ones(64, 1)), offset) - true).square().mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
    assert float(loss.detach()) < 1e-4
