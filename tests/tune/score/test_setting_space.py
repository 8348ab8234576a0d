"""The setting space: algorithms that suit the task, the faster layout, and coordinates as settings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from powerband.cli.catalogue import configure
from powerband.core.config.presets import TunedKey, hardware_fingerprint, user_presets
from powerband.tune.score.layout import layout_from_preset, layout_from_search
from powerband.tune.score.setting_space import SettingSpace, fixed_settings, usable_algorithms

KEY = TunedKey("gym", "CartPole-v1", "ppo", "env_id", "score")


def algorithms(*arguments: str) -> list[str]:
    recipe, stage, resolved = configure("gym", list(arguments))
    return list(usable_algorithms(recipe, stage, resolved, list(arguments), configure))


def test_algorithms_that_support_the_spaces_are_tried_the_present_one_first() -> None:
    found = algorithms("env_id=Pendulum-v1")
    assert found[0] == "sac" and {"sac", "td3", "ppo"} <= set(found)
    discrete = algorithms("variant=cartpole")
    assert discrete[0] == "ppo" and not {"sac", "td3"} & set(discrete)
    assert algorithms("env_id=Pendulum-v1", "algo=td3") == ["td3"]


def space_of(layout: dict | None = None) -> SettingSpace:
    arguments = ["env_id=Pendulum-v1", "on_policy.num_envs=2", "hyper=default"]
    recipe, stage, resolved = configure("gym", arguments)
    configs = usable_algorithms(recipe, stage, resolved, arguments, configure)
    return SettingSpace(recipe, stage, configs, fixed_settings(resolved), layout)


def test_coordinates_of_another_algorithm_choose_it_and_its_settings() -> None:
    space = space_of()
    assert space.settings(space.present()) == {}
    assert space.present()["algo"] == "sac" and "sac.learning_rate" in space.present()
    assert not any(name.startswith("ppo.") for name in space.present())
    params = {"algo": "ppo", "ppo.learning_rate": 2.0, "sac.learning_rate": 3.0}
    assert space.settings(params) == {"algo": "ppo", "ppo.lr": 6e-4}
    assert space.config(params).ppo.lr == 6e-4
    assert {params["algo"] for params in space.first()} >= {"sac", "td3", "ppo"}


def test_layout_is_left_out_where_it_does_not_suit_the_other_settings() -> None:
    space = space_of({"num_workers": 4, "off_policy.num_envs": 4, "env_id": "no, fixed by the user"})
    faster = {"algo": "sac", "layout": "faster"}
    assert space.settings(faster) == {"num_workers": 4, "off_policy.num_envs": 4}
    assert space.settings({**faster, "layout": "present"}) == {}
    few = {"algo": "ppo", "layout": "faster"}  # four workers for two environments are refused
    assert space.settings(few) == {"algo": "ppo"}


def test_precision_is_a_choice_of_its_own_and_another_width_is_tried_without_it() -> None:
    space = space_of({"num_workers": 0, "run.precision": "bf16"})
    chosen = {"algo": "sac", "layout": "faster", "precision": "faster"}
    assert space.settings(chosen) == {"num_workers": 0, "run.precision": "bf16"}
    assert space.settings({**chosen, "precision": "present"}) == {"num_workers": 0}
    narrow = [each for each in space.first() if each.get("sac.width") == -1 and each["sac.batch"] == 0]
    assert [(each["layout"], each["precision"]) for each in narrow] == [("faster", "faster"), ("faster", "present")]
    assert space.settings(narrow[1]) == {"num_workers": 0, "sac.hidden": (128, 128)}
    assert space.present() | {"layout": "present", "precision": "present"} == space.present()


def write_preset(task: str, **header: object) -> Path:
    user_presets().mkdir(parents=True, exist_ok=True)
    key = TunedKey("gym", task, "ppo", "env_id")
    path = user_presets() / f"{key.name}.yaml"
    lines = [f"  {k}: {json.dumps(v)}" for k, v in {**hardware_fingerprint(), **key.header(), **header}.items()]
    settings = ["num_workers: 0", "run:", "  threads: 1", "on_policy:", "  num_envs: 64", "  double_buffer: true"]
    path.write_text("\n".join(["tuned:", *lines, *settings]) + "\n")
    return path


def test_layout_takes_what_leaves_learning_unchanged_from_the_preset(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    recipe = configure("gym", [])[0]
    assert layout_from_preset(recipe, KEY) is None
    write_preset("CartPole-v1")
    expected = {"num_workers": 0, "run.threads": 1, "on_policy.double_buffer": True}
    assert layout_from_preset(recipe, KEY) == expected
    write_preset("CartPole-v1", cores=4096)
    assert layout_from_preset(recipe, KEY) is None


def test_a_small_budget_has_no_search_for_a_layout() -> None:
    recipe, stage, resolved = configure("gym", [])
    assert layout_from_search(recipe, stage, resolved.config, 150.0, pytest.fail) == {}
