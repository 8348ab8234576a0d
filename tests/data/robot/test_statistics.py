"""Statistics: comparison with NumPy, constant dimensions, and differences between data sets."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch

from powerband.core.errors import ConfigError
from powerband.data.robot.statistics import Statistics, statistics_of

NAMES = ("joint_0", "gripper", "eef_x")


def values(rows: int = 200) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(0).normal([1.0, -2.0, 30.0], [0.5, 2.0, 0.01], (rows, 3))).float()


def test_statistics_equal_those_of_numpy() -> None:
    rows = values()
    found, plain = statistics_of(rows, NAMES, "libero_90"), rows.double().numpy()
    assert found.count == 200 and found.names == NAMES and found.task_set == "libero_90"
    for name, expected in {
        "mean": plain.mean(0),
        "std": plain.std(0),
        "min": plain.min(0),
        "max": plain.max(0),
        "q01": np.quantile(plain, 0.01, axis=0),
        "q99": np.quantile(plain, 0.99, axis=0),
    }.items():
        value = getattr(found, name)
        assert value.dtype == torch.float32 and np.allclose(value.numpy(), expected, rtol=1e-6), name


def test_constant_dimensions_are_named_and_scaled_by_one() -> None:
    rows = values()
    rows[:, 1] = 0.7
    rows[:, 2] = 500.0 + 1e-3 * torch.randn(200)
    names, scale, banner = statistics_of(rows, NAMES, "libero_90").check()
    assert names == ("gripper", "eef_x") and scale[1] == scale[2] == 1.0
    assert scale[0] == pytest.approx(float(rows[:, 0].double().std(correction=0)))
    assert "shifted but not scaled: gripper, eef_x" in banner and "libero_90" in banner and "200 rows" in banner
    cosine = torch.cos(np.pi + 0.005 * torch.randn(200, 1)).repeat(1, 3)
    assert statistics_of(cosine, NAMES, "libero_90").check()[0] == NAMES
    names, scale, banner = statistics_of(values(), NAMES, "libero_90").check()
    assert names == () and bool((scale < 3).all()) and "constant" not in banner


def test_json_preserves_every_bit() -> None:
    found = statistics_of(values(), NAMES, "libero_single_task")
    back = Statistics.from_dict(json.loads(json.dumps(found.to_dict())), "statistics.json")
    assert back.difference_from(found) is None and found.difference_from(back) is None
    assert torch.equal(back.q99, found.q99)
    broken = found.to_dict()
    del broken["q01"]
    with pytest.raises(ConfigError, match="no q01"):
        Statistics.from_dict(broken, "statistics.json")
    with pytest.raises(ConfigError, match="2 values of std for 3"):
        Statistics.from_dict({**found.to_dict(), "std": [1.0, 2.0]}, "statistics.json")


def test_differences_between_statistics_are_described() -> None:
    one = statistics_of(values(), NAMES, "libero_single_task")
    assert one.difference_from(dataclasses.replace(one, task_set="libero_90")) == (
        "these are statistics of libero_single_task, those of libero_90"
    )
    fewer = statistics_of(values()[:, :2], NAMES[:2], "libero_single_task")
    assert "eef_x" in one.difference_from(fewer)
    assert "'" not in one.difference_from(dataclasses.replace(one, names=(*NAMES[:2], "eef_y")))
    assert "200 rows" in one.difference_from(statistics_of(values(150), NAMES, "libero_single_task"))
    moved = values()
    moved[7, 1] += 1.0
    assert "mean of gripper is" in one.difference_from(statistics_of(moved, NAMES, "libero_single_task"))


def test_a_value_that_is_not_finite_is_named() -> None:
    rows = values()
    rows[5, 2] = float("nan")
    with pytest.raises(ConfigError, match="demonstrations of libero_90 have nan as eef_x in row 5"):
        statistics_of(rows, NAMES, "libero_90")
    with pytest.raises(ConfigError, match="libero_90 have no rows"):
        statistics_of(rows[:0], NAMES, "libero_90")
