"""MetaWorldEnv: one task of Meta-World as a Gymnasium environment whose seed determines its episodes, without torch.

In the metaworld package, `reset` ignores its seed and repeats one goal, and the time limit is fixed. In `MetaWorldEnv`,
the seed draws the goal, or the goals cycle; success counts at any step so far; and the time limit is an option.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Literal

import numpy as np

from powerband.core.errors import ConfigError
from powerband.core.machine.gl_device import opengl_renderer
from powerband.recipes.metaworld.env import metaworld_private
from powerband.recipes.metaworld.env.tasks import GOALS, INSTALL, MAX_HORIZON, OBS, MetaWorldNotInstalled

Goals = Literal["drawn", "cycled"]
GOAL_SEED = 42
"""Seed of the 50 goals that are cycled, on which results are reported."""
VALIDATION_GOAL_SEED = 43
"""Seed of the 50 goals of evaluations during training, which select the best checkpoint."""


class MetaWorldEnv:
    """One simulation of one task of Meta-World as a Gymnasium environment.

    Observations (39,) float64 hold 18 entries of the current step, the same 18 of the step before, and the goal, a
    position of 3 entries. The 18 entries describe hand, gripper and objects. Actions (4,) are in [-1, 1], rewards in
    [0, 10]. Episodes end at the time limit only.

    Args:
        task: Name without its version, such as "door-open".
        horizon: Steps of an episode, at most 500.
        goals: "drawn" draws goals from the whole range of the task with the seed of the reset; "cycled" cycles through
            the 50 fixed goals of the metaworld package.
        goal_seed: Seed of the 50 goals of "cycled".
        first_goal, goal_stride: Index of the first goal of the cycle, and its increment per episode.
        reward_version: "v2" (shaped, 0 to 10) or "v1".
        one_hot: (index, length) of a one-hot task code that is appended to observations; None for no code.
        render_size: Width and height of a frame in pixels; 0 creates no renderer.

    Raises:
        MetaWorldNotInstalled: The metaworld package is not installed.
        ConfigError: The horizon is out of range, or the task lacks the reward version.
    """

    def __init__(
        self,
        task: str,
        horizon: int = 400,
        goals: Goals = "drawn",
        goal_seed: int = GOAL_SEED,
        first_goal: int = 0,
        goal_stride: int = 1,
        reward_version: str = "v2",
        one_hot: tuple[int, int] | None = None,
        render_size: int = 0,
    ) -> None:
        from gymnasium.spaces import Box

        env_classes = _env_dict().ALL_V3_ENVIRONMENTS
        if not 1 <= horizon <= MAX_HORIZON:
            raise ConfigError(
                f"horizon={horizon} is outside 1 to {MAX_HORIZON}, the limit of Meta-World. Write horizon=400."
            )
        env_class = metaworld_private.with_shared_model(env_classes[f"{task}-v3"])
        self.env = env_class(**(_render_options(render_size) if render_size else {}))
        self.task, self.horizon, self.goals, self.goal_seed = task, horizon, goals, goal_seed
        self.next_goal, self.goal_stride = first_goal, goal_stride
        if not metaworld_private.supports_reward_version(self.env, reward_version):
            raise ConfigError(
                f"reward_version={reward_version}: {task} has no rewards of this version. Write reward_version=v2."
            )
        if reward_version != "v2":
            self.env.reward_function_version = reward_version
        self.one_hot_code = np.zeros(0) if one_hot is None else np.eye(one_hot[1])[one_hot[0]]
        self.env.max_path_length = horizon
        self.env.set_task(_goals_of(task, goal_seed)[0])
        size = OBS + len(self.one_hot_code)
        self.observation_space = Box(-np.inf, np.inf, (size,), np.float64)
        self.action_space = self.env.action_space
        self.max_episode_steps = horizon
        self.succeeded = self.moved = False
        self.renderer = _simplify_scene(self.env) if render_size else None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Starts an episode; returns its first observation, and the info of the metaworld package.

        If goals are drawn, the same `seed` gives the same episode; None continues the random sequence.
        `options` is not used.
        """
        if self.goals == "cycled":
            if self.moved:  # an episode that has not begun is started again with its goal
                self.next_goal += self.goal_stride
            self.env.set_task(_goals_of(self.task, self.goal_seed)[self.next_goal % GOALS])
        else:
            metaworld_private.draw_goals(self.env, seed)
        self.succeeded = self.moved = False
        obs, info = self.env.reset()
        obs[:18] = obs[18:36] = metaworld_private.refresh_observation(self.env)
        return self._with_code(obs), info

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Steps the simulation; returns observation, reward, terminated (always False), truncated and info.

        ``info["success"]`` is 1.0 once the task was solved in this episode, else 0.0.
        """
        self.moved = True
        obs, reward, _, _, info = self.env.step(action)
        self.succeeded |= bool(info["success"])
        truncated = self.env.curr_path_length >= self.horizon
        return self._with_code(obs), float(reward), False, truncated, {"success": float(self.succeeded)}

    def render(self) -> np.ndarray:
        """Renders the scene as (size, size, 3) uint8."""
        return np.ascontiguousarray(self.env.render()[::-1])  # the corner camera is mounted upside down

    def close(self) -> None:
        """Closes the simulation and its renderer."""
        self.env.close()

    def _with_code(self, obs: np.ndarray) -> np.ndarray:
        return np.concatenate([obs, self.one_hot_code]) if len(self.one_hot_code) else obs


def make_metaworld_env(**options: Any) -> MetaWorldEnv:
    """Creates one `MetaWorldEnv` with the arguments `options`; worker processes import this function by name."""
    return MetaWorldEnv(**options)


def scripted_policy(task: str) -> Callable[[np.ndarray], np.ndarray]:
    """Returns Meta-World's scripted policy of a task: a function from observation (39,) to action (4,) in [-1, 1].

    Raises:
        MetaWorldNotInstalled: The metaworld package is not installed.
    """
    _env_dict()
    from metaworld.policies import ENV_POLICY_MAP

    policy_class: Any = ENV_POLICY_MAP[f"{task}-v3"]
    policy = policy_class()
    return lambda obs: np.clip(policy.get_action(np.asarray(obs, np.float64)), -1.0, 1.0)


def _env_dict() -> Any:
    """Returns the module of the metaworld package that defines its environments.

    Raises:
        MetaWorldNotInstalled: The package is not installed.
    """
    try:
        from metaworld import env_dict
    except ModuleNotFoundError as missing:
        raise MetaWorldNotInstalled(f"Meta-World is not installed ({missing}). Write {INSTALL}.") from missing
    return env_dict


@cache
def _goals_of(task: str, seed: int) -> list[Any]:
    """Returns the 50 goals of a task and a seed.

    Creating them takes half a second, so a process creates them once.
    """
    from metaworld import MT1

    return list(MT1(f"{task}-v3", seed=seed).train_tasks)


def _render_options(size: int) -> dict[str, Any]:
    """Returns the arguments with which an environment of the metaworld package renders `size` x `size` pixels."""
    return {"render_mode": "rgb_array", "width": size, "height": size, "camera_name": "corner2"}


def _simplify_scene(env: Any) -> str:
    """Disables multisampling, shadows, reflections and sky, so that a frame takes a tenth of the time.

    Returns:
        Name of the renderer.
    """
    import mujoco

    env.model.vis.quality.offsamples = 0  # the renderer reads it when the first frame creates it
    env.render()
    for flag in (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION, mujoco.mjtRndFlag.mjRND_SKYBOX):
        env.mujoco_renderer.viewer.scn.flags[flag] = 0
    return opengl_renderer()
