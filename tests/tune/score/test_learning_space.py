"""The learning space proposes valid settings only, and never a setting that the user fixed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from powerband.cli.catalogue import configure
from powerband.core.errors import ConfigError
from powerband.tune.score.learning_space import LearningSpace, nearest_divisor
from powerband.tune.score.setting_space import SettingSpace

CASES = {
    "ppo": ["gym", "algo=ppo", "hyper=default"],
    "sac": ["gym"],
    "cartpole": ["gym", "variant=cartpole"],
    "snakes": ["snakes"],
    "ddpg": ["snakes", "algo=ddpg"],
    "uav": ["uav"],
    "recurrent": ["sketchnav"],
    "metaworld": ["metaworld"],
}


def space_of(command: list[str], fixed: tuple[str, ...] = ()) -> LearningSpace:
    recipe, stage, resolved = configure(command[0], command[1:])
    return LearningSpace(recipe, stage, resolved.config, fixed)


class Drawn:
    """Draws coordinates with hypothesis, as a trial of Optuna does."""

    def __init__(self, data: st.DataObject) -> None:
        self.data, self.params = data, {}

    def suggest_int(self, name: str, low: int, high: int) -> int:
        return self.params.setdefault(name, self.data.draw(st.integers(low, high)))

    def suggest_float(self, name: str, low: float, high: float, *, log: bool) -> float:
        assert log
        return self.params.setdefault(name, self.data.draw(st.floats(low, high)))

    def suggest_categorical(self, name: str, choices: list[Any]) -> Any:
        return self.params.setdefault(name, self.data.draw(st.sampled_from(choices)))


@pytest.mark.parametrize("case", CASES)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_every_proposal_is_a_valid_configuration(case: str, data: st.DataObject) -> None:
    command = CASES[case]
    space, trial = space_of(command), Drawn(data)
    space.suggest(trial)
    changed = space.settings(trial.params)
    arguments = [f"{name}={','.join(map(str, v)) if isinstance(v, tuple) else v}" for name, v in changed.items()]
    recipe, _, resolved = configure(command[0], [*command[1:], *arguments])
    recipe.check_sizes(resolved.config, 1)
    loop = resolved.config.on_policy if "on_policy.num_steps" in space.knobs.paths.values() else None
    if loop is not None:
        loop.split(loop.num_envs * (1 if space.knobs.get("gru") else loop.num_steps), 1)


@pytest.mark.parametrize("case", CASES)
def test_present_coordinates_change_nothing_and_promising_ones_change_one_thing(case: str) -> None:
    space = space_of(CASES[case])
    assert space.settings(space.present()) == {}
    assert len(space.dimensions) >= 4 and "learning_rate" in space.dimensions
    for params in space.promising():
        assert space.settings(params)


def test_a_narrow_network_is_tried_with_a_smaller_batch_and_more_updates_at_once() -> None:
    space = space_of(CASES["sac"])
    narrow = {"off_policy.updates_per_interval": 2, "off_policy.global_batch_size": 128}
    assert [space.settings(each) for each in space.promising()[:3]] == [
        {**narrow, "sac.hidden": (64, 64)},
        {**narrow, "sac.hidden": (128, 128), "sac.layer_norm": True, "sac.action_noise": "pink"},
        {**narrow, "sac.hidden": (64, 64), "sac.action_noise": "pink"},
    ]
    for fixed in ("sac.hidden", "off_policy.global_batch_size", "off_policy.update_interval"):
        changes = space_of(CASES["sac"], fixed=(fixed,)).promising()
        assert changes and not any(each.get("width") == -2 for each in changes)
    assert not any(each.get("width") == -2 for each in space_of(CASES["ppo"]).promising())


def test_settings_of_the_user_are_fixed() -> None:
    space = space_of(CASES["ppo"], fixed=("ppo.lr", "on_policy.num_envs"))
    assert not {"learning_rate", "num_envs"} & set(space.dimensions) and "epochs" in space.dimensions


def test_factors_are_applied() -> None:
    space = space_of(CASES["sac"])
    assert space.settings({"update_ratio": -1}) == {
        "off_policy.update_interval": 2,
        "off_policy.updates_per_interval": 1,
    }
    assert space.settings({"update_ratio": 1}) == {"off_policy.updates_per_interval": 2}
    assert space.settings({"learning_rate": 2.0}) == {"sac.actor_lr": 6e-4, "sac.critic_lr": 6e-4}
    assert space.settings({"horizon": 1, "width": -1}) == {"sac.gamma": 0.995, "sac.hidden": (128, 128)}
    ppo = space_of(CASES["ppo"])
    assert ppo.settings({"annealing": 1, "num_envs": -2}) == {"on_policy.anneal_lr": True, "on_policy.num_envs": 2}
    annealed = space_of([*CASES["ppo"], "anneal_lr=true"])
    assert annealed.settings({"annealing": 1}) == {"on_policy.anneal_lr": False}
    assert ppo.settings({"learning_rate": 0.5}) == {"ppo.lr": 1.5e-4}
    assert space.settings({"action_noise": 1}) == {"sac.action_noise": "pink"} and "action_noise" not in ppo.dimensions
    pink = space_of([*CASES["sac"], "sac.action_noise=pink"])
    assert pink.settings({"action_noise": 1}) == {"sac.action_noise": "white"}
    assert space.settings({"layer_norm": 1}) == {"sac.layer_norm": True} and "layer_norm" not in ppo.dimensions
    few = space_of(["gym", "off_policy.num_envs=1"])
    assert few.dimensions["num_envs"][1:] == (0, 2)


def test_learning_rates_of_other_stages_stay() -> None:
    assert set(space_of(CASES["metaworld"]).settings({"learning_rate": 2.0})) == {"sac.actor_lr", "sac.critic_lr"}


@given(st.integers(1, 3000), st.integers(1, 64))
def test_nearest_divisor_divides(rows: int, wanted: int) -> None:
    found = nearest_divisor(rows, wanted)
    assert rows % found == 0 and (rows % wanted or found == wanted)


def test_the_nearest_divisor_of_a_large_rollout_is_found_at_once() -> None:
    assert nearest_divisor(2**40, 3) == 4 and nearest_divisor(12, 5) == 6 and nearest_divisor(49, 7) == 7


def test_mini_batches_that_the_user_fixed_are_never_changed() -> None:
    recipe, stage, resolved = configure(
        "gym", ["algo=ppo", "on_policy.num_envs=6", "num_steps=10", "minibatches=4", "num_workers=0"]
    )
    space = LearningSpace(recipe, stage, resolved.config, ["on_policy.minibatches"])
    assert space.settings({"num_envs": -1}) == {"on_policy.num_envs": 3}
    assert space.dimensions["num_envs"][1:] == (0, 2)  # three environments collect 30 transitions
    with pytest.raises(ConfigError, match="minibatches=4, which you fixed, does not divide the 30 rows"):
        SettingSpace(recipe, stage, {"ppo": resolved.config}, ["on_policy.minibatches"]).config({"num_envs": -1})
    free = LearningSpace(recipe, stage, resolved.config, [])
    assert free.settings({"num_envs": -1}) == {"on_policy.num_envs": 3, "on_policy.minibatches": 5}
