"""Settings of impossible worlds, and map files that do not fit, are refused with value, limit and fix."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from powerband.cli import main as cli
from powerband.core.errors import ConfigError
from powerband.recipes.uav.env.env import UavEnv
from powerband.recipes.uav.env.map_file import load_map_file
from powerband.recipes.uav.settings import World


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"budget": 0}, "budget=0: 0 is below 1"),
        ({"n_agents": 0}, "Allowed: 1 to 16"),
        ({"n_agents": 17}, "n_agents=17: 17 is above 16"),
        ({"map_cells": 10}, "11 to 2048"),
        ({"altitudes_m": (5.0, 10.0, 50.0)}, "Write altitudes of 43.3 m or less"),
        ({"altitudes_m": (5.0, 10.0)}, "one probability for each altitude"),
        ({"altitudes_m": (15.0, 10.0, 5.0)}, "lowest first"),
        ({"sensor_noise": (0.01, 0.2, 0.5)}, "below 0.5"),
        ({"comm_range_m": -1.0}, "comm_range_m=-1.0: -1 is below 0"),
        ({"failure_rate": 1.5}, "0 to 1"),
        ({"map_cells": 11, "altitudes_m": (1.0,), "sensor_noise": (0.1,)}, "too coarse"),
    ],
)
def test_impossible_worlds_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        World(**settings)


def test_the_command_line_prints_the_message(capsys):
    assert cli.main(["train", "uav", "budget=0", "gpus=none"]) == 2
    assert "budget=0 (command line): 0 is below 1" in capsys.readouterr().err


def test_missions_use_the_map_file(tmp_path):
    user_map = np.zeros((44, 44), np.uint8)
    user_map[10:30, 5:20] = 1
    np.save(tmp_path / "map.npy", user_map)
    Image.fromarray(user_map * 255).save(tmp_path / "map.png")
    for name in ("map.npy", "map.png"):
        env = UavEnv(2, World(map_cells=44, budget=1, map_file=str(tmp_path / name)), threads=1)
        env.step(torch.full((2, 4), 5))
        env.step(torch.full((2, 4), 5))
        assert torch.equal(env.missions.truth, torch.from_numpy(user_map).expand(2, 44, 44))


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (np.zeros((20, 44), np.uint8), r"the shape \(20, 44\), expected \(44, 44\)"),
        (np.full((44, 44), 7, np.uint8), r"contains 7: only \(0, 1\)"),
        (np.zeros((44, 44), np.uint8), "inside and outside the region"),
    ],
)
def test_a_map_that_does_not_fit_is_refused(image, message, tmp_path):
    np.save(tmp_path / "map.npy", image)
    with pytest.raises(ConfigError, match=message):
        load_map_file(World(map_cells=44, map_file=str(tmp_path / "map.npy")))


def test_an_invalid_map_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="does not exist"):
        load_map_file(World(map_file=str(tmp_path / "map.npy")))
    (tmp_path / "bad.npy").write_bytes(b"nothing")
    with pytest.raises(ConfigError, match="not an array of numbers"):
        load_map_file(World(map_file=str(tmp_path / "bad.npy")))
    (tmp_path / "empty.npy").write_bytes(b"")
    with pytest.raises(ConfigError, match="not an array of numbers"):
        load_map_file(World(map_file=str(tmp_path / "empty.npy")))
    (tmp_path / "bad.png").write_bytes(b"nothing")
    with pytest.raises(ConfigError, match="not a readable image"):
        load_map_file(World(map_file=str(tmp_path / "bad.png")))
    Image.fromarray(np.full((44, 44), 128, np.uint8)).save(tmp_path / "grey.png")
    with pytest.raises(ConfigError, match=r"only \(0, 255\)"):
        load_map_file(World(map_cells=44, map_file=str(tmp_path / "grey.png")))
