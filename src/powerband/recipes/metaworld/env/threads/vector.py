"""ThreadedMetaWorld: steps tasks of Meta-World with MuJoCo in threads of this process, bit for bit as `metaworld`.

The `metaworld` package creates and resets each environment. A step is MuJoCo alone: a compiled function, which needs no
Python lock, moves the hand's target, steps, and copies positions. `programs` compute observation, reward and success.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial

import numpy as np

from powerband.core.machine.device import cores_per_rank
from powerband.envs.adapters.external import ExternalStep
from powerband.envs.workers.spaces import Spaces
from powerband.recipes.metaworld.env import metaworld_private, mujoco_private
from powerband.recipes.metaworld.env.gymnasium_env import MetaWorldEnv
from powerband.recipes.metaworld.env.tasks import ACTION, MT10_TASKS, OBS
from powerband.recipes.metaworld.env.threads.lean_models import copy_env, lean_env
from powerband.recipes.metaworld.env.threads.programs import RewardProgram, WriteRewards, reward_program
from powerband.recipes.metaworld.env.threads.reward_terms import RewardArrays
from powerband.recipes.metaworld.env.threads.stepping import MujocoArrays, step_function
from powerband.recipes.metaworld.env.threads.thread_pool import ThreadPool


class ThreadedMetaWorld:
    """N simulations (rows), each of one task, which threads of this process step with MuJoCo.

    All episodes end together, because only the time limit ends an episode.

    Args:
        tasks: The task of each row.
        horizon: Steps of an episode, at most 500.
        threads: Threads that step and reset, including the one that calls `recv`; 0 starts one per core.
        one_hot_tasks: Tasks of the one-hot task code that is appended to observations; empty for no code.

    Raises:
        MetaWorldNotInstalled: The metaworld package is not installed.
    """

    overlappable = True

    def __init__(self, tasks: list[str], horizon: int, threads: int = 0, one_hot_tasks: tuple[str, ...] = ()) -> None:
        self.tasks, self.num_envs, self.horizon, self.steps = tasks, len(tasks), horizon, 0
        self.programs = [reward_program(task) for task in tasks]
        lean = {
            task: lean_env(task, horizon, one_hot_tasks, program.geoms)
            for task, program in dict(zip(tasks, self.programs, strict=True)).items()
        }
        home_states: dict[str, dict[bytes, np.ndarray]] = {task: {} for task in lean}
        self.envs = [copy_env(lean[task], home_states[task]) for task in tasks]
        self.spaces = Spaces.from_env(self.envs[0])
        places = max(program.places for program in self.programs)
        place, size = np.zeros((len(tasks), places, 3)), np.zeros((len(tasks), places), np.int64)
        action = np.zeros((len(tasks), ACTION), np.float32)
        self.simulations = _mujoco_arrays(self.programs, self.envs, place, size, action)
        self.rows = _reward_arrays(tasks, self.programs, self.envs, self.simulations, OBS + len(one_hot_tasks))
        self.succeeded = np.zeros(self.num_envs, bool)
        mujoco_private.load_library()
        self._writes = _consecutive([program.write for program in self.programs])
        self._touch_rows = [row for row, program in enumerate(self.programs) if program.touch]
        self._step_rows = partial(step_function(), self.simulations, _input_bits(), self.envs[0].env.frame_skip)
        self._threads = ThreadPool(min(threads or cores_per_rank(), self.num_envs))

    def reset(self, seeds: list[int]) -> np.ndarray:
        """Resets all rows with one seed per row. Returns the observations (N, F entries)."""
        self.steps, self.succeeded[:] = 0, False
        self._threads.submit(partial(self._reset_row, seeds), [(row,) for row in range(self.num_envs)])
        self._threads.wait()
        return self.rows.obs.copy()

    def send(self, action: np.ndarray) -> None:
        """Starts a step of all rows with actions (N, 4)."""
        self.simulations.action[:] = action
        count, share = self.num_envs, max(1, self.num_envs // (4 * self._threads.count))
        self._threads.submit(self._step_rows, [(first, min(first + share, count)) for first in range(0, count, share)])

    def recv(self, next_seeds: Callable[[np.ndarray], list[int]]) -> ExternalStep:
        """Waits for all rows and returns their step; if the episodes ended, all rows are reset.

        Args:
            next_seeds: Function from a mask (N,) bool of the rows that ended to N seeds for the reset, one per row.

        Returns:
            The step. ``info["success"]`` (N,) is 1 once the task was solved in the episode.
        """
        self._threads.wait()
        for write, first, last in self._writes:
            write(self.rows, first, last)
        for row in self._touch_rows:
            if self.rows.success[row] and not self.succeeded[row]:
                self.rows.success[row] = metaworld_private.fingers_touch_object(self.envs[row].env)
        self.steps += 1
        self.succeeded |= self.rows.success
        obs, reward, success = self.rows.obs.copy(), self.rows.reward.copy(), self.succeeded.astype(np.float32)
        ended = np.full(self.num_envs, self.steps >= self.horizon)
        final = obs if ended.any() else None
        obs = self.reset(next_seeds(ended)) if ended.any() else obs
        return ExternalStep(obs, reward, np.zeros_like(ended), ended, final, {"success": success})

    def close(self) -> None:
        """Waits for a pending step and ends the threads; may be called again."""
        self._threads.close()

    def _reset_row(self, seeds: list[int], row: int) -> None:
        """Resets one row with the metaworld package and copies the positions that the reward of the row reads."""
        env = self.envs[row]
        self.rows.obs[row] = env.reset(seed=seeds[row])[0]
        self.rows.last[row] = self.rows.obs[row, :18]
        for index, position in self.programs[row].start(env.env).items():
            self.rows.start[row, index] = position


def _consecutive(functions: list[WriteRewards]) -> list[tuple[WriteRewards, int, int]]:
    """Returns (function, first row, last row + 1) for each sequence of rows that have the same function."""
    groups, first = [], 0
    for function, rows in itertools.groupby(functions):
        last = first + len(list(rows))
        groups.append((function, first, last))
        first = last
    return groups


def _mujoco_arrays(
    programs: list[RewardProgram], envs: list[MetaWorldEnv], place: np.ndarray, size: np.ndarray, action: np.ndarray
) -> MujocoArrays:
    """Returns the arrays of the compiled step; sets `size` to the number of values of each place (`reward_terms`)."""
    inner = [env.env for env in envs]
    source = np.zeros(size.shape, np.uint64)
    for row, (program, env) in enumerate(zip(programs, inner, strict=True)):
        for index, values in program.views(env.data).items():
            source[row, index], size[row, index] = values.ctypes.data, len(values)
    return MujocoArrays(
        model=np.array([mujoco_private.address_of(env.model) for env in inner], np.uint64),
        data=np.array([mujoco_private.address_of(env.data) for env in inner], np.uint64),
        action=action,
        scale=np.array([env.action_scale for env in inner], np.float32),
        low=np.array([env.mocap_low for env in inner], np.float64),
        high=np.array([env.mocap_high for env in inner], np.float64),
        inputs=np.zeros((len(inner), 9)),
        source=source,
        size=size,
        place=place,
    )


def _reward_arrays(
    tasks: list[str], programs: list[RewardProgram], envs: list[MetaWorldEnv], steps: MujocoArrays, width: int
) -> RewardArrays:
    """Returns the arrays of the rewards, which share places and actions with those of the compiled step.

    `width` is the number of entries of an observation.
    """
    rows, inner = len(envs), [env.env for env in envs]
    return RewardArrays(
        task=np.array([MT10_TASKS.index(task) if task in MT10_TASKS else -1 for task in tasks]),
        place=steps.place,
        flat=steps.place.reshape(rows, -1),
        size=steps.size,
        start=np.zeros((rows, max(program.starts for program in programs), 3)),
        low=np.array([env.sawyer_observation_space.low for env in inner], np.float64),
        high=np.array([env.sawyer_observation_space.high for env in inner], np.float64),
        last=np.zeros((rows, 18)),
        action=steps.action,
        obs=np.zeros((rows, width)),
        reward=np.zeros(rows),
        success=np.zeros(rows, bool),
    )


def _input_bits() -> int:
    """Returns the mjtState bits of a step's inputs: gripper controls, position and quaternion of the hand's target."""
    from mujoco import mjtState

    return int(mjtState.mjSTATE_CTRL | mjtState.mjSTATE_MOCAP_POS | mjtState.mjSTATE_MOCAP_QUAT)
