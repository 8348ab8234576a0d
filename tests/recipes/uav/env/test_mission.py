"""Missions against the reference of `reference.py`: fusion, maps, masks and rewards; random draws by statistics."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from powerband.data.types import tree_leaves
from powerband.recipes.uav.env.env import UavEnv
from powerband.recipes.uav.env.planners import GreedyPlanner
from powerband.recipes.uav.env.world import LOG_ODDS_UNITS, belief_tables, log_odds_steps
from powerband.recipes.uav.settings import LATTICE, World
from recipes.uav.env.reference import ReferenceMission

WORLDS = {
    "as published": World(),
    "coarse, three UAVs, random ranges, lost messages": World(
        n_agents=3, map_cells=121, budget=9, random_comm_range=True, failure_rate=0.3
    ),
    "a field, two altitudes, crowded": World(
        n_agents=8, map_cells=64, budget=5, altitudes_m=(6.0, 12.0), sensor_noise=(0.1, 0.3), truth="field"
    ),
}


def noise_of(world: World) -> list[float]:
    """Returns the flip probabilities that correspond to log odds in integer units."""
    return (1 / (1 + np.exp(log_odds_steps(world) / LOG_ODDS_UNITS))).tolist()


def measured(env: UavEnv, n: int, i: int) -> np.ndarray:
    """Returns (M, M): the latest measurement of UAV i of mission n, 0 or 1; -1 outside the footprint."""
    x, y, z = env.missions.position[n, i].tolist()
    (low, high), cells = env.world.footprints, env.world.map_cells
    rows, cols = slice(low[z][x], high[z][x]), slice(low[z][y], high[z][y])
    readings = np.full((cells, cells), -1)
    height, width = rows.stop - rows.start, cols.stop - cols.start
    readings[rows, cols] = env.missions.measured[n, i, :height, :width].numpy() > 0
    return readings


def heard(env: UavEnv, n: int) -> list[set[int]]:
    """Returns, for each UAV of mission n, the UAVs whose messages it received."""
    agents = range(env.world.n_agents)
    return [{j for j in agents if int(env.missions.heard[n, i]) >> j & 1} for i in agents]


@pytest.mark.parametrize("name", WORLDS)
def test_a_mission_matches_the_reference(name):
    world, rows = WORLDS[name], 2
    env = UavEnv(rows, world, seed=5, threads=1)
    obs = env.reset(11)
    generator = torch.Generator().manual_seed(0)
    references = [
        ReferenceMission(world.map_cells, noise_of(world), list(world.altitudes_m), position, world.budget)
        for position in env.missions.position
    ]
    for n, mission in enumerate(references):
        mission.measure_and_fuse([measured(env, n, i) for i in range(world.n_agents)], heard(env, n))
    for step in range(world.num_steps):
        compare(env, obs, references)
        probability = torch.rand(rows, world.n_agents, 6, generator=generator)
        action, mask = env.masked_sample(probability, torch.rand(rows, world.n_agents, generator=generator))
        for n, mission in enumerate(references):
            assert mask[n].tolist() == mission.masks(action[n].tolist())
            assert bool(mask[n].gather(1, action[n].unsqueeze(1)).all())
        if step == world.num_steps - 1:
            break
        collected = env.step(action)
        obs = collected.obs
        for n, mission in enumerate(references):
            mission.move(action[n].tolist())
            reward = mission.measure_and_fuse([measured(env, n, i) for i in range(world.n_agents)], heard(env, n))
            assert collected.reward[n].tolist() == pytest.approx([reward] * world.n_agents, abs=2e-4)


def compare(env: UavEnv, obs: dict, references: list[ReferenceMission]) -> None:
    """Compares positions, beliefs, observations and metrics with the reference missions."""
    score = env.score()
    for n, mission in enumerate(references):
        assert env.missions.position[n].tolist() == [list(position) for position in mission.position]
        p = torch.sigmoid(env.missions.belief[n].double() / LOG_ODDS_UNITS).numpy()
        np.testing.assert_allclose(p, mission.maps, atol=2e-5)  # the limits of beliefs are integer units of log odds
        for i in range(env.world.n_agents):
            np.testing.assert_allclose(obs["maps"][n, i], mission.uav_maps(i), atol=2e-5)
        np.testing.assert_allclose(obs["state"][n], mission.team_maps(), atol=2e-5)
        truth = env.missions.truth[n].numpy().astype(bool)
        positive = mission.maps[-1] > 0.5 + 1e-9  # opposite measurements cancel except for rounding
        hits = (truth & positive).sum()
        f1 = 2 * hits / max(2 * hits + (truth ^ positive).sum(), 1)
        assert float(score["f1"][n]) == pytest.approx(f1, abs=1e-6)
        h = -(p[-1] * np.log2(p[-1]) + (1 - p[-1]) * np.log2(1 - p[-1]))
        assert float(score["roi_entropy"][n]) == pytest.approx(h[truth].mean(), abs=1e-5)


def test_moves_for_the_first_missions_are_those_of_all_missions():
    """The trials after a failed allocation choose moves for fewer missions."""
    env = UavEnv(5, World(map_cells=22, budget=1), seed=5, threads=1)
    generator = torch.Generator().manual_seed(1)
    probability, noise = torch.rand(5, 4, 6, generator=generator), torch.rand(5, 4, generator=generator)
    for uniform in (noise, None):
        everything = env.masked_sample(probability, uniform)
        first = env.masked_sample(probability[:2], None if uniform is None else uniform[:2])
        for a, b in zip(first, everything, strict=True):
            assert torch.equal(a, b[:2])


def test_rewards_of_f1_sum_to_its_increase_and_continue_after_a_resume():
    world = World(map_cells=121, budget=4, reward="f1")
    env, resumed, entropy = (
        UavEnv(3, each, seed=5, threads=1) for each in (world, world, replace(world, reward="entropy"))
    )
    generator = torch.Generator().manual_seed(1)
    for mission in range(2):
        before, total = env.score()["f1"], torch.zeros(3)
        for move in range(world.num_steps):
            action, _ = env.masked_sample(torch.ones(3, 4, 6), torch.rand(3, 4, generator=generator))
            step, with_entropy = env.step(action), entropy.step(action)
            if (mission, move) > (0, 1):
                assert torch.equal(resumed.step(action).reward, step.reward)
            if (mission, move) == (0, 1):
                resumed.load_state_dict(env.state_dict())
            assert torch.equal(step.reward, step.reward[:, :1].expand(-1, 4))
            assert torch.equal(step.obs["maps"], with_entropy.obs["maps"])
            assert not torch.equal(step.reward, with_entropy.reward)
            total += step.reward[:, 0]
        torch.testing.assert_close(total, 22 * (step.episode["f1"] - before), atol=1e-5, rtol=0)
        assert bool((total != 0).all())


def test_centred_maps_are_shifted_to_the_uav():
    plain, centred = (
        UavEnv(2, World(map_cells=121, centred_maps=centred), seed=4, threads=1) for centred in (False, True)
    )
    generator = torch.Generator().manual_seed(1)
    for _ in range(5):
        maps, shifted = plain.observe()["maps"], centred.observe()["maps"]
        for n, i in np.ndindex(2, 4):
            x, y, _ = plain.missions.position[n, i].tolist()
            expected = torch.nn.functional.pad(maps[n, i, 3:], (5, 5, 5, 5))[:, x : x + LATTICE, y : y + LATTICE]
            assert torch.equal(shifted[n, i, 3:], expected)
        assert torch.equal(shifted[:, :, :3], maps[:, :, :3])
        action, _ = plain.masked_sample(torch.ones(2, 4, 6), torch.rand(2, 4, generator=generator))
        plain.step(action)
        centred.step(action)


def test_incremental_sums_equal_sums_over_the_complete_map():
    world = World(map_cells=130, budget=6)
    env = UavEnv(3, world, seed=2, threads=1)
    generator = torch.Generator().manual_seed(1)
    for _ in range(6):
        env.step(torch.randint(0, 6, (3, 4), generator=generator))
    weighted, _, probability = (torch.from_numpy(table) for table in belief_tables())
    cells = np.arange(world.map_cells)
    overlaps = [
        np.maximum(np.minimum(11 * cells + 11, 130 * (row + 1)) - np.maximum(11 * cells, 130 * row), 0)
        for row in range(LATTICE)
    ]
    share = torch.from_numpy(np.stack(overlaps))
    belief = env.missions.belief.long() + (len(weighted) - 1) // 2
    for part, table in enumerate((weighted, probability)):
        expected = torch.einsum("ry,nkyx,cx->nkrc", share, table[belief], share)
        assert torch.equal(env.missions.sums[:, :, part], expected)


@pytest.mark.slow
def test_threads_and_ranks_change_no_bit():
    world = World(map_cells=121, budget=4)
    generator = torch.Generator().manual_seed(3)
    actions = [torch.randint(0, 6, (6, 4), generator=generator) for _ in range(7)]
    envs = [UavEnv(6, world, seed=9, threads=threads) for threads in (1, 2)]
    second_rank = UavEnv(3, world, seed=9, first_env=3, threads=1)
    uniform = torch.full((6, 4, 6), 1 / 6)
    for action in actions:  # a mission ends after five moves, so a second one starts
        one, two = (env.step(action) for env in envs)
        second_rank.step(action[3:])
        noise = torch.rand(6, 4, generator=generator)
        for a, b in zip(tree_leaves(one.obs), tree_leaves(two.obs), strict=True):
            assert torch.equal(a, b)
        assert torch.equal(one.reward, two.reward)
        for (name, a), b in zip(envs[0].score().items(), envs[1].score().values(), strict=True):
            assert torch.equal(a, b), name
        for a, b in zip(*(env.masked_sample(uniform, noise) for env in envs), strict=True):
            assert torch.equal(a, b)
        assert torch.equal(*(GreedyPlanner().act(env) for env in envs))
    states = [env.state_dict()["missions"] for env in (*envs, second_rank)]
    assert states[0]["tick"].tolist() == [9] * 6 and states[0]["episode"].tolist() == [2] * 6
    for name, value in states[0].items():
        assert torch.equal(states[1][name], value), name
        assert torch.equal(states[2][name], value[3:]), name


def test_wrong_measurements_are_as_frequent_as_the_sensor_noise():
    world = World()
    env = UavEnv(4, world, seed=1, threads=1)
    counts = {z: [0, 0] for z in range(3)}
    for _ in range(world.num_steps):
        for n in range(4):
            for i in range(4):
                readings, z = measured(env, n, i), int(env.missions.position[n, i, 2])
                visible = readings >= 0
                wrong = (readings != env.missions.truth[n].numpy()) & visible
                counts[z][0] += int(wrong.sum())
                counts[z][1] += int(visible.sum())
        env.step(torch.full((4, 4), 5))  # down, then along the ground
    for z, (wrong, total) in counts.items():
        noise = world.sensor_noise[z]
        assert total > 10_000
        assert wrong / total == pytest.approx(noise, abs=5 * (noise * (1 - noise) / total) ** 0.5 + 2e-5)


def test_random_maps_starts_and_ranges_have_the_right_distribution():
    env = UavEnv(400, World(map_cells=22, budget=1), seed=0, threads=1)
    share = env.missions.truth.float().mean((1, 2))
    assert 0.26 < float(share.min()) < 0.34 and 0.56 < float(share.max()) < 0.64
    assert float(share.mean()) == pytest.approx(0.45, abs=0.02)
    sides = {tuple(corner.tolist()) for corner in env.missions.truth[:, [0, 0, -1, -1], [0, -1, 0, -1]]}
    assert sides == {(1, 1, 0, 0), (0, 0, 1, 1), (1, 0, 1, 0), (0, 1, 0, 1)}
    cells = env.missions.position[:, :, 0] * LATTICE + env.missions.position[:, :, 1]
    assert all(len(set(team)) == 4 for team in cells.tolist())
    assert torch.bincount(cells.flatten(), minlength=121).min() > 0
    assert bool((env.missions.position[:, :, 2] == 2).all())
    fields = UavEnv(40, World(map_cells=64, budget=1, truth="field"), seed=0, threads=1).missions.truth.float()
    assert 0.29 < float(fields.mean((1, 2)).min()) and float(fields.mean((1, 2)).max()) < 0.61
    edges = (fields[:, 1:] != fields[:, :-1]).float().mean()
    assert float(edges) < 0.05, "most neighbouring cells are equal"
    ranges = UavEnv(200, World(map_cells=22, budget=1, random_comm_range=True), seed=0, threads=1).missions.comm_range
    assert sorted(set(ranges.tolist())) == [0.0, 15.0, 25.0, 100.0]


def test_messages_reach_as_far_as_the_range():
    far, near = (UavEnv(50, World(map_cells=22, budget=1, comm_range_m=r), seed=4, threads=1) for r in (100.0, 0.0))
    assert bool((far.missions.heard == 15).all())
    assert bool((near.missions.heard == torch.tensor([1, 2, 4, 8])).all())
    lost = UavEnv(400, World(map_cells=22, budget=1, comm_range_m=100.0, failure_rate=0.25), seed=4, threads=1)
    received = sum(int(mask) >> j & 1 for mask in lost.missions.heard.flatten() for j in range(4))
    assert (received - 1600) / (400 * 12) == pytest.approx(0.75, abs=0.03)
