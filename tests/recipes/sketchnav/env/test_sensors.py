"""Noise of the sensors has the configured size, affects no other reading, and does not depend on splits or resumes."""

import math

import numpy as np
import pytest
import torch

from powerband.recipes.sketchnav.env.env import NOISELESS, SketchNavEnv
from powerband.recipes.sketchnav.env.sensors import Sensors, sensor_arrays
from powerband.recipes.sketchnav.env.world import FAR_M, NEAR_M, Rules
from powerband.recipes.sketchnav.plans.episodes.episodes import EpisodeConfig, Episodes
from powerband.recipes.sketchnav.plans.episodes.generation import generate_episodes

KINECT = 0.001425
NOISY = Sensors(depth_noise=0.01, rgb_noise=12.0, gps_noise_m=0.2, compass_noise_deg=5.0)
LEVEL_M = (FAR_M - NEAR_M) / 255


@pytest.fixture(scope="module")
def episodes() -> Episodes:
    return generate_episodes(EpisodeConfig(max_size_m=10, plans=4, goals=2, starts=4, sketch_px=36), "train", 1)


def make_env(episodes: Episodes, sensors: Sensors, rows: int = 16, **options) -> SketchNavEnv:
    options = {"pixels": 48, "threads": 1, "seed": 5, "sequential": True, **options}
    return SketchNavEnv(rows, episodes, Rules(max_steps=7), sensors=sensors, **options)


def random_rollout(
    env: SketchNavEnv, steps: int = 20, part: slice = slice(None), seed: int = 0, rows: int = 16
) -> list:
    """Returns the observations of each random step, and the final observations of the rows that ended."""
    generator, observations = torch.Generator().manual_seed(seed), []
    for _ in range(steps):
        step = env.step(torch.randint(1, 4, (rows,), generator=generator)[part])
        now = {name: value.clone() for name, value in step.obs.items()}
        if step.final_obs is not None:
            last = step.ended
            now |= {f"final {name}": value[last].clone() for name, value in step.final_obs.items()}
        observations.append(now)
    return observations


def same(one: list, other: list, names: tuple[str, ...] = ()) -> bool:
    return len(one) == len(other) and all(
        torch.equal(value, b[name])
        for a, b in zip(one, other, strict=True)
        for name, value in a.items()
        if not names or name.removeprefix("final ") in names
    )


@pytest.mark.parametrize(
    ("sensors", "touched"),
    [
        (NOISELESS, ()),
        (Sensors(depth_noise=0.01), ("depth",)),
        (Sensors(rgb_noise=12.0), ("rgb",)),
        (Sensors(gps_noise_m=0.2), ("gps",)),
        (Sensors(compass_noise_deg=5.0), ("compass",)),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else "",
)
def test_noise_affects_the_configured_reading_and_no_other(episodes, sensors, touched) -> None:
    plain, noisy = random_rollout(make_env(episodes, NOISELESS)), random_rollout(make_env(episodes, sensors))
    names = ("rgb", "depth", "gps", "compass", "episode")
    assert same(plain, noisy, tuple(set(names) - set(touched)))
    assert all(not torch.equal(a[name], b[name]) for a, b in zip(plain, noisy, strict=True) for name in touched)


def test_nothing_is_run_for_noise_that_is_off(episodes, monkeypatch) -> None:
    env, ran = make_env(episodes, NOISELESS), []
    monkeypatch.setattr("powerband.recipes.sketchnav.env.env.run", lambda name, *rest: ran.append(name))
    env.observe()
    assert ran == ["render"]


def test_the_table_is_of_the_normal_distribution() -> None:
    table = sensor_arrays(NOISELESS, torch.device("cpu")).normal.astype(np.float64)
    assert abs(table.mean()) < 1e-6 and abs(table.std() - 1) < 1e-6 and 3.5 < table.max() < 3.8
    assert abs((table**4).mean() - 3) < 0.03 and abs((abs(table) < 1).mean() - 0.6827) < 1e-3


@pytest.mark.parametrize("factor", [KINECT, 0.01])
def test_depth_errs_by_the_square_of_itself(episodes, factor: float) -> None:
    """Between the ends of the sensor's range; a level of the byte adds its own rounding, which noise of half a level or
    more makes even."""
    env, metres, errors = make_env(episodes, Sensors(depth_noise=factor)), [], []
    generator = torch.Generator().manual_seed(0)
    for _ in range(30):
        env.step(torch.randint(1, 4, (16,), generator=generator))
        metres.append(env.render_metric()[1].flatten())
        errors.append(NEAR_M + env.observe()["depth"].flatten() * LEVEL_M - metres[-1])
    metres, errors = torch.cat(metres).double(), torch.cat(errors).double()
    for low, high in ((1.0, 1.2), (1.5, 1.7), (2.4, 2.6), (3.4, 3.6), (4.0, 4.2)):
        if factor * low**2 < LEVEL_M / 2:
            continue
        inside = (metres >= low) & (metres < high)
        expected = math.sqrt(float((factor * metres[inside] ** 2).pow(2).mean()) + LEVEL_M**2 / 12)
        assert int(inside.sum()) > 3_000
        assert float(errors[inside].std()) == pytest.approx(expected, rel=0.05)
        assert abs(float(errors[inside].mean())) < 0.1 * expected


def test_errors_of_colours_gps_and_compass_have_the_configured_deviation(episodes) -> None:
    plain, noisy = random_rollout(make_env(episodes, NOISELESS), 40), random_rollout(make_env(episodes, NOISY), 40)

    def errors(name: str) -> torch.Tensor:
        pairs = [(a[name].double(), b[name].double()) for a, b in zip(plain, noisy, strict=True)]
        found = torch.stack([b - a for a, b in pairs])
        if name == "rgb":  # where no byte's end is near
            true = torch.stack([a for a, _ in pairs])
            return found[(true > 60) & (true < 195)]
        return found

    for name, expected, tolerance in (("rgb", 12.0, 0.01), ("gps", 0.2, 0.06)):
        off = errors(name)
        assert float(off.std()) == pytest.approx(expected, rel=tolerance), name
        assert abs(float(off.mean())) < 4 * expected / math.sqrt(off.numel()), name
    turns = errors("compass")
    turns = torch.rad2deg(torch.atan2(turns.sin(), turns.cos()))
    assert float(turns.std()) == pytest.approx(5.0, rel=0.08)
    headings = torch.stack([step["compass"] for step in noisy])
    assert float(headings.abs().max()) <= np.float32(math.pi)


def test_errors_of_pixels_colours_steps_and_rows_are_uncorrelated(episodes) -> None:
    env, plain = make_env(episodes, NOISY, sequential=False), make_env(episodes, NOISELESS, sequential=False)
    off = [
        b["rgb"].double() - a["rgb"].double()
        for a, b in zip(random_rollout(plain, 8), random_rollout(env, 8), strict=True)
    ]
    off = torch.stack(off)  # (steps, rows, 3, S, S)

    def correlation(a: torch.Tensor, b: torch.Tensor) -> float:
        return abs(float(torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1]))

    assert correlation(off[1:], off[:-1]) < 0.01
    assert correlation(off[:, 1:], off[:, :-1]) < 0.01
    assert correlation(off[:, :, 1:], off[:, :, :-1]) < 0.01
    assert correlation(off[..., 1:], off[..., :-1]) < 0.01 and correlation(off[..., 1:, :], off[..., :-1, :]) < 0.01


@pytest.mark.parametrize("sequential", [False, True])
def test_two_halves_of_the_rows_see_what_the_whole_sees(episodes, sequential: bool) -> None:
    whole = random_rollout(make_env(episodes, NOISY, sequential=sequential))
    halves = [
        random_rollout(
            make_env(episodes, NOISY, 8, sequential=sequential, first_env=first, all_envs=16),
            part=slice(first, first + 8),
        )
        for first in (0, 8)
    ]
    for step, *parts in zip(whole, *halves, strict=True):
        assert all(torch.equal(value, torch.cat([part[name] for part in parts])) for name, value in step.items())


@pytest.mark.slow
def test_threads_change_no_bit(episodes) -> None:
    assert same(random_rollout(make_env(episodes, NOISY)), random_rollout(make_env(episodes, NOISY, threads=2)))


@pytest.mark.parametrize("sequential", [False, True])
def test_a_resumed_environment_sees_the_same_bits(episodes, sequential: bool) -> None:
    env = make_env(episodes, NOISY, sequential=sequential)
    random_rollout(env, 10)
    state = {**env.state_dict()}
    now, ahead = {name: value.clone() for name, value in env.observe().items()}, random_rollout(env, 10, seed=1)
    other = make_env(episodes, NOISY, sequential=sequential, seed=77)
    other.load_state_dict(state)
    assert same([now], [other.observe()]) and same(ahead, random_rollout(other, 10, seed=1))


def test_observations_of_an_episode_do_not_depend_on_its_row_in_sequential_order(episodes) -> None:
    """Evaluations and continued recordings must not depend on the number of rows."""
    whole, single = make_env(episodes, NOISY), make_env(episodes, NOISY, 1, first_env=3, all_envs=16)
    one, other = whole.observe(), single.observe()
    alone = make_env(episodes, NOISY, 1, order=torch.tensor([3])).observe()
    for name, value in one.items():
        assert torch.equal(value[3:4], other[name]) and torch.equal(value[3:4], alone[name])


def test_light_decreases_with_distance_as_configured(episodes) -> None:
    even, dim = make_env(episodes, Sensors(shading=0.0)), make_env(episodes, Sensors(shading=0.3))
    lit, metres = even.render_metric()
    rgb, _ = dim.render_metric()
    expected = lit.double() / (1 + 0.3 * metres.double())
    assert float((rgb.double() - expected).abs().max()) <= 1.5
    assert torch.equal(
        make_env(episodes, Sensors(shading=0.08)).render_metric()[0], make_env(episodes, NOISELESS).render_metric()[0]
    )


def test_pictures_of_another_renderer_are_read_with_the_same_noise(episodes, tmp_path) -> None:
    """`MujocoNavEnv` with a renderer that draws one wall: no GL is needed."""
    from powerband.recipes.sketchnav.mujoco.env import MujocoNavEnv

    episodes.save(tmp_path / "set.safetensors", EpisodeConfig(), "train", 1)

    class Wall:
        def render(self, x: float, y: float, heading: float) -> tuple[np.ndarray, np.ndarray]:
            return np.full((96, 96, 3), 100, np.uint8), np.full((96, 96), 3.0, np.float32)

    def observation(sensors: Sensors) -> dict[str, np.ndarray]:
        env = MujocoNavEnv(str(tmp_path / "set.safetensors"), {}, 96, vars(sensors))
        env._renderer_of = lambda plan: Wall()
        env.reset(seed=3)
        return env.step(1)[0]

    plain, noisy, again = observation(NOISELESS), observation(NOISY), observation(NOISY)
    assert (plain["rgb"] == 100).all() and len(np.unique(plain["depth"])) == 1
    assert noisy["rgb"].std() == pytest.approx(12.0, rel=0.02)
    assert noisy["depth"].std() * LEVEL_M == pytest.approx(0.01 * 9, rel=0.03)
    assert (noisy["gps"] != plain["gps"]).all() and (noisy["compass"] != plain["compass"]).all()
    assert all((noisy[name] == again[name]).all() for name in plain)
    assert noisy["rgb"].shape == (3, 96, 96) and noisy["depth"].shape == (1, 96, 96)


def test_the_explored_map_is_computed_from_noisy_readings(episodes) -> None:
    plain, noisy = (make_env(episodes, sensors, explored=96).observe()["explored"] for sensors in (NOISELESS, NOISY))
    assert not torch.equal(plain, noisy)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (dict(depth_noise=-0.1), "depth_noise=-0.1"),
        (dict(rgb_noise=200.0), "rgb_noise=200"),
        (dict(gps_noise_m=math.nan), "gps_noise_m=nan"),
        (dict(compass_noise_deg=90.0), "compass_noise_deg=90"),
        (dict(shading=2.0), "shading=2"),
    ],
)
def test_bad_sensors_are_refused(words: dict, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Sensors(**words)
