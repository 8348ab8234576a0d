"""Moves, images, rewards and metrics of agents match a plain reference, and the follower takes the shortest path."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from powerband.recipes.sketchnav.env.baselines import ForwardAndTurn, RandomWalk
from powerband.recipes.sketchnav.env.env import DEFAULT_RULES, SketchNavEnv
from powerband.recipes.sketchnav.env.world import FORWARD, LEFT, RIGHT, STOP, Rules
from powerband.recipes.sketchnav.plans.episodes.episodes import CELL_UNITS, COORDINATE_UNIT_M, EpisodeConfig, Episodes
from powerband.recipes.sketchnav.plans.episodes.generation import generate_episodes
from recipes.sketchnav.env import reference

SCENES = EpisodeConfig(max_size_m=10, plans=4, goals=2, starts=2, sketch_px=36)


@pytest.fixture(scope="module")
def episodes() -> Episodes:
    return generate_episodes(SCENES, "train", 1)


def make_env(episodes: Episodes, rows: int = 8, rules: Rules = DEFAULT_RULES, **options) -> SketchNavEnv:
    return SketchNavEnv(rows, episodes, rules, **{"pixels": 36, "sequential": True, "threads": 1, **options})


def place(env: SketchNavEnv, row: int) -> tuple[np.ndarray, float, float, float]:
    """(cells, x, y, heading) of an agent."""
    plan = int(env.episodes.plan[int(env.agents.episode[row])])
    x, y = (env.agents.at[row].double() * COORDINATE_UNIT_M).tolist()
    return env.episodes.plan_cells(plan), x, y, 2 * math.pi * int(env.agents.heading[row]) / 36


def wander(env: SketchNavEnv, steps: int, seed: int = 0):
    """Takes random actions without STOP; yields the places before each step, the actions and the step."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        action = torch.randint(1, 4, (env.num_envs,), generator=generator)
        before = [place(env, row) for row in range(env.num_envs)]
        yield before, action, env.step(action)


@pytest.mark.parametrize("pixels", [36, 64])
def test_images_match_those_of_one_plain_ray_per_pixel(episodes: Episodes, pixels: int) -> None:
    env = make_env(episodes, 16, pixels=pixels)
    off = far = count = 0
    for _ in wander(env, 6):
        rgb, depth = env.render_metric()
        for row in range(0, env.num_envs, 3):
            colour, metres = reference.picture(*place(env, row), pixels)
            image = rgb[row].permute(1, 2, 0).numpy().astype(np.float64)
            off += int((np.abs(image - np.floor(colour)) > 1).any(-1).sum())
            far += int((np.abs(depth[row, 0].numpy() - metres) > 1e-3 * metres).sum())
            count += metres.size
    assert off < 1e-3 * count and far < 1e-3 * count, f"{off} and {far} of {count} pixels differ"


def test_the_depth_sensor_is_its_depth_in_bytes(episodes: Episodes) -> None:
    env = make_env(episodes)
    obs, (rgb, depth) = env.observe(), env.render_metric()
    expected = ((depth - 0.5) / 4.5 * 255 + 0.5).clamp(0, 255).floor()
    assert (obs["depth"].float() - expected).abs().max() <= 1 and torch.equal(obs["rgb"], rgb)
    assert 0 < float(obs["depth"].float().mean()) < 255


def test_agents_move_like_a_disc_that_obstacles_stop(episodes: Episodes) -> None:
    env, hits = make_env(episodes, 8), 0
    for before, action, step in wander(env, 60):
        for row in range(env.num_envs):
            cells, x, y, heading = before[row]
            if bool(step.ended[row]):
                continue
            _, nx, ny, turned = place(env, row)
            if action[row] == FORWARD:
                expected = reference.moved(cells, x, y, heading, 0.25)
                assert math.hypot(nx - expected[0], ny - expected[1]) < 1e-3 and turned == heading
                hits += bool(env.agents.hit[row])
                assert bool(env.agents.hit[row]) == (math.hypot(nx - x, ny - y) < 0.2499)
            else:
                turn = -1 if action[row] == LEFT else 1
                assert (nx, ny) == (x, y)
                assert round(math.degrees(turned - heading - turn * math.radians(10))) % 360 == 0
    assert hits > 10


def test_forward_can_be_a_metre(episodes: Episodes) -> None:
    env = make_env(episodes, 8, Rules(forward_m=1.0))
    for before, action, _ in wander(env, 10):
        for row in range(env.num_envs):
            if action[row] == FORWARD:
                _, nx, ny, _ = place(env, row)
                expected = reference.moved(*before[row], 1.0)
                assert math.hypot(nx - expected[0], ny - expected[1]) < 2e-3


def potential(env: SketchNavEnv, row: int) -> float:
    """Returns 0.8 of the remaining path plus 0.2 of the distance to the path, from 20,001 points on it."""
    way = env.episodes.path_corners(int(env.agents.episode[row]))
    legs = np.hypot(*np.diff(way, axis=0).T)
    at = np.concatenate([[0], np.cumsum(legs)])
    where = np.linspace(0, at[-1], 20_001)
    points = np.stack([np.interp(where, at, way[:, k]) for k in range(2)], 1)
    _, x, y, _ = place(env, row)
    away = np.hypot(points[:, 0] - x, points[:, 1] - y)
    nearest = int(away.argmin())
    return 0.8 * (at[-1] - where[nearest]) + 0.2 * away[nearest]


def test_the_reward_is_progress_along_the_path(episodes: Episodes) -> None:
    env = make_env(episodes, 4)
    before = [potential(env, row) for row in range(4)]
    for _, _, step in wander(env, 25, seed=3):
        now = [potential(env, row) for row in range(4)]
        expected = [3 * (a - b) - 0.01 for a, b in zip(before, now, strict=True)]
        assert step.reward.tolist() == pytest.approx(expected, abs=0.02)
        before = now


def test_distances_along_the_path_of_an_agent_are_near_the_plain_search(episodes: Episodes) -> None:
    from powerband.recipes.sketchnav.plans.distance import navigable

    env = make_env(episodes, 8)
    for _ in wander(env, 15):
        pass
    for row in range(8):
        cells, x, y, _ = place(env, row)
        goal = env.episodes.target[int(env.agents.episode[row])] // 6400
        plain = reference.shortest(navigable(cells), tuple(goal.tolist()))
        cx, cy = int(x / 0.1), int(y / 0.1)
        around = plain[max(0, cy - 1) : cy + 2, max(0, cx - 1) : cx + 2].min()
        assert float(env.agents.distance[row]) == pytest.approx(around, abs=0.25)


def test_the_follower_arrives_and_spl_follows_from_the_path_length(episodes: Episodes) -> None:
    env, found = make_env(episodes, len(episodes)), {}
    for _ in range(400):
        start, moved = env.agents.episode.clone(), env.agents.moved.clone()
        action = env.expert()
        step = env.step(action)
        for row in step.ended.nonzero()[:, 0].tolist():
            figures = {name: float(value[row]) for name, value in step.episode.items()}
            length, walked = float(episodes.length[start[row]]), float(moved[row]) * 0.025
            assert figures["spl"] == pytest.approx(figures["success"] * length / max(length, walked), rel=1e-5)
            found.setdefault(int(start[row]), figures)
    assert len(found) == len(episodes)
    assert min(each["success"] for each in found.values()) == 1.0
    assert np.mean([each["spl"] for each in found.values()]) > 0.95


def test_stop_ends_and_the_limit_cuts_an_episode(episodes: Episodes) -> None:
    env = make_env(episodes, 4, Rules(max_steps=3))
    stopping = torch.tensor([STOP, RIGHT, RIGHT, RIGHT])
    first = env.step(stopping)
    assert first.terminated.tolist() == [True, False, False, False] and not first.truncated.any()
    assert float(first.episode["success"][0]) == 0.0 and float(first.episode["distance_to_goal"][0]) > 1
    assert float(first.reward[0]) == pytest.approx(-0.01)
    env.step(torch.full((4,), RIGHT))
    third = env.step(torch.full((4,), RIGHT))
    assert third.truncated.tolist() == [False, True, True, True] and not third.terminated.any()


def test_success_is_rewarded_at_the_goal_and_only_there(episodes: Episodes) -> None:
    env = make_env(episodes, len(episodes))
    won = 0
    for _ in range(300):
        near = env.agents.distance <= 1.0
        step = env.step(torch.where(near, STOP, env.expert()))
        if step.ended.any():
            won += int(step.episode["success"][step.ended].sum())
            assert (step.reward[step.ended] > 9.9).all()
    assert won >= len(episodes)


def test_the_expert_bonus_is_paid_for_what_the_follower_does(episodes: Episodes) -> None:
    plain, paid = make_env(episodes), make_env(episodes, rules=Rules(expert_bonus=0.1))
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        follower = plain.expert()
        action = torch.randint(1, 4, (8,), generator=generator)
        one, other = plain.step(action).reward, paid.step(action).reward
        assert torch.allclose(other - one, 0.1 * (action == follower).float(), atol=1e-5)


def test_the_path_is_known_in_gaps_without_a_navigable_cell(episodes: Episodes) -> None:
    """No cell around the agents is navigable: the path starts at the nearest navigable cells."""
    whole, holed = make_env(episodes, 4), make_env(replace(episodes, field=episodes.field.clone()), 4)
    for row in range(4):
        episode = int(holed.agents.episode[row])
        plan = int(holed.episodes.plan[episode])
        (high, width), first = (
            holed.episodes.size[plan].tolist(),
            int(holed.episodes.field_at[holed.episodes.goal[episode]]),
        )
        cells = holed.episodes.field[first : first + high * width].view(high, width)
        x, y = (holed.agents.at[row] // CELL_UNITS).tolist()
        cells[y - 3 : y + 4, x - 3 : x + 4] = -1
    for env in (whole, holed):
        env.step(torch.full((4,), LEFT))
    assert (whole.agents.distance < 100).all() and (holed.agents.distance != whole.agents.distance).all()
    assert (holed.agents.distance - whole.agents.distance).abs().max() < 1.5


def test_the_experts_action_is_an_optional_observation(episodes: Episodes) -> None:
    plain, with_expert = (
        make_env(episodes, rules=Rules(max_steps=7)),
        make_env(episodes, rules=Rules(max_steps=7), expert=True),
    )
    generator, expert_actions = torch.Generator().manual_seed(0), set()
    assert with_expert.spec.obs.keys() - plain.spec.obs.keys() == {"expert"}
    assert torch.equal(with_expert.observe()["expert"], plain.expert())
    for _ in range(20):
        action = torch.randint(4, (8,), generator=generator)
        one, other = plain.step(action), with_expert.step(action)
        assert all(torch.equal(one.obs[name], other.obs[name]) for name in one.obs)
        assert torch.equal(other.obs["expert"], plain.expert()) and torch.equal(one.reward, other.reward)
        expert_actions |= set(other.obs["expert"].tolist())
    assert len(expert_actions) >= 3


def test_rows_iterate_over_the_episodes_and_ranks_share_them(episodes: Episodes) -> None:
    whole = make_env(episodes, 4, Rules(max_steps=1))
    half = make_env(episodes, 2, Rules(max_steps=1), first_env=2, all_envs=4)
    for turn in range(3):
        now = whole.agents.episode.tolist()
        assert now == [(row + 4 * turn) % len(episodes) for row in range(4)]
        assert half.agents.episode.tolist() == now[2:]
        whole.step(torch.full((4,), LEFT)), half.step(torch.full((2,), LEFT))


def test_gps_is_relative_to_the_start_and_the_compass_is_the_heading(episodes: Episodes) -> None:
    env = make_env(episodes, 4)
    starts = [place(env, row) for row in range(4)]
    for _, _, step in wander(env, 12):
        for row in range(4):
            _, x, y, heading = place(env, row)
            assert step.obs["gps"][row].tolist() == pytest.approx([x - starts[row][1], y - starts[row][2]], abs=1e-4)
            assert math.cos(float(step.obs["compass"][row, 0]) - heading) == pytest.approx(1, abs=1e-6)
            assert abs(float(step.obs["compass"][row, 0])) <= math.pi + 1e-6


def test_threads_change_no_bit(episodes: Episodes) -> None:
    one, two = make_env(episodes), make_env(episodes, threads=2)
    generator = torch.Generator().manual_seed(1)
    for _ in range(10):
        action = torch.randint(0, 4, (8,), generator=generator)
        a, b = one.step(action), two.step(action)
        assert torch.equal(a.reward, b.reward) and all(torch.equal(a.obs[name], b.obs[name]) for name in a.obs)


def test_baselines_end_their_episodes_and_rarely_arrive(episodes: Episodes) -> None:
    for baseline, min_size_m in ((RandomWalk(), 0.0), (ForwardAndTurn(), 3.0)):
        env, ended, walked = make_env(episodes, 16), 0, 0.0
        for _ in range(200):
            moved = env.agents.moved.clone()
            step = env.step(baseline(env, None, None)[0])
            ended += int(step.ended.sum())
            walked += float(moved[step.ended].sum()) * 0.025
        assert ended > 10 and walked / ended > min_size_m


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (dict(num_envs=0), "num_envs is 0"),
        (dict(seed=-1), "seed is -1"),
        (dict(threads=0), "threads is 0"),
        (dict(pixels=15), "pixels=15"),
    ],
)
def test_bad_environments_are_refused(episodes: Episodes, words: dict, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        SketchNavEnv(**{"num_envs": 2, "episodes": episodes, "threads": 1, **words})


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (dict(success_m=0.0), "success_m=0"),
        (dict(forward_m=0.03), "forward_m=0.03"),
        (dict(max_steps=0), "max_steps=0"),
        (dict(expert_bonus=-1.0), "expert_bonus=-1"),
    ],
)
def test_bad_rules_are_refused(words: dict, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Rules(**words)


def test_bad_actions_are_refused(episodes: Episodes) -> None:
    env = make_env(episodes, 2)
    with pytest.raises(ValueError, match="actions reach from 0 to 4; expected 0..3"):
        env.send(torch.tensor([0, 4]))
    with pytest.raises(ValueError, match="expected \\(2,\\) and torch.int64"):
        env.send(torch.tensor([0.0, 1.0]))
    with pytest.raises(RuntimeError, match="recv was called without send"):
        env.recv()
