"""Translation of Meta-World's rewards: a small class as the reference, names of modules, and the disk cache."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from powerband.core.errors import ConfigError
from powerband.recipes.metaworld.env.threads.method_writer import Untranslatable

pytest.importorskip("metaworld", reason="metaworld is not installed: pip install 'powerband[metaworld]'")
from metaworld.utils import reward_utils

from powerband.recipes.metaworld.env import metaworld_private
from powerband.recipes.metaworld.env.threads import package_terms, programs
from powerband.recipes.metaworld.env.threads.translation import translate
from powerband.recipes.metaworld.env.threads.vector import ThreadedMetaWorld


@dataclass
class Data:
    """Positions of two bodies, as an environment of the package reads them."""

    xpos: np.ndarray = field(default_factory=lambda: np.zeros((2, 3)))
    site_xpos: np.ndarray = field(default_factory=lambda: np.zeros((1, 3)))
    geom_xpos: np.ndarray = field(default_factory=lambda: np.zeros((1, 3)))


class Task:
    """A reward with the forms of Python that the package uses."""

    RADIUS = 0.5
    reward_function_version = "v2"

    def __init__(self) -> None:
        self.data = Data()
        self._target_pos, self.start, self.height = np.array([0.1, 0.2, 0.3]), None, np.float64(0.25)

    @staticmethod
    def _effort(action):
        return float(np.clip(action[3], -1, 1))

    @property
    def middle(self):
        return self.get_body_com("cup") / 2.0

    def get_body_com(self, name):
        return self.data.xpos[["hand", "cup"].index(name)]

    def _get_pos_objects(self):
        return self.get_body_com("cup") + np.array([0.0, 0.1, 0.0])

    def _get_quat_objects(self):
        return np.zeros(4)

    def _get_pos_goal(self):
        return self._target_pos

    def compute_reward(self, action, obs):
        """Returns a reward and a distance."""
        assert len(obs) == 39
        if self.reward_function_version == "v2":
            gap: float = np.linalg.norm(obs[4:7] - self._target_pos)
            if self.start is None:
                self.start = gap
            scores = [
                reward_utils.tolerance(
                    abs(self.middle[i]), bounds=(0, 0.01), margin=self.start + self.RADIUS, sigmoid="long_tail"
                )
                for i in range(2)
            ]
            reward = reward_utils.hamacher_product(*scores)
            reward += min([1.0 if gap > x else 0.5 for x in [0.1, self.height]]) + Task._effort(action)
            return reward, gap
        else:
            raise NotImplementedError

    def evaluate_state(self, obs, action):
        reward, gap = self.compute_reward(action, obs)
        unused = open(str(gap))
        info = {"success": float(gap < self.RADIUS), "unused": unused}
        return reward, info


class MovingTask(Task):
    """A reward that reads a velocity, which the translation does not cover."""

    def compute_reward(self, action, obs):
        return self.data.body("cup").xvelp[0], 0.0


def rows(translation, task, obs):
    """Arrays of one simulation with the values of `task`."""
    flat = np.zeros((1, 3 * translation.places))
    for (element, _), place in translation.reads.items():
        if element in ("body:hand", "body:cup"):
            flat[0, 3 * place : 3 * place + 3] = task.get_body_com(element.removeprefix("body:"))
    start = np.zeros((1, len(translation.starts), 3))
    for index, name in enumerate(translation.starts):
        value = metaworld_private.attribute(task, name)
        start[0, index] = np.nan if value is None else value
    return programs.RewardArrays(
        task=np.array([-1]),
        place=flat.reshape(1, -1, 3),
        flat=flat,
        size=np.zeros((1, translation.places), np.int64),
        start=start,
        low=np.full((1, 39), -10.0),
        high=np.full((1, 39), 10.0),
        last=np.zeros((1, 18)),
        action=np.zeros((1, 4), np.float32),
        obs=obs,
        reward=np.zeros(1),
        success=np.zeros(1, bool),
    )


def test_translated_source_gives_the_values_of_the_class_and_its_code_is_stored(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    task = Task()
    translation = translate(task)
    assert "open" not in translation.source and translation.starts == ["_target_pos", "start", "height"]
    write, draw = programs._compiled(translation.source), np.random.default_rng(0)
    s = rows(translation, task, np.zeros((1, 39)))
    for _ in range(20):
        task.data.xpos[:] = draw.normal(0, 0.3, (2, 3))
        for (element, _), place in translation.reads.items():
            if element in ("body:hand", "body:cup"):
                s.place[0, place] = task.get_body_com(element.removeprefix("body:"))
        s.action[:] = draw.uniform(-2, 2, 4)
        write(s, 0, 1)
        np.testing.assert_allclose(s.obs[0, 4:7], task._get_pos_objects(), rtol=0, atol=1e-15)
        np.testing.assert_array_equal(s.obs[0, 36:], task._target_pos)
        reward, gap = task.compute_reward(s.action[0], s.obs[0])
        assert s.reward[0] == pytest.approx(reward, abs=1e-6) and s.success[0] == (gap < 0.5)
        assert s.start[0, 1, 0] == task.start
    again, other = programs._compiled(translation.source), programs._compiled(translation.source + "\n")
    again(s, 0, 1)  # as in another process
    assert sum(write.stats.cache_misses.values()) == sum(again.stats.cache_hits.values()) == 1
    assert other.py_func.__module__ != write.py_func.__module__ != package_terms.__name__


def test_an_attribute_that_shows_the_simulation_is_read_from_it() -> None:
    task = ThreadedMetaWorld(["door-lock"], 5, 1)
    program = task.programs[0]
    assert program.starts == 2  # goal and length of the lock, but not init_left_pad, a view of the pad's position
    task.close()


def test_unknown_forms_are_refused(monkeypatch) -> None:
    with pytest.raises(Untranslatable, match="xvelp of body:cup"):
        translate(MovingTask())
    monkeypatch.setattr(programs, "translate", lambda env: (_ for _ in ()).throw(Untranslatable("xvelp of body:cup")))
    with pytest.raises(ConfigError, match="task=soccer: .* xvelp of body:cup .* Write backend=workers"):
        programs.reward_program.__wrapped__("soccer")


def test_a_cache_folder_that_cannot_be_written_only_warns(tmp_path, monkeypatch) -> None:
    (tmp_path / "powerband").write_text("a file, not a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.warns(UserWarning, match="every start compiles it again"):
        programs._compiled(translate(Task()).source)
