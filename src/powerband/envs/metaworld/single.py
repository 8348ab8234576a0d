"""MetaWorldEnv: one task of Meta-World as a Gymnasium environment that obeys its seed. No torch here.

The package's `reset` ignores its seed, draws goals of a frozen task and knows one time limit; here the seed draws the
goal, or the goals are taken in turn, success is what was reached at any step, and the time limit is an option.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Literal

import numpy as np

from powerband.envs.drawing import drawn_by
from powerband.envs.metaworld.tasks import GOALS, INSTALL, OBS, NotInstalled

Goals = Literal["drawn", "cycled", "given"]
GOAL_SEED = 42
"""Seed of the 50 goals that are cycled."""


class MetaWorldEnv:
    """One simulation of one task.

    Observations (39,) float64: 18 entries now, the same 18 a step ago, the goal. Actions (4,) in [-1, 1]. Rewards from
    0 to 10. The only end is the time limit.

    Args:
        task: Name without its version, "door-open".
        horizon: Steps of an episode, at most 500.
        goals: "drawn": from the whole range of the task, by the seed of the reset. "cycled": the 50 goals in turn.
            "given": as `env` was told last.
        first_goal, goal_stride: Where cycling begins, and how many goals on the next episode's is.
        reward_version: "v2" (shaped, 0 to 10) or "v1".
        one_hot: (index, length) of a code behind the observation, None for no code.
        render_size: Pixels of a square frame; 0 renders nothing.

    Raises:
        NotInstalled: There is no metaworld.
        ValueError: A horizon that the task does not allow, a reward version that it does not have.
    """

    def __init__(
        self,
        task: str,
        horizon: int = 400,
        goals: Goals = "drawn",
        first_goal: int = 0,
        goal_stride: int = 1,
        reward_version: str = "v2",
        one_hot: tuple[int, int] | None = None,
        render_size: int = 0,
    ) -> None:
        from gymnasium.spaces import Box

        kinds = _package().ALL_V3_ENVIRONMENTS
        if not 1 <= horizon <= 500:
            raise ValueError(f"horizon={horizon} is outside 1 to 500, Meta-World's own limit. Write horizon=400.")
        extra = {"render_mode": "rgb_array", "width": render_size, "height": render_size} if render_size else {}
        self.env = kinds[f"{task}-v3"](**extra, **({"camera_name": "corner2"} if extra else {}))
        self.task, self.horizon, self.goals = task, horizon, goals
        self.next_goal, self.goal_stride = first_goal, goal_stride
        if reward_version != "v2":
            if reward_version != "v1" or not hasattr(self.env, "reward_function_version"):
                raise ValueError(f"reward_version={reward_version}: {task} has no such. Write reward_version=v2.")
            self.env.reward_function_version = reward_version
        self.code = np.zeros(0) if one_hot is None else np.eye(one_hot[1])[one_hot[0]]
        self.env.max_path_length = horizon
        self.env.set_task(_goals_of(task)[0])
        size = OBS + len(self.code)
        self.observation_space = Box(-np.inf, np.inf, (size,), np.float64)
        self.action_space = self.env.action_space
        self.max_episode_steps = horizon
        self.renderer: str | None = None
        if render_size:
            self.renderer = _plain(self.env)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        """Begins an episode; the same `seed` gives the same one."""
        if self.goals == "cycled":
            self.env.set_task(_goals_of(self.task)[self.next_goal % GOALS])
            self.next_goal += self.goal_stride
        elif self.goals == "drawn":
            self.env._freeze_rand_vec, self.env.seeded_rand_vec = False, True
            if seed is not None:
                self.env.np_random = np.random.default_rng(seed)
        self.succeeded = False
        obs, info = self.env.reset()
        # Some tasks move their object last thing in their reset, and the package would show it where it was before.
        _forward(self.env.model, self.env.data)
        now = self.env._prev_obs = self.env._get_curr_obs_combined_no_goal()
        obs[:18] = obs[18:36] = now
        return self._coded(obs), info

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """One step. ``info["success"]`` is 1 once the task was solved in this episode."""
        obs, reward, _, _, info = self.env.step(action)
        self.succeeded |= bool(info["success"])
        truncated = self.env.curr_path_length >= self.horizon
        return self._coded(obs), float(reward), False, truncated, {"success": float(self.succeeded)}

    def render(self) -> np.ndarray:
        """The scene as (size, size, 3) uint8."""
        return np.ascontiguousarray(self.env.render()[::-1])  # the corner camera hangs upside down

    def close(self) -> None:
        self.env.close()

    def _coded(self, obs: np.ndarray) -> np.ndarray:
        return np.concatenate([obs, self.code]) if len(self.code) else obs


def _forward(model: Any, data: Any) -> None:
    import mujoco

    mujoco.mj_forward(model, data)


def make_metaworld(**words: Any) -> MetaWorldEnv:
    """For worker processes: one `MetaWorldEnv`."""
    return MetaWorldEnv(**words)


def scripted(task: str) -> Any:
    """Meta-World's own hand-written policy of a task: ``policy(obs (39,)) -> action (4,)`` in [-1, 1].

    Raises:
        NotInstalled: There is no metaworld.
    """
    _package()
    from metaworld.policies import ENV_POLICY_MAP

    policy = ENV_POLICY_MAP[f"{task}-v3"]()
    return lambda obs: np.clip(policy.get_action(np.asarray(obs, np.float64)), -1.0, 1.0)


def _package() -> Any:
    try:
        from metaworld import env_dict
    except ModuleNotFoundError as missing:
        raise NotInstalled(f"Meta-World is not installed ({missing}). Write {INSTALL}.") from missing
    return env_dict


@cache
def _goals_of(task: str) -> list[Any]:
    """The 50 goals of a task; making them costs half a second, so a process makes them once."""
    from metaworld import MT1

    return list(MT1(f"{task}-v3", seed=GOAL_SEED).train_tasks)


def _plain(env: Any) -> str:
    """Takes multisampling, shadows, reflections and sky out: a frame then costs a tenth. Returns what it draws with."""
    import mujoco

    env.model.vis.quality.offsamples = 0  # read when the renderer is made, which the first frame does
    env.render()
    for flag in (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION, mujoco.mjtRndFlag.mjRND_SKYBOX):
        env.mujoco_renderer.viewer.scn.flags[flag] = 0
    return drawn_by()
