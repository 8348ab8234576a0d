"""Worlds in which no mission can be flown are refused with value, limit and fix; so are maps that do not fit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from powerband import cli
from powerband.envs.uav.env import UavEnv
from powerband.envs.uav.world import World


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"budget": 0}, "budget=1 or more"),
        ({"n_agents": 0}, "1 to 16"),
        ({"n_agents": 122}, "121 cells"),
        ({"map_cells": 10}, "11 to 2048"),
        ({"altitudes_m": (5.0, 10.0, 50.0)}, "Stay at or below 43.3 m"),
        ({"altitudes_m": (5.0, 10.0)}, "one probability for each altitude"),
        ({"altitudes_m": (15.0, 10.0, 5.0)}, "lowest first"),
        ({"sensor_noise": (0.01, 0.2, 0.5)}, "below 0.5"),
        ({"comm_range_m": -1.0}, "Write 0 for no communication"),
        ({"failure_rate": 1.5}, "0 to 1"),
        ({"map_cells": 11, "altitudes_m": (1.0,), "sensor_noise": (0.1,)}, "too coarse"),
    ],
)
def test_impossible_worlds_are_refused(words, says):
    with pytest.raises(ValueError, match=says):
        World(**words)


def test_the_command_line_says_it_too(capsys):
    assert cli.main(["train", "uav", "budget=0", "gpus=none"]) == 2
    assert "Write budget=1 or more" in capsys.readouterr().err


def test_a_map_of_ones_own_is_flown(tmp_path):
    own = np.zeros((44, 44), np.uint8)
    own[10:30, 5:20] = 1
    np.save(tmp_path / "map.npy", own)
    Image.fromarray(own * 255).save(tmp_path / "map.png")
    for name in ("map.npy", "map.png"):
        env = UavEnv(2, World(map_cells=44, budget=1, map_file=str(tmp_path / name)), threads=1)
        env.step(torch.full((2, 4), 5))
        env.step(torch.full((2, 4), 5))
        assert torch.equal(env.missions.truth, torch.from_numpy(own).expand(2, 44, 44))


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (np.zeros((20, 44), np.uint8), r"shape \(20, 44\), expected \(44, 44\)"),
        (np.full((44, 44), 7, np.uint8), r"holds 7: only \(0, 1\)"),
        (np.zeros((44, 44), np.uint8), "needs both"),
    ],
)
def test_a_map_that_does_not_fit_is_refused(found, says, tmp_path):
    np.save(tmp_path / "map.npy", found)
    with pytest.raises(ValueError, match=says):
        World(map_cells=44, map_file=str(tmp_path / "map.npy")).own_map()


def test_a_map_file_that_is_none_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no such"):
        World(map_file=str(tmp_path / "map.npy")).own_map()
    (tmp_path / "bad.npy").write_bytes(b"nothing")
    with pytest.raises(ValueError, match="no array of numbers"):
        World(map_file=str(tmp_path / "bad.npy")).own_map()
    Image.fromarray(np.full((44, 44), 128, np.uint8)).save(tmp_path / "grey.png")
    with pytest.raises(ValueError, match=r"only \(0, 255\)"):
        World(map_cells=44, map_file=str(tmp_path / "grey.png")).own_map()
