"""Sizes of ``variant=smoke``: a first run ends within two minutes on two idle cores only while these stay small."""

from __future__ import annotations

from operator import attrgetter

import pytest

from powerband.cli.catalogue import configure

LARGEST: dict[str, dict[str, int]] = {
    "gym": {"run.env_steps": 1_000, "off_policy.num_envs": 1, "num_workers": 0},
    "snakes": {"run.env_steps": 4_000, "run.threads": 1, "on_policy.num_envs": 28},
    "uav": {
        "run.env_steps": 240,
        "run.threads": 1,
        "on_policy.num_envs": 4,
        "coma.width": 16,
        "mappo.width": 16,
        "world.map_cells": 121,
    },
    "sketchnav": {
        "run.env_steps": 64,
        "run.threads": 1,
        "scenes.plans": 2,
        "eval_plans": 1,
        "eval_episodes": 2,
        "rules.max_steps": 150,
        "pixels": 36,
    },
    "metaworld": {
        "expert_steps": 1_200,
        "online_steps": 800,
        "student_steps": 600,
        "off_policy.updates_per_interval": 1,
        "represent_updates": 30,
        "distill.actor_updates": 100,
        "final_episodes": 4,
        "horizon": 50,
        "run.threads": 1,
    },
    "libero": {"updates": 3, "demo_episodes": 1, "final_episodes": 2, "max_steps": 120, "pixels": 32},
}
"""Recipe -> option -> its largest value.

Raise a value only with a new measurement of `benchmarks/training/first_runs.py`.
"""


@pytest.mark.parametrize("name", LARGEST)
def test_smoke_runs_stay_small(name: str) -> None:
    config = configure(name, ["variant=smoke"])[2].config
    values = {option: attrgetter(option)(config) for option in LARGEST[name]}
    assert all(0 <= values[option] <= largest for option, largest in LARGEST[name].items()), values


@pytest.mark.parametrize("name", ["snakes", "uav", "sketchnav"])
def test_smoke_runs_compile_no_loops_for_several_threads(name: str) -> None:
    threads = configure(name, ["variant=smoke"])[2].config.run.threads
    assert threads == 1, "0 takes all cores, whose loops contain those of one thread and are compiled in addition"


def test_a_smoke_run_of_libero_simplifies_no_meshes() -> None:
    assert configure("libero", ["variant=smoke"])[2].config.quality == "plain"


def test_a_smoke_run_of_metaworld_makes_few_updates_and_compiles_none() -> None:
    config = configure("metaworld", ["variant=smoke"])[2].config
    assert config.off_policy.update_interval >= 4 and not config.sac.can_be_fused
