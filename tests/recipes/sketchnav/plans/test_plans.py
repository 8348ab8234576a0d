"""Floor plans: seeded, closed, joined, of the sizes that were asked for; ways against a plain search."""

import numpy as np
import pytest

from powerband.recipes.sketchnav.plans.cell_codes import CELL_M, FRAMES, FURNITURE, WALLS, heights
from powerband.recipes.sketchnav.plans.distance import (
    DISTANCE_UNIT_M,
    distance_field,
    largest_component,
    navigable,
    shortest_path,
)
from powerband.recipes.sketchnav.plans.plan import WALL, generate_plan
from recipes.sketchnav.env import reference

SEEDS = range(12)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_plan_is_closed_joined_and_of_its_size(seed: int) -> None:
    least, most = (8, 10) if seed % 2 else (16, 24)
    plan = generate_plan(np.random.default_rng(seed), least, most)
    cells = plan.cells
    assert all(least <= side <= most for side in plan.size_m)
    rim = np.concatenate([cells[0], cells[-1], cells[:, 0], cells[:, -1]])
    assert np.isin(rim, WALLS).all(), "nobody sees or walks out"
    free = navigable(cells)
    assert largest_component(free).sum() == free.sum(), "every place that can be stood on can be reached"
    doors = np.isin(cells, FRAMES).any()
    assert doors == (len(plan.rooms) > 1)
    for room in plan.rooms:  # each has a place to stand
        assert free[room.y0 : room.y1, room.x0 : room.x1].any()


def test_plans_follow_from_their_seed_and_differ() -> None:
    first, again, other = (generate_plan(np.random.default_rng(seed), 8, 12).cells for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert first.shape != other.shape or not np.array_equal(first, other)


def test_there_is_furniture_and_large_plans_have_corridors() -> None:
    plans = [generate_plan(np.random.default_rng(seed), 20, 24) for seed in range(6)]
    assert all(np.isin(plan.cells, FURNITURE).any() for plan in plans)
    narrow = [min(room.x1 - room.x0, room.y1 - room.y0) for plan in plans for room in plan.rooms]
    assert min(narrow) < 20 < np.median(narrow)


@pytest.mark.parametrize("seed", SEEDS)
def test_strokes_cover_the_walls_and_leave_the_doors(seed: int) -> None:
    plan = generate_plan(np.random.default_rng(seed), 8, 16)
    covered = np.zeros(plan.cells.shape, bool)
    for x0, y0, x1, y1 in np.round(plan.walls / CELL_M).astype(int):
        covered[min(y0, y1) - 1 : max(y0, y1) + 1, min(x0, x1) - 1 : max(x0, x1) + 1] = True
    walls = np.isin(plan.cells, WALLS + FRAMES)
    assert (covered | ~walls).all(), "no wall without a stroke"
    assert (covered & ~walls).sum() <= 2 * WALL * len(plan.walls) * 2, "strokes end where doors begin"


@pytest.mark.parametrize("sizes", [(4, 9), (8, 30), (12, 10)])
def test_bad_sizes_are_refused(sizes: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="8 to 24 m"):
        generate_plan(np.random.default_rng(0), *sizes)


@pytest.mark.parametrize("seed", SEEDS[:4])
def test_distances_are_those_of_a_plain_search(seed: int) -> None:
    plan = generate_plan(np.random.default_rng(seed), 8, 9)
    free = navigable(plan.cells)
    y, x = np.argwhere(free)[np.random.default_rng(seed).integers(free.sum())]
    field, plain = distance_field(free, int(x), int(y)), reference.shortest(free, (int(x), int(y)))
    assert ((field >= 0) == np.isfinite(plain)).all()
    known = np.isfinite(plain) & (plain > 0)
    assert np.abs(field[known] * DISTANCE_UNIT_M / plain[known] - 1).max() < 0.005, "whole numbers of 2 mm a move"


def test_a_disc_can_stand_where_its_circle_is_free() -> None:
    plan = generate_plan(np.random.default_rng(3), 8, 9)
    free, solid = navigable(plan.cells), np.argwhere(heights()[plan.cells] > 0) + 0.5
    for y, x in np.random.default_rng(0).integers(0, min(plan.cells.shape), (200, 2)):
        gap = np.maximum(np.abs(solid - (y + 0.5, x + 0.5)) - 0.5, 0) * CELL_M
        assert free[y, x] == (np.hypot(*gap.T).min() >= 0.18)


def test_a_way_leads_to_the_goal_in_its_length_and_through_free_cells() -> None:
    plan = generate_plan(np.random.default_rng(5), 12, 14)
    free = navigable(plan.cells)
    places, rng = np.argwhere(free), np.random.default_rng(0)
    y, x = places[0]
    field = distance_field(free, int(x), int(y))
    for sy, sx in places[rng.integers(len(places), size=20)]:
        way = shortest_path(free, field, int(sx), int(sy))
        assert tuple(way[0]) == (sx, sy) and tuple(way[-1]) == (x, y)
        length = np.hypot(*np.diff(way, axis=0).T).sum() * CELL_M
        assert length == pytest.approx(field[sy, sx] * DISTANCE_UNIT_M, rel=0.005, abs=1e-9)
        assert free[way[:, 1], way[:, 0]].all()
