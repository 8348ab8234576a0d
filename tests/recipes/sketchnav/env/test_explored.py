"""The explored map: free and occupied squares agree with the floor plan, and a new episode clears the map."""

import numpy as np
import torch

from powerband.recipes.sketchnav.env.env import SketchNavEnv
from powerband.recipes.sketchnav.env.explored_map import FREE, OCCUPIED
from powerband.recipes.sketchnav.env.world import CAMERA_M, STOP
from powerband.recipes.sketchnav.plans.cell_codes import CELL_M, heights
from powerband.recipes.sketchnav.plans.episodes.episodes import COORDINATE_UNIT_M, EpisodeConfig
from powerband.recipes.sketchnav.plans.episodes.generation import generate_episodes
from powerband.recipes.sketchnav.settings import MAP_SQUARE_M

SQUARES, ROWS = 96, 4


def make_env() -> SketchNavEnv:
    episodes = generate_episodes(
        EpisodeConfig(max_size_m=9, plans=2, goals=1, starts=2, sketch="blank", sketch_px=36), "train", 3
    )
    return SketchNavEnv(ROWS, episodes, pixels=64, explored=SQUARES, goal=True, sequential=True, threads=1)


def test_squares_are_what_stands_or_is_free_in_the_plan() -> None:
    env = make_env()
    for _ in range(60):
        obs = env.step(env.expert().clamp(min=1)).obs
    tall = heights() >= CAMERA_M
    right = {FREE: [], OCCUPIED: []}
    for row in range(ROWS):
        episode = int(obs["episode"][row])
        cells = tall[env.episodes.plan_cells(int(env.episodes.plan[episode]))]
        start = env.episodes.start[episode, :2].double().numpy() * COORDINATE_UNIT_M
        for value, found in right.items():
            for y, x in (obs["explored"][row, 0] == value).nonzero().tolist():
                corner = start + (np.array([x, y]) - SQUARES // 2) * MAP_SQUARE_M
                low, high = (
                    np.floor(corner / CELL_M).astype(int) - 1,
                    np.ceil((corner + MAP_SQUARE_M) / CELL_M).astype(int) + 1,
                )
                part = cells[max(low[1], 0) : high[1], max(low[0], 0) : high[0]]
                found.append(bool(part.any()) if value == OCCUPIED else bool(not part.all()))
    assert len(right[FREE]) > 400 and len(right[OCCUPIED]) > 100
    assert np.mean(right[FREE]) > 0.99 and np.mean(right[OCCUPIED]) > 0.98


def test_maps_grow_within_an_episode_and_are_cleared_for_the_next() -> None:
    env = make_env()
    obs = env.observe()
    sizes = [(obs["explored"] > 0).sum((1, 2, 3))]
    for _ in range(20):
        step = env.step(torch.full((ROWS,), 2))
        sizes.append((step.obs["explored"] > 0).sum((1, 2, 3)))
    sizes = torch.stack(sizes)
    assert bool((sizes.diff(dim=0) >= 0).all()) and bool((sizes[-1] > 1.3 * sizes[0]).all())
    step = env.step(torch.tensor([STOP, 2, 2, 2]))
    assert int((step.final_obs["explored"][0] > 0).sum()) >= int(sizes[-1, 0])
    now = (step.obs["explored"] > 0).sum((1, 2, 3))
    assert int(now[0]) < int(sizes[-1, 0]) and bool((now[1:] >= sizes[-1, 1:]).all())


def test_the_goal_is_where_the_episode_ends() -> None:
    env = make_env()
    goal = env.observe()["goal"].clone()
    for _ in range(300):
        action, gps = env.expert(), env.observe()["gps"].clone()
        stops = action == STOP
        if bool(stops.any()):
            break
        env.step(action)
    assert bool(((gps - goal).norm(dim=1)[stops] < 1.0).all())
